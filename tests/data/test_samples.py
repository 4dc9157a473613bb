"""What is said of samples and splits, worked by hand: counts, labels in words, shares, notes on what is rare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vitmed.core.base_models import NO_FINDING, UNKNOWN, Target
from vitmed.core.config import DataConfig
from vitmed.core.errors import UsageError
from vitmed.data import loading
from vitmed.data.label_kinds import LabelRequest, number_in
from vitmed.data.loading import EpochBatches, Images, images_of, pick_workers
from vitmed.data.samples import LISTED, Sample, Splits, describe_split, labelled_by, proportion_lines
from vitmed.data.splits import notes_on_rare
from vitmed.imaging.preprocessing import Preprocessing

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def of_classes() -> Splits:
    """Three images in train, two in val, one in test; patient P is in two splits."""
    samples = {
        "train": (Sample("a/1.png", 0, "P"), Sample("a/2.png", 0, "Q"), Sample("b/3.png", 1, "R")),
        "val": (Sample("a/4.png", 0, "P"), Sample("b/5.png", 1, "S")),
        "test": (Sample("b/6.png", 1, "T"),),
    }
    return Splits(Path("x"), ("a", "b"), samples, made={"val": "15 % of train"}, patients="by regex")


def of_findings(rows: dict[str, list[tuple[float, ...]]], names: tuple[str, ...] = ("edema", "mass")) -> Splits:
    samples = {
        split: tuple(Sample(f"{split}{i}.png", 0, None, (), tuple(values)) for i, values in enumerate(part))
        for split, part in rows.items()
    }
    return Splits(Path("x"), names, samples, target=Target(kind="findings"), bins=(*names, NO_FINDING))


def test_splits_of_classes() -> None:
    splits = of_classes()
    assert [splits.counts(name) for name in ("train", "val", "test")] == [[2, 1], [1, 1], [0, 1]]
    assert (splits.outputs, splits.choices, splits.strata) == (2, 2, ("a", "b"))
    assert splits.text_of(splits.samples["train"][2]) == "b" and splits.targets("train").shape == (3, 0)
    assert splits.groups() == {"train": {"P", "Q", "R"}, "val": {"P", "S"}, "test": {"T"}}
    assert splits.shared() == {"P": ["train", "val"]}
    assert splits.grouped and splits.unit == "patient"
    unknown = replace(splits, samples=splits.samples | {"test": (Sample("b/6.png", 1, None),)})
    assert not unknown.grouped and unknown.unit == "image" and unknown.groups()["test"] == set()
    assert describe_split(splits, "train") == "2 + 1" and proportion_lines(splits) == []
    assert proportion_lines(replace(splits, recognised="2 classes")) == ["labels: 2 classes"]
    moved = replace(splits, samples=splits.samples | {"test": (Sample("b/6.png", 1, "U"),)})
    train = splits.samples["train"]
    read = labelled_by(splits.target, splits.classes, train, np.zeros((3, 2), np.float32), positive="b")
    assert read.labels.tolist() == [0, 0, 1] and read.groups == ("P", "Q", "R") and read.positive == "b"
    with_site = [one._replace(columns=(site, "x")) for one, site in zip(train, "NSN", strict=True)]
    read = labelled_by(splits.target, splits.classes, with_site, np.zeros((3, 2), np.float32), columns=("site", "more"))
    assert read.columns == {"site": ("N", "S", "N"), "more": ("x", "x", "x")} and read.paths[2] == "b/3.png"
    assert splits.digest == of_classes().digest != moved.digest and len(splits.digest) == 64


def test_splits_of_findings_and_of_a_number() -> None:
    splits = of_findings({"train": [(1, 0), (0, UNKNOWN), (1, 1), (0, 0)], "val": [(0, 1)]})
    assert [splits.text_of(one) for one in splits.samples["train"]] == ["edema", "mass?", "edema|mass", NO_FINDING]
    assert (splits.outputs, splits.choices) == (2, 2) and splits.strata == ("edema", "mass", NO_FINDING)
    assert describe_split(splits, "train") == f"2 with {NO_FINDING}"
    found = labelled_by(splits.target, splits.classes, splits.samples["train"], np.zeros((4, 2), np.float32))
    assert found.labels.tolist() == [[1, 0], [0, UNKNOWN], [1, 1], [0, 0]] and found.groups is None
    numbers = {"train": tuple(Sample(f"{v}.png", 0, "P", (), (v,)) for v in (1.5, 2.0, 4.0)), "val": ()}
    of_number = Splits(Path("x"), ("age",), numbers, target=Target(kind="number", unit="years", centre=2.0, spread=0.5))
    assert (of_number.outputs, of_number.choices) == (2, 0) and of_number.text_of(numbers["train"][0]) == "1.5"
    assert describe_split(of_number, "train") == "mean 2.5, 1.5 to 4 years"
    assert describe_split(replace(of_number, target=Target(kind="number")), "train") == "mean 2.5, 1.5 to 4"
    found = labelled_by(of_number.target, ("age",), numbers["train"], np.zeros((3, 2), np.float32), columns=())
    assert found.labels.tolist() == [1.5, 2, 4] and found.groups == ("P",) * 3
    some = (*numbers["train"], Sample("x.png", 0, None, (), (1.0,)))
    assert labelled_by(of_number.target, ("age",), some, np.zeros((4, 2), np.float32)).groups is None
    how = Preprocessing(16, 3, "pad", "half")
    assert images_of(of_number, how)["train"].targets.tolist() == [-1, 0, 4]
    assert images_of(splits, how)["train"].targets.tolist() == [[1, 0], [0, -1], [1, 1], [0, 0]]
    assert images_of(of_classes(), how)["train"].targets.tolist() == [0, 0, 1]


def test_the_lines_of_findings() -> None:
    """Positives and their share of the known labels in each split; a finding of which nothing is known says so."""
    splits = of_findings({"train": [(1, 0), (0, UNKNOWN), (1, 1), (0, 0)], "val": [(0, UNKNOWN), (1, UNKNOWN)]})
    assert proportion_lines(splits) == [
        "positives          train            val",
        "edema           2  50.0%       1  50.0%",
        "mass            1  33.3%      not known",
    ]
    names = tuple(f"f{k}" for k in range(LISTED + 2))
    many = of_findings({"train": [(1,) * len(names)]}, names)
    lines = proportion_lines(many)
    assert len(lines) == 1 + LISTED + 1 and lines[-1] == "and 2 more findings"
    exact = of_findings({"train": [(1,) * LISTED]}, names[:LISTED])
    assert len(proportion_lines(exact)) == 1 + LISTED


def test_notes_on_findings_that_are_too_rare() -> None:
    """Four positives in train are few, five are not; validation chooses, the test says."""
    train = [(int(i < 4), int(i < 5), 1) for i in range(12)]
    names = ("few", "enough", "most")
    good = [(1, 1, 1), (0, 0, 0)]
    few = "1 finding has fewer than 5 positives in train, too few to learn: few (4)"
    assert notes_on_rare(of_findings({"train": train, "val": good, "test": good}, names)) == [few]
    val = [(0, 1, 1), (0, 1, UNKNOWN)]
    test = [(1, 0, 1), (1, 0, 0), (UNKNOWN, 0, 0)]
    assert notes_on_rare(of_findings({"train": train, "val": val, "test": test}, names)) == [
        "no image of val has few, so nothing can be chosen for it",
        "every image with a label of val has enough, most, so nothing can be chosen for them",
        "no image of test has enough, so nothing can be said of it",
        "every image with a label of test has few, so nothing can be said of it",
        few,
    ]


def test_batches_are_no_larger_than_the_set() -> None:
    for images, size, batches in ((16, 4, 4), (19, 4, 4), (3, 4, 1), (4, 4, 1), (5, 4, 1)):
        sampler = EpochBatches(np.zeros(images, np.int64), size, 0, balanced=False)
        assert (sampler.size, sampler.batches, len(sampler)) == (min(size, images), batches, batches)
        assert all(len(batch) == sampler.size for batch in sampler)
    halves = [EpochBatches(np.zeros(8, np.int64), 4, 0, False, slice(rank, None, 2)) for rank in (0, 1)]
    for first, second in zip(*halves, strict=True):
        assert len(first) == len(second) == 2 and not {index for _, index in first} & {index for _, index in second}


def test_megabytes_of_the_squares() -> None:
    samples = [Sample(f"{i}.png", 0, None) for i in range(10)]
    images = Images(Path("x"), samples, Preprocessing(1024, 3, "pad", "half"))
    assert images.megabytes == 30 and len(images) == 10 and not images.in_memory


@pytest.mark.parametrize(
    ("cores", "ranks", "device", "augments", "in_memory", "workers"),
    [
        (16, 1, CPU, True, True, 8), (16, 1, CPU, False, True, 0), (16, 1, CPU, False, False, 8),
        (1, 1, CPU, True, True, 1),
        (16, 1, CUDA, True, True, 15), (40, 1, CUDA, True, True, 16), (16, 2, CUDA, True, True, 7),
        (1, 1, CUDA, True, True, 1),
        (16, 2, CPU, True, False, 4),
    ],
)  # fmt: skip
def test_how_many_processes_load(
    cores: int, ranks: int, device: torch.device, augments: bool, in_memory: bool, workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Half of the cores where the CPU also trains; else all but the one that launches kernels, at most 16."""
    monkeypatch.setattr(loading, "cores", lambda: cores)
    assert pick_workers(None, augments, in_memory, device, ranks) == workers
    assert pick_workers(5, augments, in_memory, device, ranks) == 5
    if ranks == 1:
        assert pick_workers(None, augments, in_memory, device) == workers


