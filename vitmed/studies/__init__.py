"""Many runs as one study: folds, search, and the tables of runs.

executors        one driver submits jobs; each is a run in a process of its own
fold_runs        the runs of folds: which there are, and what each begins with
tune_trials      the trials of a search
search_space     what a search may change, from the rules of the plan
run_rows         one row for each run of a folder
run_facts        what a run was trained on and with
compared_tables  predictions of several models, on their common images
"""
