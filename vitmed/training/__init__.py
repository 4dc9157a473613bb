"""Loop, optimiser and schedules, failure detection, pretraining, baselines, checkpoint.

loop               the training loop
train_state        everything that changes while training
losses             the loss of a batch
learning           how each kind of label is learned
linear_heads       linear models of features
epoch_records      the record of an epoch; which is the best; when training ends
autotune           which arithmetic, kernels and threads are the fastest here
optimiser          AdamW, learning-rate schedule, moving average
failure_detection  noticing that a network does not learn
run_setup          a run before its first batch
training_run       a run under way
progress           its progress bar, and what to do when memory is full
launch             `train --devices`: this command line in several processes
prepare            weights, splits and plan before the first batch
plan_rules         the rules of the plan, and their sources
time_plan          which network a time is enough for
forecast           how long a run takes here, from timed steps
time_budget        the time that a run has used, and its share
fit_policy         choosing the decision policy on validation
choose_precision   fp32 or 16-bit floats for predictions
checkpoint         best.pt and last.pt
membership         which image is in which split, as a checkpoint stores it
baselines          models that need no training, and those of a run
pretraining        learning without labels: the loss and validation of masked patches
"""
