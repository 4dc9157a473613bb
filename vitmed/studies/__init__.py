"""One run, many runs as one study (folds, search), and the tables of runs.

one_run          a run of training or pretraining: begun or resumed, trained, evaluated
study            what a study of many runs says of itself, the one way to conduct it, and who trains its runs
folds            a run for each fold, and one report of all their tests
search           a search over settings: its trials, its winner, and what it found
auto             the steps of auto
comparison       tables of several models on their common images, and which model is better
difference       what is known of two runs, and what differs
rank_weights     which weights suit these images, by their frozen features
run_list         the runs of a folder, a row each
"""
