"""`PillowResize` beside Pillow itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.exported_graph import PillowResize

SIZES = ((32, 32), (90, 131), (40, 300), (25, 21), (64, 17), (301, 12))  # (height, width), smaller and larger than 32
LIMITS = {"nearest": 0, "bilinear": 1, "bicubic": 5, "lanczos": 5}  # grey levels; the last two can overshoot


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "nearest"])
@pytest.mark.parametrize("resize", ["pad", "squash", "crop"])
def test_the_square_is_that_of_pillow(resize: str, interpolation: str, channels: int) -> None:
    """To the bit where Pillow resizes the width first; Pillow 13 begins with the height of tall images."""
    how = Preprocessing(32, channels, resize, "half", interpolation=interpolation)
    rng, network = np.random.default_rng(0), PillowResize(how)
    for height, width in SIZES:
        coarse = rng.integers(0, 256, (max(1, height // 4), max(1, width // 4), channels), dtype=np.uint8)
        smooth = Image.fromarray(coarse.squeeze(2) if channels == 1 else coarse).resize((width, height))
        theirs = how.fit(smooth)
        images = torch.from_numpy(np.asarray(smooth).reshape(1, height, width, channels).copy())
        ours = network(images.expand(2, -1, -1, -1)).numpy()
        assert ours.shape == (2, 32, 32, channels) and (ours[0] == ours[1]).all()
        limit = 0 if height <= width else LIMITS[interpolation]
        assert np.abs(ours[0].astype(int) - theirs).max() <= limit, (height, width)


def test_a_square_of_the_right_size_is_unchanged() -> None:
    images = torch.randint(0, 256, (3, 24, 24, 3), dtype=torch.uint8)
    for interpolation in ("bilinear", "bicubic", "lanczos", "nearest"):
        how = Preprocessing(24, 3, "pad", "half", interpolation=interpolation)
        assert torch.equal(PillowResize(how)(images), images)
