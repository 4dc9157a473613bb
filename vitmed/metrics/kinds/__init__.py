"""What each kind of label is, beside classes: predictions, their decisions and table, and the numbers that judge them.

findings  `FindingPredictions`: several findings, each present or absent
grades    classes in order: weighted kappa, the distance of grades, and each cut as two classes
number    `NumberPredictions`: a quantity
"""
