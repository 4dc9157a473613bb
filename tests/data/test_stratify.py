"""Splits in proportion to several findings at once, by patient."""

from __future__ import annotations

import csv
import itertools
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from label_sets import by_path, label_set, split

from vitmed.core.base_models import NO_FINDING, Target
from vitmed.core.config import DataConfig
from vitmed.core.errors import DataError
from vitmed.data.label_kinds import finding_strata
from vitmed.data.samples import ALL, Sample, Splits
from vitmed.data.splits import (
    _enough_patients,
    balanced_parts,
    grouped_folds,
    kinds_of,
    patient_share,
    share_by_kind,
    split_off,
    stratified_sample,
    take_fold,
    units_of,
    without_unlearnable,
)

FINDINGS = ("common", "usual", "rare", "rarest")


def drawn(patients: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Findings (S, 4), which patients keep, and the patient of each image."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(patients), rng.geometric(0.25, patients))
    risk = rng.beta(0.5, [1.5, 4, 20, 60], (patients, 4))
    return (rng.random((len(codes), 4)) < risk[codes]).astype(float), codes


def shares(targets: np.ndarray, number: np.ndarray, part: int) -> np.ndarray:
    """The share of each finding's positives, and of all images, in a part."""
    inside = number == part
    return np.append(targets[inside].sum(axis=0) / targets.sum(axis=0), inside.mean())


@pytest.mark.parametrize("seed", range(5))
def test_folds_share_every_finding_and_divide_no_patient(seed: int) -> None:
    """Far closer to a fifth than random folds of patients."""
    targets, codes = drawn(seed=seed)
    number = balanced_parts(codes, kinds_of(np.zeros(len(codes), int), targets), np.full(5, 0.2), seed)[codes]
    assert set(number.tolist()) == set(range(5)) and len(np.unique(codes * 5 + number)) == codes.max() + 1
    mixed = np.random.default_rng(seed).permutation(codes.max() + 1)[codes] % 5
    ours, random = (
        np.abs([shares(targets, folds, fold) - 0.2 for fold in range(5)]).mean(axis=0) for folds in (number, mixed)
    )
    assert ours[-1] < 0.01 and ours[:2].max() < 0.01
    assert ours.sum() < 0.4 * random.sum()
    taken = share_by_kind(np.zeros(len(codes), int), targets, codes, 0.15, seed)  # a share holds its part of each
    found = shares(targets, taken, True)
    assert np.abs(found[[0, 1, -1]] - 0.15).max() < 0.02 and np.abs(found - 0.15).max() < 0.1
    assert not np.intersect1d(codes[taken], codes[~taken]).size


@pytest.mark.parametrize("share", [0.02, 0.05, 0.2])
def test_the_share_of_images_comes_before_that_of_findings(share: float) -> None:
    """200 findings of 30 patients: the part differs from 15 % by at most half of the largest patient, unless too many
    patients are the only one with a finding."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        codes = np.repeat(np.arange(30), rng.integers(1, 8, 30))
        targets = (rng.random((len(codes), 200)) < share).astype(float)
        taken = share_by_kind(np.zeros(len(codes), int), targets, codes, 0.15, seed)
        held = np.stack([np.bincount(codes, column, minlength=30) > 0 for column in targets.T], axis=1)  # (P, F)
        alone = held[:, held.sum(axis=0) == 1].any(axis=1)
        assert not alone[codes[taken]].any()
        if (~alone)[codes].mean() >= 0.15:
            assert abs(taken.sum() - 0.15 * len(codes)) <= np.bincount(codes).max() / 2


def test_seeds_divide_the_patients_of_findings_independently() -> None:
    """Two tests of 15 % that have nothing to do with each other share 8 % of the patients in either."""
    targets, codes = drawn(seed=0)
    tests = [set(codes[share_by_kind(np.zeros(len(codes), int), targets, codes, 0.15, seed)]) for seed in range(8)]
    both = [len(a & b) / len(a | b) for a, b in itertools.combinations(tests, 2)]
    assert np.mean(both) < 0.12


def test_one_label_is_divided_as_evenly_as_by_scikit_learn() -> None:
    """Every image alone and of one class: the counts are those of StratifiedKFold, up to one image."""
    from sklearn.model_selection import StratifiedKFold

    labels = np.repeat([0, 1, 2, 3], [403, 97, 41, 9])
    images = np.arange(len(labels))
    number = balanced_parts(images, (images, labels), np.full(5, 0.2), seed=0)
    theirs = [np.bincount(labels[part], minlength=4) for _, part in StratifiedKFold(5).split(images, labels)]
    ours = [np.bincount(labels[number == fold], minlength=4) for fold in range(5)]
    assert np.abs(np.sort(ours, axis=0) - np.sort(theirs, axis=0)).max() <= 1


def slowly(
    codes: np.ndarray,
    images: np.ndarray,
    kinds: np.ndarray,
    shares: list[Fraction],
    seed: int,
    by_size: bool,
    kept: np.ndarray,
) -> list[int]:
    """`balanced_parts` by its description, with fractions: patient after patient to where the imbalance grows least."""
    patients, types, parts = int(codes.max()) + 1, int(kinds.max()) + 1, range(len(shares))
    count = np.zeros((patients, types), int)
    np.add.at(count, (codes[images], kinds), 1)
    every, own_images = count.sum(axis=0), np.bincount(codes)
    rarity = [sum(Fraction(int(n), int(total)) for n, total in zip(row, every, strict=True) if total) for row in count]
    weight = own_images.tolist() if by_size else rarity
    factors = np.random.default_rng([seed, len(shares)]).uniform(1, 2, patients).tolist()
    order = sorted(range(patients), key=lambda patient: (not kept[patient], -weight[patient] * factors[patient]))
    held, room = np.zeros((len(shares), types), int), [share * len(codes) for share in shares]
    found = [0] * patients

    def growth(patient: int, part: int) -> Fraction:
        before, after = held[part], held[part] + count[patient]
        return sum(
            (Fraction(int(b) ** 2 - int(a) ** 2, int(n) ** 2) / shares[part]
             for a, b, n in zip(before, after, every, strict=True) if n),
            Fraction(0),
        )  # fmt: skip

    for patient in order:
        fits = [part for part in parts if room[part] >= Fraction(int(own_images[patient]), 2)]
        best = min(fits or [room.index(max(room))], key=lambda part: growth(patient, part))
        found[patient] = best = len(shares) - 1 if kept[patient] else best
        room[best] -= int(own_images[patient])
        held[best] += count[patient]
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shares", [(0.25,) * 4, (0.5, 0.25, 0.25), (0.125, 0.875)])
@pytest.mark.parametrize("by_size", [False, True])
def test_every_patient_goes_where_the_imbalance_grows_least(
    seed: int, shares: tuple[float, ...], by_size: bool
) -> None:
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(25), rng.integers(1, 7, 25))
    targets = (rng.random((len(codes), 3)) < (0.5, 0.2, 0.08)).astype(float)
    pairs = kinds_of(np.zeros(len(codes), int), targets)
    kept = rng.random(25) < 0.15
    found = balanced_parts(codes, pairs, np.array(shares), seed, by_size=by_size, kept=kept)
    assert found.tolist() == slowly(codes, *pairs, [Fraction(one) for one in shares], seed, by_size, kept)
    plain = balanced_parts(codes, pairs, np.array(shares), seed)
    assert plain.tolist() == slowly(codes, *pairs, [Fraction(one) for one in shares], seed, False, np.zeros(25, bool))


def test_few_patients_are_divided_by_scikit_learn_and_many_by_the_same_rule() -> None:
    """Up to 500 patients; of 501 the largest patient goes first."""
    from sklearn.model_selection import StratifiedGroupKFold

    for patients in (500, 501):
        codes = np.repeat(np.arange(patients), 2)
        labels = np.random.default_rng(0).integers(2, size=2 * patients)
        theirs = np.empty(len(codes), int)
        kfold = StratifiedGroupKFold(3, shuffle=True, random_state=7)
        for fold, (_, part) in enumerate(kfold.split(labels, labels, codes)):
            theirs[part] = fold
        every, third = np.arange(len(codes)), np.full(3, 1 / 3)
        ours = balanced_parts(codes, (every, labels), third, 7, by_size=True)[codes]
        assert not np.array_equal(ours, theirs)
        assert grouped_folds(labels, codes, 3, 7).tolist() == (theirs if patients == 500 else ours).tolist()


def test_a_share_is_the_fold_with_most_patients_of_every_class() -> None:
    """By scikit-learn: of seven folds the first that has two patients of each class, or as many as are needed."""
    from sklearn.model_selection import StratifiedGroupKFold

    rng = np.random.default_rng(3)
    codes = np.repeat(np.arange(40), rng.integers(1, 5, 40))
    labels = (codes % 4 == 0).astype(int)  # ten patients, and thirty
    parts = [part for _, part in StratifiedGroupKFold(7, shuffle=True, random_state=5).split(labels, labels, codes)]

    def enough(part: np.ndarray) -> float:
        own = [len(np.unique(codes[part][labels[part] == c])) for c in (0, 1)]
        needed = [max(2, np.ceil(30 * 0.15 / 2)), max(2, np.ceil(10 * 0.15 / 2))]
        return min(1, own[0] / needed[0], own[1] / needed[1])

    best = max(map(enough, parts))
    first = next(part for part in parts if enough(part) == best)
    assert np.flatnonzero(patient_share(labels, codes, 0.15, 5)).tolist() == sorted(first.tolist())
    alone = patient_share(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1]), 0.5, 0)
    assert alone.tolist() == [False] * 4  # no share has both classes


@pytest.mark.parametrize(
    ("patients", "inside", "fraction", "share"),
    [
        (5, 1, 0.15, 1), (6, 1, 0.15, 0.5), (6, 2, 0.15, 1), (26, 2, 0.15, 1), (27, 2, 0.15, 2 / 3), (40, 3, 0.15, 1),
        (40, 9, 0.15, 1), (4, 0, 0.15, 0),
    ],
)  # fmt: skip
def test_how_many_patients_of_a_class_a_share_needs(patients: int, inside: int, fraction: float, share: float) -> None:
    """One of up to five, else two, and at least half of its part of them, rounded up; the scarcest class counts."""
    person = np.arange(patients + 5)
    table = 3 * np.stack([person >= patients, person < patients], axis=1)
    some = (person < inside) | (person == patients)
    assert _enough_patients(table, some, fraction) == pytest.approx(share)
    assert _enough_patients(np.insert(table, 1, 0, axis=1), some, fraction) == pytest.approx(share)  # a class of none


def test_patients_and_copies_by_number() -> None:
    samples = tuple(Sample(path, 0, group) for path, group in zip("0123", "babc", strict=True))
    images = Splits(Path(), ("x",), {ALL: samples}, patients="by table")
    assert units_of(images, tuple(samples[i] for i in (3, 0, 1, 2))).tolist() == [2, 1, 0, 1]
    copies = Splits(Path(), ("x",), {}, copies=dict(zip("012345", "010310", strict=True)))
    of_train = tuple(Sample(path, 0, None) for path in "2345")
    assert units_of(copies, of_train).tolist() == [0, 2, 1, 0]  # 2 and 5 are copies of 0, and 4 of 1


@pytest.mark.parametrize("seed", range(3))
def test_copies_stay_together(seed: int) -> None:
    """In a fold and in a share, though none of their patients is known."""
    labels = np.repeat([0, 1], 12)
    first = {str(i): str(i // 2 * 2) for i in range(24)}
    every = tuple(Sample(str(i), label, None) for i, label in enumerate(labels.tolist()))
    images = Splits(Path(), ("x", "y"), {ALL: every}, copies=first)
    divided = [take_fold(images, every, 3, fold, seed) for fold in (1, 2, 3)]
    for taken, rest in [*divided, split_off(images, every, 0.4, seed, "test")]:
        assert not {first[s.path] for s in taken} & {first[s.path] for s in rest} and len(taken) + len(rest) == 24


def of_findings(rows: list[list[int]]) -> Splits:
    """Images of unknown patients with these findings."""
    targets = np.array(rows)
    labelled = zip(finding_strata(targets).tolist(), targets.tolist(), strict=True)
    samples = tuple(Sample(str(i), label, None, (), tuple(row)) for i, (label, row) in enumerate(labelled))
    names = tuple("ab"[: targets.shape[1]])
    return Splits(Path(), names, {ALL: samples}, target=Target(kind="findings"), bins=(*names, NO_FINDING))


def test_images_of_unknown_patients_are_divided_by_all_of_their_findings() -> None:
    """Three images have both findings, three each of them, three none: a fold of three gets one of each."""
    images = of_findings([[1, 1]] * 3 + [[1, 0]] * 3 + [[0, 1]] * 3 + [[0, 0]] * 3)
    for fold in (1, 2, 3):
        taken, _ = take_fold(images, images.samples[ALL], 3, fold, seed=0)
        assert sorted(sample.targets for sample in taken) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_folds_of_a_number_have_its_ranges_in_proportion() -> None:
    """Three images of each of four ranges: a fold of three gets one of each."""
    samples = tuple(Sample(str(i), i // 3, None, (), (10.0 + i,)) for i in range(12))
    ranges = ("10 to 12", "13 to 15", "16 to 18", "19 to 21")
    images = Splits(Path(), ("age",), {ALL: samples}, target=Target(kind="number"), bins=ranges)
    tests = [take_fold(images, samples, 3, fold, seed=0)[0] for fold in (1, 2, 3)]
    assert [[sample.label for sample in taken] for taken in tests] == [[0, 1, 2, 3]] * 3
    assert {sample.path for taken in tests for sample in taken} == {sample.path for sample in samples}


@pytest.mark.parametrize("seed", range(5))
def test_a_sample_keeps_an_image_that_is_known_to_lack_a_finding(seed: int) -> None:
    """One image lacks it; of nine nobody knows. What is not known does not count as absent."""
    images = of_findings([[1]] * 2 + [[0]] + [[-1]] * 9)
    taken = stratified_sample(images, images.samples[ALL], 4, seed)
    assert {sample.targets for sample in taken} == {(1,), (0,), (-1,)} and len(taken) <= 5
    everyone = of_findings([[1]] * 4)  # none lacks it
    assert len(stratified_sample(everyone, everyone.samples[ALL], 2, seed)) == 2


def test_the_parts_of_a_table_worked_by_hand() -> None:
    """Two patients with the rare finding and four without: a half gets one and two of them, whatever the seed."""
    codes = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    targets = np.zeros((12, 1))
    targets[[0, 2]] = 1
    for seed in range(10):
        number = balanced_parts(codes, kinds_of(np.zeros(12, int), targets), np.full(2, 0.5), seed)[codes]
        assert np.bincount(number).tolist() == [6, 6] and number[0] != number[2]


def test_kinds_of_images() -> None:
    images, kinds = kinds_of(np.array([1, 0, 2]), np.array([[0, 1], [1, 1], [0, 0]]))
    assert sorted(zip(images.tolist(), kinds.tolist(), strict=True)) == [
        (0, 1), (0, 3), (1, 0), (1, 1), (1, 3), (2, 2), (2, 3),
    ]  # fmt: skip


def test_train_keeps_images_with_and_without_every_finding() -> None:
    """One patient alone has the finding, another alone lacks the second one."""
    targets = np.zeros((40, 2))
    targets[3, 0] = 1
    targets[:, 1] = 1
    targets[5, 1] = 0
    for seed in range(20):
        taken = share_by_kind(np.zeros(40, int), targets, np.arange(40) // 2, 0.5, seed)
        assert taken.any() and not taken[[3, 5]].any()


def test_what_cannot_be_learned() -> None:
    targets = np.array([[1, 0, 1, 1], [0, 0, 1, 0], [1, 0, 1, -1], [0, 0, 1, 0]])
    rows = zip("0123", finding_strata(targets).tolist(), targets.tolist(), strict=True)
    samples = tuple(Sample(path, label, None, (), tuple(row)) for path, label, row in rows)
    images = Splits(Path(), (*"abcd",), {ALL: samples}, target=Target(kind="findings"), bins=(*"abcd", NO_FINDING))
    kept = without_unlearnable(images, DataConfig(root="data"))
    assert kept.classes == ("a", "d") and "b, c are left out: the training images must" in kept.notes[0]
    kept = without_unlearnable(images, DataConfig(root="data", folds=2))  # the only positive of d is in one fold
    assert kept.classes == ("a",) and "every fold must" in kept.notes[0]


# --- from a table


def findings(folder: Path, patients: int = 120, columns: int = 4, seed: int = 0) -> Path:
    targets, codes = drawn(patients, seed)
    names = [*FINDINGS, *(f"none {k}" for k in range(columns - 4))]
    extra = [0] * (columns - 4)
    rows = [
        [f"{i:04}.png", f"P{code}", *map(int, values), *extra]
        for i, (code, values) in enumerate(zip(codes.tolist(), targets.tolist(), strict=True))
    ]
    return label_set(folder / "set", ["path", "patient", *names], rows)


def test_splits_of_findings_by_patient(tmp_path: Path) -> None:
    folder = findings(tmp_path)
    splits = split(folder)
    assert splits.classes == FINDINGS and splits.grouped and splits.shared() == {}
    assert splits.strata == (*FINDINGS, NO_FINDING) and "by patient" in splits.made["test"]
    total = sum((splits.targets(name) == 1).sum(axis=0) for name in splits.samples)
    for name, share in (("train", 0.7), ("val", 0.15), ("test", 0.15)):
        part = (splits.targets(name) == 1).sum(axis=0) / total
        assert np.abs(part[:2] - share).max() < 0.04, (name, part)
    with (folder / "labels.csv").open() as stream:
        written = {row["path"]: tuple(float(row[name]) for name in FINDINGS) for row in csv.DictReader(stream)}
    assert by_path(splits) == written
    assert split(folder).samples == splits.samples != split(folder, split_seed=1).samples
    sample = split(folder, max_train=30)  # a sample of train keeps every finding
    assert 30 <= len(sample.samples["train"]) <= 34 and sample.samples["test"] == splits.samples["test"]
    runs = [split(folder, folds=4, fold=fold + 1) for fold in range(4)]
    tested = [sample.path for run in runs for sample in run.samples["test"]]
    assert len(tested) == len(set(tested)) == len(written)
    assert len({run.classes for run in runs}) == 1 and all(run.shared() == {} for run in runs)
    for run in (sample, *runs):
        assert all((run.targets("train") == value).any(axis=0).all() for value in (1, 0))


def test_copies_of_an_image_are_in_one_split(tmp_path: Path) -> None:
    rows = [[f"{i}.png", int(i % 3 == 0), int(i % 5 == 0)] for i in range(60)]
    folder = label_set(tmp_path / "set", ["path", "a", "b"], rows)
    for i in range(60):
        (folder / f"{i}.png").write_bytes(bytes([i // 2]))  # pairs
    splits = split(folder)
    place = {sample.path: name for name, part in splits.samples.items() for sample in part}
    assert all(place[f"{i}.png"] == place[f"{i + 1}.png"] for i in range(0, 60, 2))
    assert any("copies are kept in one split" in note for note in splits.notes)


# --- what cannot be learned or judged


def test_findings_that_nobody_or_everybody_has_are_left_out(tmp_path: Path) -> None:
    """Of 200 findings 50 can be learned, 75 have one positive, 50 none, and 25 no negative; the rest goes on."""
    rng = np.random.default_rng(0)
    targets = np.zeros((200, 200), int)
    targets[:, :50] = rng.random((200, 50)) < 0.2
    targets[np.arange(75), 50 + np.arange(75)] = 1
    targets[:, 175:] = 1
    names = [f"f{k}" for k in range(200)]
    rows = [[f"{i}.png", *values] for i, values in enumerate(targets.tolist())]
    splits = split(label_set(tmp_path / "set", ["path", *names], rows))
    assert splits.classes == tuple(names[:125])
    (gone,) = [note for note in splits.notes if "left out" in note]
    assert gone.startswith("f125, f126") and "and 65 more are left out: the training images must have" in gone
    assert any(note.startswith("75 findings have fewer than 5 positives in train") for note in splits.notes)
    assert len(splits.notes) < 6  # not one for each finding


def test_what_is_learned_is_the_same_in_every_fold_of_every_repeat(tmp_path: Path) -> None:
    """A finding that one fold of one repeat cannot learn is left out of all of them."""
    values = (np.random.default_rng(4).random((36, 14)) < 0.07).astype(int)
    rows = [[f"{i}.png", f"P{i // 2}", *row] for i, row in enumerate(values.tolist())]
    folder = label_set(tmp_path / "set", ["path", "patient", *(f"f{k:02}" for k in range(14))], rows)
    alone = [set(split(folder, folds=3, split_seed=seed).classes) for seed in range(3)]
    for repeat in (1, 2, 3):
        found = split(folder, folds=3, repeats=3, repeat=repeat, fold=2)
        assert set(found.classes) == alone[0] & alone[1] & alone[2]
        assert any("left out: every fold must have images with and without a finding" in note for note in found.notes)
    for fold in (1, 2, 3):  # of what --hold-out leaves
        found = split(folder, folds=3, fold=fold, hold_out=0.3).targets("train")
        assert all((found == value).any(axis=0).all() for value in (1, 0))


@pytest.mark.parametrize("seed", range(3))
def test_rare_findings_do_not_keep_every_patient_in_train(tmp_path: Path, seed: int) -> None:
    """Of 200 findings 180 have about one positive in 60 images of 30 patients, so that nearly every patient is the only
    one with some finding; these are left out, and validation and test get the 15 % that the configuration states."""
    rng = np.random.default_rng(seed)
    values = rng.random((60, 200)) < np.where(np.arange(200) < 20, 0.4, 0.02)
    rows = [[f"{i}.png", f"P{i // 2}", *row] for i, row in enumerate(values.astype(int).tolist())]
    splits = split(label_set(tmp_path / "set", ["path", "patient", *(f"f{k}" for k in range(200))], rows))
    assert splits.classes[:20] == tuple(f"f{k}" for k in range(20)) and splits.shared() == {}
    assert all(8 <= len(splits.samples[name]) <= 10 for name in ("val", "test"))
    assert any("too few would be left to validate and test" in note for note in splits.notes)
    assert len(splits.notes) < 6


def test_a_finding_without_positive_in_a_split_is_a_note(tmp_path: Path) -> None:
    """The table's own splits stay, and the test has none of the finding."""
    rows = [[f"{i}.png", ["train", "val", "test"][i % 3], int(i % 3 == 0), i % 2] for i in range(60)]
    splits = split(label_set(tmp_path / "set", ["path", "split", "one", "other"], rows))
    assert splits.classes == ("other",)  # in train all have the first one
    rows[0][2] = 0
    splits = split(label_set(tmp_path / "set", ["path", "split", "one", "other"], rows))
    assert splits.classes == ("one", "other")
    assert "no image of test has one, so nothing can be said of it" in splits.notes
    assert "no image of val has one, so nothing can be chosen for it" in splits.notes
    for row in rows:
        row[2] = int(row[1] != "train" or row is rows[3])
    splits = split(label_set(tmp_path / "set", ["path", "split", "one", "other"], rows))
    assert "every image with a label of val has one, so nothing can be chosen for it" in splits.notes


def test_no_finding_that_can_be_learned(tmp_path: Path) -> None:
    rows = [[f"{i}.png", 1, 0] for i in range(20)]
    with pytest.raises(DataError, match="no finding has images with and without it to train on: a, b") as error:
        split(label_set(tmp_path / "set", ["path", "a", "b"], rows))
    assert "labels.csv" in error.value.problem and "--finding" in error.value.fix


@pytest.mark.parametrize("fields", [{}, {"folds": 2}])
def test_too_few_images(tmp_path: Path, fields: dict[str, int]) -> None:
    folder = label_set(tmp_path / "set", ["path", "a", "b"], [["0.png", 1, 0], ["1.png", 0, 1]])
    with pytest.raises(DataError, match=r"too few|no finding has images"):
        split(folder, **fields)


def test_numbers_are_split_by_their_ranges(tmp_path: Path) -> None:
    values = np.random.default_rng(0).gamma(2, 20, 400)
    rows = [[f"{i}.png", f"P{i // 2}", round(value, 2)] for i, value in enumerate(values.tolist())]
    splits: Splits = split(label_set(tmp_path / "set", ["path", "patient", "age"], rows), target="number")
    means = [splits.targets(name).mean() for name in ("train", "val", "test")]
    assert np.ptp(means) < 6 and splits.shared() == {}  # three standard errors of a random test: 12
    assert all(0.1 < len(splits.samples[name]) / 400 < 0.2 for name in ("val", "test"))
    assert len(splits.strata) == 10 and all(min(splits.counts(name)) > 0 for name in splits.samples)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_patient_with_many_images_is_not_all_of_a_class(seed: int) -> None:
    """The 14 images of one patient are a seventh of class 1, as in the Herlev slides; 21 patients have 4 each."""
    sizes = [14, *[4] * 21, *[3] * 80]
    codes, labels = np.repeat(np.arange(102), sizes), np.repeat([1] * 22 + [0] * 80, sizes)
    part = patient_share(labels, codes, 0.15, seed)
    assert len(np.unique(codes[part][labels[part] == 1])) >= 2
    assert np.abs(np.bincount(labels[part]) / np.bincount(labels) - 0.15).max() < 0.05
    for fraction in (0.3, 0.4, 0.6, 0.7, 0.9, 0.95):  # no fold of k has so many
        share = patient_share(np.arange(1000) // 10 % 2, np.arange(1000) // 10, fraction, seed).mean()
        assert share == pytest.approx(fraction, abs=0.02)
    assert 0 < patient_share(np.arange(20) // 2 % 2, np.arange(20) // 2, 1.0, seed).sum() < 20  # all of the rest
    codes = np.repeat(np.arange(33), 4)  # a class of three patients leaves one for every split
    labels = (codes < 3).astype(int)
    part = patient_share(labels, codes, 0.15, seed)
    assert len(np.unique(codes[part][labels[part] == 1])) == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("patients", [9, 12])
def test_a_class_of_some_patients_has_two_in_the_share(patients: int, seed: int) -> None:
    """15 % of 9 or 12 patients are one or two; the 12 images of one alone would be the share of their class, and an
    interval of one patient is none."""
    sizes = [12, *[2] * (patients - 1), *[3] * 40]
    codes, labels = np.repeat(np.arange(len(sizes)), sizes), np.repeat([1] * patients + [0] * 40, sizes)
    part = patient_share(labels, codes, 0.15, seed)
    rest = ~part
    assert len(np.unique(codes[part][labels[part] == 1])) == 2
    assert not np.intersect1d(codes[part], codes[rest]).size


@pytest.mark.parametrize("seed", range(3))
def test_of_few_patients_the_share_is_the_choice_that_comes_nearest(seed: int) -> None:
    """15 % of 101 images of four patients with 50, 40, 6 and 5: the last two, not one with half of the images."""
    codes = np.repeat(np.arange(4), [50, 40, 6, 5])
    assert np.unique(codes[patient_share(np.arange(101) % 2, codes, 0.15, seed)]).tolist() == [2, 3]
