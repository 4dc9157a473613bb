"""The commands as plain functions: what the command line calls and `import vitmed` offers."""

from vitmed.commands.demonstration import demo
from vitmed.commands.evaluation import Evaluation, evaluate
from vitmed.commands.prediction import predict
from vitmed.commands.summaries import build_model, summary
from vitmed.commands.training import TrainResult, train

__all__ = ["Evaluation", "TrainResult", "build_model", "demo", "evaluate", "predict", "summary", "train"]
