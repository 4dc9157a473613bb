"""Many runs as one study: folds, search, and the tables of runs.

folds            which there are, how they are trained, and one report of all their tests
comparison       tables of several models on their common images, and which model is better
ensemble         members of folds or runs, and the policy of their mean
executors        one driver submits jobs; each is a run in a process of its own
search           a search over settings, and what it found
trials           the trials of a search, and the settings that they may change
difference       what is known of two runs, and what differs
auto             the ways that auto compares, and what it keeps
colours          what colours and size alone reveal about the labels
rank_weights     which weights suit these images, by their frozen features
run_list         the runs of a folder, a row each
"""
