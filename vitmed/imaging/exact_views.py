"""Views: exact copies of an image, mirrored and turned, over which a network's output is averaged (test-time
augmentation). Which of them are safe follows from the augmentation policy, and from classes that are sides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from vitmed.core.errors import UsageError
from vitmed.imaging.augmentation import POLICIES

if TYPE_CHECKING:  # the names of views are known without torch
    import torch

Symmetry = tuple[int, bool]  # quarter turns anticlockwise, after mirroring left-right or not


def views_of(x: torch.Tensor, views: str) -> Iterator[torch.Tensor]:
    """The views (a key of `VIEWS`) of images (B, C, S, S), each of this shape and laid out in memory as
    `Preprocessing.normalise` does."""
    import torch

    pixels = x.permute(0, 2, 3, 1)  # (B, S, S, C)
    for turns, mirrored in VIEWS[views]:
        yield torch.rot90(pixels.flip(2) if mirrored else pixels, turns, (1, 2)).contiguous().permute(0, 3, 1, 2)


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


def refuse_flips(classes: Iterable[str], policy: str, flips: bool) -> None:
    """Raise UsageError if the policy mirrors and two class names differ only by their side, as kidney-L and kidney-R.

    A side is a separate word (`kidney_l`, `kidneyL`), never a letter within one.
    """
    if flips and POLICIES[policy].flips and (pair := mirrored_pair(classes)) is not None:
        keep = ", ".join(key for key, value in POLICIES.items() if not value.flips)
        raise UsageError(
            f"classes '{pair[0]}' and '{pair[1]}' differ only by left and right, and policy '{policy}' "
            "mirrors images: a mirrored image would carry the wrong label",
            f"--set augment.flips=false, or a policy without flips ({keep})",
        )


def mirrored_pair(classes: Iterable[str]) -> tuple[str, str] | None:
    """Two class names that differ only by their side, the left one first; None if there are none."""
    seen: dict[tuple[str, ...], dict[str, str]] = {}  # words without the side -> {"left" or "right": class}
    for name in classes:
        words = list[str]()  # in lower case, split at punctuation, digits, capitals and the long words for sides
        for part in _LONG_SIDES.split(name):
            split = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+", part)
            words += map(str.lower, [part] if _LONG_SIDES.fullmatch(part) else split)
        sides = {_SIDE_OF[word] for word in words if word in _SIDE_OF}
        if len(sides) != 1:
            continue  # neither, or both as in left-to-right shunt
        pair = seen.setdefault(tuple(sorted("<side>" if word in _SIDE_OF else word for word in words)), {})
        pair[sides.pop()] = name
        if len(pair) == 2:
            return pair["left"], pair["right"]
    return None


_LEFT = "l left lt lft lhs le os sinister sinistra sinistro sx links linke linker linkes gauche izquierda izquierdo"
_RIGHT = (
    "r right rt rgt rhs re od dexter dextra destra destro dx rechts rechte rechter rechtes droite droit derecha derecho"
)
_SIDE_OF = dict.fromkeys(_LEFT.split(), "left") | dict.fromkeys(_RIGHT.split(), "right")
_LONG_SIDES = re.compile(
    f"({'|'.join(sorted((w for w in _SIDE_OF if len(w) > 3), key=len, reverse=True))})", re.IGNORECASE
)
VIEWS: dict[str, tuple[Symmetry, ...]] = {
    "one": ((0, False),),
    "mirror": ((0, False), (0, True)),
    "flips": ((0, False), (0, True), (2, False), (2, True)),
    "turns": tuple((k, False) for k in range(4)),
    "all": tuple((k, mirrored) for mirrored in (False, True) for k in range(4)),
}
