"""What each kind of label is, beside classes: its predictions, and its numbers.

any_predictions     predictions of any kind
finding_predictions `FindingPredictions`: what a model predicts of several findings, and their predictions.csv
finding_scoring     the numbers of findings, without intervals
finding_evaluation  every number of findings with its interval
finding_comparison  two models of the same findings
finding_results     findings that occur together, and those that are called wrongly
grade_scoring       grades: weighted kappa, costs, and each cut as two classes
grade_evaluation    grades with intervals
grade_comparison    two models of the same grades
number_predictions  `NumberPredictions`: what a model predicts of a quantity
number_scoring      the numbers that judge a predicted quantity
number_evaluation   the same with intervals
number_comparison   two models of the same quantity
number_agreement    limits of agreement; errors by range and by subgroup; are the predicted scales true?
"""
