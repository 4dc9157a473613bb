"""What validation chooses and the checkpoint keeps: together one `DecisionPolicy`. No torch.

policy                  `DecisionPolicy`: everything together, as it is stored and applied
evaluation_folder       an evaluation read back with its decision policy
calibration             temperature and vector scaling
reliability             measures of calibration, before and after the fitted calibration
finding_policy          what is chosen for findings
number_policy           what is chosen for a number
policies                a policy read back, whatever its kind
targets                 how each kind of label is judged and decided
operating_points        thresholds and costs
operating_results       what the operating points reach on the evaluated images and on pooled folds
folds                   what each of pooled folds has
conformal               prediction sets with a chosen coverage
number_intervals        intervals around a predicted number with a chosen coverage
selective_prediction    the model abstains where it is unsure
reduced_precision       what 16-bit floats change in the decisions
out_of_distribution     the OOD score: how unlike the training images an image is
"""
