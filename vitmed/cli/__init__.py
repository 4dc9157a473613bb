"""The command line: parse, call one command, print, exit code. No logic.

The commands are imported inside their functions, so that `vitmed --help` loads no torch.
"""

from vitmed.cli.app import app
from vitmed.cli.check import check
from vitmed.cli.compare import compare
from vitmed.cli.data import data
from vitmed.cli.entry import main
from vitmed.cli.evaluate import evaluate, predict, summary
from vitmed.cli.explain import explain, stress
from vitmed.cli.plan import lr_find, plan
from vitmed.cli.pretrain import pretrain
from vitmed.cli.train import demo, probe, train
from vitmed.cli.weights import weights

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
