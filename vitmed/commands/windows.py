"""The window of a run: settled over its training images before anything else is made."""

from __future__ import annotations

from vitmed.config import AnyConfig
from vitmed.images import settle
from vitmed.splits import Splits
from vitmed.ui import Ui


def settle_window(config: AnyConfig, splits: Splits, ui: Ui) -> AnyConfig:
    """The configuration with a definite `data.window`; says what was found.

    Raises:
        UsageError: a package that reads such files is not installed.
    """
    paths = [splits.root / sample.path for sample in splits.samples["train"]]
    with ui.bar("looking at training images") as advance:
        found = settle(paths, config.data.window, config.data.frame, advance)
    for line in found.told:
        ui.say(line)
    for line in found.warned:
        ui.warn(line)
    window = list(found.window) if isinstance(found.window, tuple) else found.window
    return config.model_copy(update={"data": config.data.model_copy(update={"window": window})})
