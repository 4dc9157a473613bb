"""A soup: the mean of the weights of runs that began with the same weights, as one network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vitmed.commands.evaluate import evaluate
from vitmed.core.errors import UsageError
from vitmed.core.files import write_text
from vitmed.core.hardware import pick_device
from vitmed.core.load_config import store_paths
from vitmed.core.run_folder import RunFolder
from vitmed.core.stored_paths import find_path
from vitmed.core.text import listed
from vitmed.core.ui import Ui
from vitmed.data.loading import Images
from vitmed.data.samples import labelled_by
from vitmed.decisions.selection import loss_of
from vitmed.models.inference import logits_of, mean_features, predict_all
from vitmed.report.headline import Evaluation
from vitmed.training.checkpoint import Checkpoint, save_checkpoint
from vitmed.training.fit_policy import fit_decision_policy


def make_soup(members: Sequence[Checkpoint], place: RunFolder, ui: Ui) -> tuple[list[float], Evaluation]:
    """Average weights run by run, the best first, and keep each run that does not raise the loss on validation.

    The greedy soup of Wortsman et al., ICML 2022, arXiv 2203.05482, recipe 1. Writes best.pt with a policy of its own,
    and its evaluation on validation.

    Returns:
        the share of each run; the evaluation.

    Raises:
        UsageError: runs of other networks, other starts or other images.
    """
    first, names = members[0], [one.path.parent.resolve().name for one in members]
    _check(members)
    root = first.data_root()
    splits, how = first.splits, first.preprocessing
    images = {name: Images(root, splits.samples[name], how, splits.target) for name in ("train", "val")}
    device = pick_device("auto")

    def loss(weights: dict[str, torch.Tensor]) -> float:
        model = replace(first, weights=weights).model().to(device)

        def forward(x: torch.Tensor) -> torch.Tensor:
            return logits_of(model, mean_features(model, x, first.config.augment.views))

        logits = predict_all(model, images["val"], device, forward=forward)
        positive = first.config.data.positive
        return loss_of(labelled_by(first.splits.target, first.classes, first.splits.samples["val"], logits, positive))

    losses = [loss(one.weights) for one in members]
    order = np.argsort(losses, kind="stable").tolist()
    chosen, best = [order[0]], losses[order[0]]
    for number in order[1:]:
        trial = loss(_mean([members[i].weights for i in (*chosen, number)]))
        ui.say(f"{names[number]}: alone {losses[number]:.4f}, in the soup {trial:.4f} (validation loss)")
        if trial <= best:
            chosen, best = [*chosen, number], trial
    if len(chosen) == 1:
        ui.warn(f"no other run lowers the loss of {names[chosen[0]]}, so the soup is that run alone")
    place.path.mkdir(parents=True, exist_ok=True)
    weights = _mean([members[i].weights for i in chosen])
    save_checkpoint(
        place.best, config=first.config, splits=first.splits, hashes=first.hashes, weights=weights,
        record=first.record, seen=first.seen, fingerprints=first.fingerprints,
    )  # fmt: skip
    write_text(place.config, store_paths(first.config, place.path).to_yaml())
    fit_decision_policy(place.best, images, device, ui)
    val = evaluate(place.best, split="val", ui=ui)
    of = listed([names[i] for i in chosen])
    ui.say(f"{place.path}: the mean of the weights of {of}; to test it once: vitmed evaluate {place.path}")
    return [(i in chosen) / len(chosen) for i in range(len(members))], val


def _check(members: Sequence[Checkpoint]) -> None:
    """Raises UsageError unless the weights of the runs can be averaged."""
    first = members[0]
    start = _start(first)
    for other in members[1:]:
        if other.config.model.model_dump(exclude={"weights"}) != first.config.model.model_dump(exclude={"weights"}):
            raise UsageError(f"{other.path}: another network than {first.path}", "--way mean joins different networks")
        if start is None or _start(other) != start:
            problem = f"{first.path} and {other.path} did not begin with the same weights (--weights)"
            raise UsageError(f"{problem}, so their mean is no working network", "--way mean")
        if other.hashes["val"] != first.hashes["val"] or other.preprocessing != first.preprocessing:
            raise UsageError(f"{other.path}: other validation images or preprocessing than {first.path}", "--way mean")


def _start(saved: Checkpoint) -> Path | None:
    """The weights that a run began with; None for random ones."""
    weights = saved.config.model.weights
    return None if weights is None else find_path(weights, saved.path.parent)


def _mean(weights: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The mean of tensors by name, in float64."""
    found = {}
    for name, value in weights[0].items():
        if value.is_floating_point():
            mean = torch.stack([one[name].double() for one in weights]).mean(dim=0)
            found[name] = mean.to(value.dtype)
        else:
            found[name] = value
    return found
