"""The configuration of a network that trains in a second: `tiny_config(train__lr=0.1)` sets train.lr."""

from __future__ import annotations

from typing import Any

from vitmed.core.config import Config
from vitmed.core.load_config import load_config

SIZES = {"image_size": 16, "patch_size": 8, "width": 16, "depth": 1, "heads": 2}


def tiny_config(**fields: Any) -> Config:
    tiny = {f"model.{name}": value for name, value in SIZES.items()} | {"train.batch_size": 8}
    return load_config(None, tiny | {key.replace("__", "."): value for key, value in fields.items()})
