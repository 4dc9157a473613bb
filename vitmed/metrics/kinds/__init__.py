"""What each kind of label is: its predictions, their decisions and table, and the numbers that judge and compare them.

prepared  `Prepared`: what each kind gives; `values` of an epoch, `draw`, `evaluate` and `compare` of all kinds
classes   one of several classes, by `vitmed.metrics.predictions.Predictions`
findings  `FindingPredictions`: several findings, each present or absent
grades    classes in order: weighted kappa, the distance of grades, and each cut as two classes
number    `NumberPredictions`: a quantity; limits of agreement
"""
