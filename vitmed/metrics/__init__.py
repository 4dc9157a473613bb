"""Predictions, and from them numbers with intervals. numpy and scipy alone: no torch.

predictions        `Predictions`: what a model predicts for a set of images; which of two classes is the positive one
predictions_csv    the cells of predictions.csv, however a spreadsheet saved them
ensembles          predictions of several models joined
predictions_files  predictions of any kind in files: predictions.csv, and Parquet files of parts
kinds/             classes, findings, grades and a number: `Prepared`, their numbers, with intervals and compared
estimates          numbers with their intervals, as typed results; why a number is undefined, what to know of it
metric_table       `METRICS`: name, title and direction of each number; `methods`: how intervals are computed
areas              AUROC and average precision with their intervals (DeLong, Newcombe); the band of the ROC curve
intervals          intervals by formula: of proportions and their means (Wilson), and by influence
bootstrap          bootstrap weights, percentile intervals, resampled sums
paired_comparison  differences of two models on the same images, and their tests; trainings by seed
patient_level      one answer per patient; the spread over patients
subgroups          site, scanner, sex, age
mistakes           which class is taken for which, which findings occur together, which labels are doubtful
sample_size        how many images and patients an interval needs
clinical_utility   predictive values by prevalence, and net benefit: the decision curve
readers            Cohen's kappa of readers, reference and model; the model against readers: Obuchowski & Rockette
control_charts     CUSUM charts, and what `vitmed monitor` finds by them
tuning_study       what a search over settings found
"""
