"""The commands as plain functions: what the command line calls and `import vitmed` offers.

Each is loaded when it is asked for, so that `predict` does not wait for what only training needs.
"""

from importlib import import_module
from typing import Any

MODULES = {
    "train": "training",
    "TrainResult": "training",
    "pretrain": "pretraining",
    "PretrainResult": "pretraining",
    "evaluate": "evaluation",
    "Evaluation": "evaluation",
    "predict": "prediction",
    "compare": "comparing",
    "Comparison": "comparing",
    "explain": "explaining",
    "Explanation": "explaining",
    "stress": "stressing",
    "Stress": "stressing",
    "probe": "probing",
    "check": "checking",
    "DataCheck": "checking",
    "plan": "planning",
    "lr_find": "rate_finding",
    "build_model": "summaries",
    "summary": "summaries",
    "demo": "demonstration",
    "weights_table": "public_weights",
    "fetch_weights": "public_weights",
    "find_weights": "public_weights",
    "datasets_table": "dataset_cards",
    "fetch_dataset": "datasets",
    "import_dataset": "datasets",
}
__all__ = list(MODULES)


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'vitmed.commands' has no attribute '{name}'")
    return getattr(import_module(f"vitmed.commands.{MODULES[name]}"), name)
