"""What validation chooses and the checkpoint keeps: together one `DecisionPolicy`. No torch.

policy                  `DecisionPolicy`: everything together, as it is chosen, stored and applied, for each kind;
                        `ReducedPrecision`: what 16-bit floats change in the decisions
evaluation_folder       an evaluation read back with its decision policy; `Folds`: what each of pooled folds has
calibration             temperature scaling
reliability             measures of calibration, before and after the fitted calibration
targets                 how each kind of label is judged, and what `vitmed monitor` watches of it
operating_points        thresholds and costs, and what they reach on the evaluated images
conformal               prediction sets, and intervals around a number, with a chosen coverage
selective_prediction    the model abstains where it is unsure
out_of_distribution     the OOD score: how unlike the training images an image is
"""
