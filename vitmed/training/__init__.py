"""Loop, optimiser and schedules, failure detection, pretraining, baselines.

loop               the training loop
train_state        everything that changes while training
losses             the loss of a batch
learning           how each kind of label is learned; mixup and cutmix
linear_heads       linear models of features
epoch_records      the record of an epoch
early_stopping     which epoch is the best, and when training ends
optimiser          AdamW, learning-rate schedule
moving_average     of the weights, exponential (EMA)
failure_detection  noticing that a network does not learn
run                a run, new or resumed: its folder, what it writes there, and how it trains
finetune           the task of `train`
stream             the batches that the loop reads; what shows, ends and relieves it
gradients          the gradients of a batch, in micro-batches
out_of_memory      how it is recognised, and what the user reads; `Gradients` halves the micro-batch first
processes          the processes of one training: `--devices`, torchrun, DDP and FSDP
environment        what a run depended on, for environment.json
plan/              before the first batch
fit_policy         choosing the decision policy on validation
baselines          models that need no training, and those of a run
pretraining        the task of `pretrain`: the loss and validation of masked patches
"""
