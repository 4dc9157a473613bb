"""What validation chooses and the checkpoint keeps. No torch.

policy                  everything together, as it is stored and applied
calibration             temperature and vector scaling
reliability             how far probabilities can be believed, before and after calibration
operating_points        thresholds and costs
conformal               prediction sets with a promised coverage
selective_prediction    no answer where the model is unsure
out_of_distribution     how unlike the training images an image is
"""
