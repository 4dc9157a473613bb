"""What validation chooses and the checkpoint keeps: together one `DecisionPolicy`. No torch.

policy                  `DecisionPolicy`: everything together, as it is stored and applied
evaluation_folder       an evaluation read back as its policy decided
calibration             temperature and vector scaling
reliability             how far probabilities can be believed, before and after calibration
operating_points        thresholds and costs
conformal               prediction sets with a promised coverage
selective_prediction    the model abstains where it is unsure
out_of_distribution     the OOD score: how unlike the training images an image is
"""
