"""vitmed: fine-tune Vision Transformers on folders of medical images, and evaluate them defensibly.

Research use only; not a medical device.
"""

from typing import Any

__version__ = "0.1.0"
__all__ = [
    "VitmedError",
    "build_model",
    "check",
    "compare",
    "demo",
    "evaluate",
    "explain",
    "lr_find",
    "plan",
    "predict",
    "pretrain",
    "probe",
    "stress",
    "summary",
    "train",
]


def __getattr__(name: str) -> Any:  # PEP 562: `vitmed --help` and `import vitmed` load no torch
    if name == "VitmedError":
        from vitmed.errors import VitmedError

        return VitmedError
    if name in __all__:
        from vitmed import commands

        return getattr(commands, name)
    raise AttributeError(f"module 'vitmed' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
