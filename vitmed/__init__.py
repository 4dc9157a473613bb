"""vitmed: fine-tune Vision Transformers on folders of medical images, and evaluate them defensibly.

Research use only; not a medical device.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `__getattr__` gives, for type checkers and editors
    from vitmed.commands.auto import auto as auto
    from vitmed.commands.bundle import bundle as bundle
    from vitmed.commands.check import check as check
    from vitmed.commands.compare import compare as compare
    from vitmed.commands.cross_validate import cross_validate as cross_validate
    from vitmed.commands.demo import demo as demo
    from vitmed.commands.diff import diff as diff
    from vitmed.commands.ensemble import ensemble as ensemble
    from vitmed.commands.evaluate import evaluate as evaluate
    from vitmed.commands.explain import explain as explain
    from vitmed.commands.export import export as export
    from vitmed.commands.merge import merge as merge
    from vitmed.commands.monitor import monitor as monitor
    from vitmed.commands.plan import plan as plan
    from vitmed.commands.predict import predict as predict
    from vitmed.commands.predict_shard import predict_shard as predict_shard
    from vitmed.commands.pretrain import pretrain as pretrain
    from vitmed.commands.probe import probe as probe
    from vitmed.commands.runs import runs as runs
    from vitmed.commands.sample_size import sample_size as sample_size
    from vitmed.commands.serve import serve as serve
    from vitmed.commands.stress import stress as stress
    from vitmed.commands.summary import build_model as build_model
    from vitmed.commands.summary import summary as summary
    from vitmed.commands.train import train as train
    from vitmed.commands.tune import tune as tune
    from vitmed.core.errors import VitmedError as VitmedError
    from vitmed.inference.load import load as load

__version__ = "0.3.0"
_VERBS = (
    "auto bundle check compare cross_validate demo diff ensemble evaluate explain export merge monitor plan predict "
    "predict_shard pretrain probe runs sample_size serve stress summary train tune"
)
_PUBLIC = {  # name -> the module that defines it; loaded when the name is used, so that `vitmed --help` loads no torch
    **{name: f"vitmed.commands.{name}" for name in _VERBS.split()},
    "build_model": "vitmed.commands.summary",
    "load": "vitmed.inference.load",
    "VitmedError": "vitmed.core.errors",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:  # PEP 562
    if name not in _PUBLIC:
        raise AttributeError(f"module 'vitmed' has no attribute '{name}'")
    found = getattr(import_module(_PUBLIC[name]), name)
    return found if isinstance(found, type) else import_module("vitmed.core.options").checked(found)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
