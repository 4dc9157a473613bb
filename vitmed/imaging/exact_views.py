"""Views: exact copies of an image, mirrored and turned, over which a network's output is averaged (test-time
augmentation). Which of them are safe follows from the augmentation policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vitmed.core.errors import UsageError
from vitmed.imaging.augmentation import POLICIES

if TYPE_CHECKING:  # the names of views are known without torch
    import torch

Symmetry = tuple[int, bool]  # quarter turns anticlockwise, after mirroring left-right or not


def views_of(x: torch.Tensor, views: str) -> Iterator[torch.Tensor]:
    """The views of images (B, C, S, S), each of this shape and laid out in memory as `Preprocessing.normalise` does.

    Args:
        views: a key of `VIEWS`.
    """
    import torch

    pixels = x.permute(0, 2, 3, 1)  # (B, S, S, C)
    for turns, mirrored in VIEWS[views]:
        changed = torch.rot90(pixels.flip(2) if mirrored else pixels, turns, (1, 2))
        yield changed.contiguous().permute(0, 3, 1, 2)


def safe_views(policy: str, flips: bool) -> str:
    """The key of the most views that this augmentation policy calls safe, with or without its flips."""
    mirrors, turns = flips and POLICIES[policy].flips, POLICIES[policy].turns
    return ("all" if mirrors else "turns") if turns else ("mirror" if mirrors else "one")


def refuse_views(policy: str, flips: bool, views: str) -> None:
    """Raise UsageError for views with a copy that the augmentation policy does not make in training."""
    safe = set(VIEWS[safe_views(policy, flips)])
    if not set(VIEWS[views]) <= safe:
        fit = [name for name, symmetries in VIEWS.items() if set(symmetries) <= safe]
        raise UsageError(
            f"views {views}: has copies of an image that policy '{policy}' does not make"
            f"{'' if flips else ' without flips'}, so they may mean something else",
            f"--set augment.views={' or '.join(fit)}, or the policy of your modality",
        )


VIEWS: dict[str, tuple[Symmetry, ...]] = {
    "one": ((0, False),),
    "mirror": ((0, False), (0, True)),
    "flips": ((0, False), (0, True), (2, False), (2, True)),
    "turns": tuple((k, False) for k in range(4)),
    "all": tuple((k, mirrored) for mirrored in (False, True) for k in range(4)),
}
