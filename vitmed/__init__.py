"""vitmed: fine-tune Vision Transformers on folders of medical images, and evaluate them defensibly.

Research use only; not a medical device.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"
_PUBLIC = {  # name -> the module that defines it; loaded when the name is used, so that `vitmed --help` loads no torch
    "NodeSettings": "vitmed.commands.pacs.settings",
    "VitmedError": "vitmed.core.errors",
    "build_model": "vitmed.commands.summary",
    "bundle": "vitmed.commands.bundle",
    "check": "vitmed.commands.check",
    "compare": "vitmed.commands.compare",
    "demo": "vitmed.commands.demo",
    "evaluate": "vitmed.commands.evaluate",
    "explain": "vitmed.commands.explain",
    "export": "vitmed.commands.export",
    "load": "vitmed.commands.load",
    "lr_find": "vitmed.commands.lr_find",
    "merge": "vitmed.commands.merge",
    "monitor": "vitmed.commands.monitor",
    "plan": "vitmed.commands.plan",
    "predict": "vitmed.commands.predict",
    "predict_shard": "vitmed.commands.predict_shard",
    "pretrain": "vitmed.commands.pretrain",
    "probe": "vitmed.commands.probe",
    "push": "vitmed.commands.push",
    "sample_size": "vitmed.commands.sample_size",
    "serve": "vitmed.commands.serve",
    "stress": "vitmed.commands.stress",
    "summary": "vitmed.commands.summary",
    "train": "vitmed.commands.train",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:  # PEP 562
    if name not in _PUBLIC:
        raise AttributeError(f"module 'vitmed' has no attribute '{name}'")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
