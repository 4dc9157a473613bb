"""Can the label be predicted without anatomy? Logistic regression on size, file, format, colour and border.

Each family of features is cross-validated alone, so that you see which shortcut it is; with the squares, so that it may
be a size between those of the other class. Whole patients are held out where patients are known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitmed.core.process import NO_WARNINGS
from vitmed.imaging.file_record import FileRecord
from vitmed.metrics.areas import area_interval, class_areas
from vitmed.metrics.intervals import Part, Units, influence_spread, mean_interval, quantile
from vitmed.metrics.predictions import group_index

Division = Sequence[tuple[np.ndarray, np.ndarray]]  # rows of training, of test
FOLDS = 5
LEAST = 10  # images; smaller classes are left out
MOST = 20_000  # images that a regression uses: more give the same result
FAMILIES = {  # key -> its name in a finding
    "geometry": "width, height and proportions",
    "file": "file size and bytes per pixel",
    "format": "file format, colour mode, bit depth and EXIF rotation",
    "colour": "the mean colour",
    "border": "the colour of the border",
    "all": "all of these together",
}


@dataclass(frozen=True)
class Shortcut:
    """How well a family of features predicts the label."""

    family: str  # a key of FAMILIES
    auroc: float  # on held-out images; for several classes, the mean of each against the rest
    low: float  # to high: its 95 % interval, by patient where they are known, else by image
    high: float
    by_patient: bool  # whether whole patients were held out
    images: int  # how many were used
    finding: str = ""  # which of several it predicts
    clear: bool = True  # whether its interval lies above 0.5 also as one of all findings, families and splits


def find_shortcuts(
    records: Sequence[FileRecord], labels: np.ndarray, groups: Sequence[str] | None, finding: str = "", tests: int = 1
) -> list[Shortcut]:
    """The AUROC of every family on decoded images, with labels (N,); empty where images or classes are too few. `clear`
    is adjusted for so many `tests` (Bonferroni)."""
    counts = np.bincount(labels := np.unique(labels, return_inverse=True)[1])
    if len(labels) < 2 * LEAST or np.count_nonzero(counts >= LEAST) < 2:
        return []
    rows = np.sort(np.random.default_rng(0).permutation(np.flatnonzero(counts[labels] >= LEAST))[:MOST]).tolist()
    y, patients = np.unique(labels[rows], return_inverse=True)[1], None if groups is None else [groups[i] for i in rows]
    shortcuts, (divided, by_patient) = [], divide(y, patients)
    used = [records[i] for i in rows]
    headers = [record.header for record in used if record.header is not None]
    size = np.array([[header.width, header.height] for header in headers], dtype=np.float64)
    weight = np.array([[record.size] for record in used], dtype=np.float64)
    numbers = np.stack([record.numbers for record in used if record.numbers is not None]).astype(np.float64)
    kinds = [[header.format, header.mode, str(header.bits), str(header.orientation)] for header in headers]
    columns = [(column[:, None] == np.unique(column)).astype(np.float64) for column in np.array(kinds).T]  # one-hot
    features = {  # family -> (N, D)
        "geometry": np.concatenate([np.log(size), np.log(size[:, :1] / size[:, 1:])], axis=1),
        "file": np.concatenate([np.log(weight), np.log(weight / size.prod(axis=1, keepdims=True))], axis=1),
        "format": np.concatenate(columns, axis=1),
        "colour": numbers[:, :3],
        "border": numbers[:, 3:6],
    }
    features["all"] = np.concatenate(list(features.values()), axis=1)
    for family, x in features.items():
        if np.all(x == x[0]):  # the same for all images
            continue
        scores = held_out(np.concatenate([x, (x - x.mean(axis=0)) ** 2], axis=1), y, divided)
        predicted = np.flatnonzero(np.isfinite(scores).all(axis=1))
        value = low = high = least = float("nan")
        if len(np.unique(y[predicted])) == scores.shape[1]:
            units = Units(group_index(None if patients is None else [patients[i] for i in predicted], len(predicted)))
            parts = list[Part]()
            for c in range(int(scores.shape[1] == 2), scores.shape[1]):  # of two classes, the second
                area = class_areas(scores[predicted, c], truth := y[predicted] == c)[0]
                parts.append(Part(area.value, *area_interval(area, truth, units)[:2], area.influence, 1.0, truth))
            value, known = float(np.mean([p.value for p in parts])), [p for p in parts if np.isfinite(p.low)]
            if known:  # a class without an interval may be anything
                shared, mean = len(known) / len(parts), float(np.mean([p.value for p in known]))
                low, high = mean_interval(mean, (p._replace(weight=1 / len(known)) for p in known), units)
                degrees = influence_spread(np.sum([p.influence for p in known], axis=0), units).degrees
                least = shared * (mean - quantile(degrees, tests) / quantile(degrees) * (mean - low))
                low, high = shared * low, shared * high + 1 - shared
        shortcuts.append(Shortcut(family, value, low, high, by_patient, len(y), finding, bool(least > 0.5)))
    return shortcuts


def divide(y: np.ndarray, groups: Sequence[str] | None) -> tuple[Division, bool]:
    """The rows of training and test of each fold of a cross-validation; and whether whole patients are held out, which
    needs two patients or more in every class. `y` (N,) 0..K-1."""
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    k = int(y.max()) + 1
    units = group_index(groups, len(y))
    patients = min(len(np.unique(units[y == c])) for c in range(k))  # images where patients are unknown
    by_patient = groups is not None and patients > 1
    folds = max(2, min(FOLDS, patients if by_patient else int(np.bincount(y).min())))
    splitter = StratifiedGroupKFold if by_patient else StratifiedKFold
    with NO_WARNINGS:  # a class of fewer images or patients than folds
        return list(splitter(folds, shuffle=True, random_state=0).split(y, y, units)), by_patient


def held_out(x: np.ndarray, y: np.ndarray, divided: Division) -> np.ndarray:
    """Cross-validated scores (N, K) of a logistic regression, NaN where no fold could predict. `x` (N, D), `y` (N,)
    0..K-1."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    scores, solver = np.full((len(y), int(y.max()) + 1), np.nan), "newton-cholesky" if y.max() == 1 else "lbfgs"
    with NO_WARNINGS:  # no convergence
        for rest, part in divided:
            if len(np.unique(y[rest])) < 2:
                continue
            model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300, solver=solver))  # L2
            fitted = model.fit(x[rest], y[rest])
            scores[part] = 0  # for classes that are not in `rest`
            scores[np.ix_(part, fitted.classes_)] = fitted.predict_proba(x[part])
    return scores