@pytest.mark.parametrize(
    ("fields", "ordinal", "kind", "order"),
    [
        ({}, (), "auto", ()),
        ({"finding": ["edema"]}, (), "findings", ()),
        ({"unit": "mm"}, (), "number", ()),
        ({}, ("low", "high"), "grades", ("low", "high")),
        ({"target": "grades"}, ("low", "high"), "grades", ("low", "high")),
        ({"target": "classes"}, ("low", "high"), "classes", ()),
        ({"target": "number", "unit": "mm"}, (), "number", ()),
    ],
)
def test_the_kind_that_is_asked_for(
    fields: dict[str, object], ordinal: tuple[str, ...], kind: str, order: tuple[str, ...]
) -> None:
    fields = {{"finding": "findings"}.get(name, name): value for name, value in fields.items()}
    request = LabelRequest.of(DataConfig(**fields), ordinal)  # type: ignore[arg-type]
    assert (request.kind, request.order) == (kind, order)
    if kind in ("findings", "number"):
        with pytest.raises(UsageError, match=f"--target {kind}: folders name one class"):
            request.check_folders()
    else:
        request.check_folders()


@pytest.mark.parametrize(
    ("fields", "ordinal", "flag"),
    [
        ({"target": "classes", "findings": ["edema"]}, (), "--finding"),
        ({"target": "grades", "unit": "mm"}, (), "--unit"),
        ({"target": "number"}, ("low", "high"), "--ordinal"),
        ({"target": "classes", "unit": "mm"}, ("low", "high"), "--unit"),
        ({"findings": ["edema"]}, ("low", "high"), "--ordinal"),
    ],
)
def test_kinds_that_exclude_each_other(fields: dict[str, object], ordinal: tuple[str, ...], flag: str) -> None:
    with pytest.raises(UsageError, match=f"^{flag} is for --target"):
        LabelRequest.of(DataConfig(**fields), ordinal)  # type: ignore[arg-type]


def test_the_number_in_a_cell() -> None:
    assert [number_in(cell) for cell in ("1.5", "-2", "1e3", "word", "1_000", "inf")] == [
        1.5,
        -2,
        1000,
        None,
        None,
        np.inf,
    ]
    assert all(np.isnan(number_in(cell)) for cell in ("", "NA", "n/a", "NaN", "null", "Unknown", "?"))
