"""The command line: parse, call one command, print, exit code. No logic.

The commands are imported inside their functions, so that `vitmed --help` loads no torch.
"""

from vitmed.cli.app import app
from vitmed.cli.checking import check
from vitmed.cli.comparing import compare
from vitmed.cli.datasets import data
from vitmed.cli.entry import main
from vitmed.cli.judging import evaluate, predict, summary
from vitmed.cli.looking import explain, stress
from vitmed.cli.planning import lr_find, plan
from vitmed.cli.pretraining import pretrain
from vitmed.cli.public_weights import weights
from vitmed.cli.training import demo, probe, train

__all__ = [
    "app",
    "check",
    "compare",
    "data",
    "demo",
    "evaluate",
    "explain",
    "lr_find",
    "main",
    "plan",
    "predict",
    "pretrain",
    "probe",
    "stress",
    "summary",
    "train",
    "weights",
]
