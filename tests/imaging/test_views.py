"""Views: exact copies that form a group, and only those that the augmentation policy makes in training."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

from vitmed.core.config import AugmentConfig
from vitmed.core.errors import UsageError
from vitmed.imaging.augmentation import POLICIES, VIEWS, refuse_views, safe_views, views_of
from vitmed.imaging.preprocessing import Preprocessing

IMAGE = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
COPIES = {
    "one": [IMAGE],
    "mirror": [IMAGE, IMAGE[:, ::-1]],
    "flips": [IMAGE, IMAGE[:, ::-1], IMAGE[::-1], IMAGE[::-1, ::-1]],
    "turns": [np.rot90(IMAGE, k) for k in range(4)],
    "all": [np.rot90(image, k) for image in (IMAGE, IMAGE.transpose(1, 0, 2)) for k in range(4)],
}


def normalised(pixels: np.ndarray) -> torch.Tensor:
    return Preprocessing(16, 3, "pad", "imagenet").normalise(torch.from_numpy(pixels.copy())[None])


def bits(x: torch.Tensor) -> bytes:
    return x.contiguous().numpy().tobytes()


def test_every_view_is_a_choice_of_the_configuration() -> None:
    assert set(VIEWS) == set(COPIES) == set(get_args(AugmentConfig.model_fields["views"].annotation))


@pytest.mark.parametrize("views", VIEWS)
def test_the_views_are_the_normalised_copies_to_the_bit(views: str) -> None:
    found = list(views_of(normalised(IMAGE), views))
    assert {bits(x) for x in found} == {bits(normalised(copy)) for copy in COPIES[views]}
    assert len(found) == len(COPIES[views]) and bits(found[0]) == bits(normalised(IMAGE))
    assert {x.stride() for x in found} == {normalised(IMAGE).stride()}  # the same kernels compute each
    for copy in COPIES[views]:  # have the same views: a mean over them does not change with a turn or a mirror
        assert {bits(x) for x in views_of(normalised(copy), views)} == {bits(x) for x in found}


def test_views_that_training_does_not_make_are_refused() -> None:
    assert {name: safe_views(name, True) for name in ("medical", "chest_xray", "ct_mri", "none")} == dict.fromkeys(
        ("medical", "chest_xray", "ct_mri", "none"), "one"
    )
    for policy in POLICIES:
        for flips in (True, False):
            refuse_views(policy, flips, safe_views(policy, flips))
            refuse_views(policy, flips, "one")
            if not flips:
                with pytest.raises(UsageError, match="without flips"):
                    refuse_views(policy, flips, "mirror")
    with pytest.raises(UsageError, match="views all") as caught:
        refuse_views("fundus", True, "all")
    assert "augment.views=one or mirror," in caught.value.fix
    with pytest.raises(UsageError):
        refuse_views("chest_xray", True, "turns")
