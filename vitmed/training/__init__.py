"""Loop, optimiser and schedules, pretraining, baselines.

loop               the batches and the loop; gradients in micro-batches, halved when memory runs out; clipping
train_state        what changes while training, and what of it a checkpoint keeps
optimiser          AdamW, its parameter groups (layer decay), the schedule of the learning rate, moving average (EMA)
losses             the loss of a batch; how each kind of label is learned; mixup and cutmix
early_stopping     validation after each epoch, the best epoch, when training ends; a network that does not learn
run                a run, new or resumed: its folder, what it writes there, and how it trains
finetune           the task of `train`, and the decision policy that it chooses on validation
baselines          linear models of features and of colours, which fine-tuning must beat
trackers           the numbers of a run in MLflow or Weights & Biases
out_of_memory      how many images fit the memory at once; recognises an out-of-memory error and words it
processes          the processes of one training: `--devices`, torchrun, DDP and FSDP
plan/              before the first batch
pretraining        the task of `pretrain`: the loss and validation of masked patches
"""
