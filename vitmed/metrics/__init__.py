"""Predictions, and from them numbers with intervals. numpy and scipy alone: no torch.

predictions        `Predictions`: what a model predicts for a set of images; which class is the positive one
predictions_csv    the cells of predictions.csv, however a spreadsheet saved them
predictions_files  predictions of any kind in files: predictions.csv, and Parquet files of parts
kinds/             what classes, findings, grades and a number are: their numbers, with intervals and compared
estimates          numbers with their intervals, as typed results
metric_table       `METRICS`: name, title and direction of each number
methods            `METHODS`: how intervals are computed, in words and with references
scoring            the numbers themselves, for many resamples at once
ranking            AUROC and average precision
areas              AUROC and average precision with the influence of each image; intervals of areas (DeLong, Newcombe)
intervals          intervals by formula: of proportions and their means (Wilson, MOVER), and by influence
bootstrap          bootstrap weights, percentile intervals, resampled sums
paired_comparison  differences of two models on the same images, and their tests
seed_spread        numbers over trainings that differ by the seed only
notes              why a number is undefined, and what to know before believing it
patient_level      one answer per patient
per_patient        the spread over patients
subgroups          site, scanner, sex, age
confusions         which class is taken for which, and which findings occur together
number_agreement   limits of agreement; errors by range and subgroup; are the predicted scales true?
label_errors       images whose label is doubtful (confident learning)
sample_size        how many images and patients an interval needs
clinical_utility   predictive values by prevalence, and net benefit: the decision curve
roc                sensitivity at a fixed specificity; the band of the ROC curve
readers            Cohen's kappa of readers, reference and model; the model against readers: Obuchowski & Rockette
control_charts     CUSUM charts, and what `vitmed monitor` finds by them
tuning_study       what a search over settings found
"""
