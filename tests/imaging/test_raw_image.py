"""Windows of images as large as a mammogram, and of values that float32 cannot hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitmed.imaging.decode import to_8_bit
from vitmed.imaging.raw_image import RawImage
from vitmed.imaging.window import ROWS, FileWindow, Linear, Sigmoid, Table, asked_window, file_window_index, to_grey

ENTRIES = np.linspace(255, 0, 4096).astype(np.float32)


@pytest.mark.parametrize(
    ("window", "formula"),
    [
        (Linear(0.0, 4095.0), lambda x: x / 4095 * 255),
        (Linear(2000.0, 2000.0), lambda x: np.where(x > 2000, 255, 0)),
        (Sigmoid(2000.0, 500.0), lambda x: 255 / (1 + np.exp(-4 * (x - 2000) / 500))),
        (Table(0, ENTRIES), lambda x: 255 - x / 4095 * 255),
    ],
)
def test_every_value_of_a_large_image_is_mapped(window: FileWindow, formula: object) -> None:
    """A mammogram has more values than are mapped at a time; the last rows are mapped as the first are."""
    width, height = 1024, ROWS // 1024 + 3
    values = (np.arange(width * height) * 7 % 4093).astype(np.uint16).reshape(height, width)
    grey = to_grey(values, window)
    assert grey.shape == values.shape and grey.dtype == np.uint8
    expected = np.asarray(formula(np.arange(4093.0)))  # type: ignore[operator]
    assert np.abs(grey - expected[values]).max() <= 0.5 + 1e-3
    assert np.array_equal(values.ravel()[:5], [0, 7, 14, 21, 28])  # the image itself is left as it is


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.float64])
def test_neighbours_that_float32_cannot_tell_apart(dtype: type) -> None:
    values = np.array([2**24 + 1, 2**24 + 2, 2**24 + 3, 2**24 + 4], dtype)
    assert to_grey(values, Linear(2**24 + 1, 2**24 + 4)).tolist() == [0, 85, 170, 255]


def test_the_window_of_floats_from_0_to_1_is_no_threshold() -> None:
    assert asked_window("0.5/1") == Linear(0, 1) and asked_window("128.5/256") == Linear(0.5, 255.5)


@pytest.mark.parametrize(("window", "values", "grey"), [
    ("1/2", [0, 0.5, 1, 2], [0, 63.75, 127.5, 255]),  # PS3.3, C.11.2.1.3.2: ((x - centre) / width + 0.5) * 255
    ("0.5/1.2", [0, 0.5, 1.1], [21.25, 127.5, 255]),
    ("128/256", [0, 1, 255], [0, 1, 255]),  # whole numbers, also if float: C.11.2.1.2.1, from LOW to HIGH
])  # fmt: skip
def test_the_window_asked_for_by_dicom_s_formulas(window: str, values: list[float], grey: list[float]) -> None:
    raw = RawImage(np.array([values], np.float32), 32)
    assert np.abs(np.asarray(to_8_bit(Path("a.npy"), raw, 1, window)) - grey).max() <= 0.5


def test_linear_windows_by_hand() -> None:
    """LINEAR: from centre - 0.5 - (width - 1) / 2, a threshold for a width of 1; LINEAR_EXACT without halves."""
    assert Linear.of(50, 101) == Linear(-0.5, 99.5) and Linear.of(50, 100, exact=True) == Linear(0, 100)
    grey = Linear(10.0, 60.0).grey(np.array([10.0, 35, 60, 5, 70]))
    assert grey == pytest.approx([0, 127.5, 255, -25.5, 306])
    threshold = Linear.of(50, 1)
    assert threshold == Linear(49.5, 49.5) and threshold.grey(np.array([49, 49.5, 50])).tolist() == [0, 0, 255]
    assert [file_window_index(name) for name in ("dicom", "dicom:0", "dicom:3", "auto", None, (0.0, 1.0))] == [
        0, 0, 3, None, None, None,
    ]  # fmt: skip
