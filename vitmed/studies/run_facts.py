"""What `vitmed diff` knows of a run: its settings, images, environment and result."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from vitmed.core.config import PATHS, Config, RunConfig
from vitmed.core.csv_files import from_cell
from vitmed.core.errors import CheckpointError, DataError, UsageError, VitmedError
from vitmed.core.files import json_of
from vitmed.core.load_config import is_keyword
from vitmed.core.pretrain_config import PretrainConfig
from vitmed.core.run_folder import RunFolder
from vitmed.core.stored_paths import find_path
from vitmed.core.yaml_files import YamlError, read_yaml
from vitmed.data.samples import Splits
from vitmed.decisions.evaluation_folder import find_evaluation
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.report.run_list import RunMetric, natural
from vitmed.studies.comparison import table_of
from vitmed.studies.run_rows import read_run

NO_FOLD = "no fold yet"
SURROUNDINGS = ("python", "system", "device", "precision", "git")  # of environment.json, beside the versions


class Image(NamedTuple):
    """An image of a run; `split` is train, validation or test, or the fold that tests it."""

    sha256: str
    label: str
    group: str
    split: str


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run.

    Attributes:
        kind: "training", "pretraining" or "cross-validation".
        settings: "section.field" -> value as it is shown.
        compared: what decides whether two values are the same: of a path, its place.
        images: path -> image; None where they are not known.
        environment: versions and machine; None where they are not known.
        table: predictions.csv of its test.
        why_not: why there is no such table, in a sentence.
        last: of pretraining, its last number.
    """

    path: Path
    kind: str
    settings: dict[str, Any]
    compared: dict[str, Any]
    images: dict[str, Image] | None
    environment: dict[str, str] | None
    table: Path | None = None
    why_not: str = ""
    last: RunMetric | None = None

    @property
    def fields(self) -> type[RunConfig]:
        """The configuration of its kind."""
        return PretrainConfig if self.kind == "pretraining" else Config

    @property
    def classes(self) -> set[str]:
        """The names in its labels; none of a number."""
        if self.images is None or self.settings.get("data.target") == "number":
            return set()
        return {part.rstrip("?") for image in self.images.values() for part in image.label.split("|")}


def read_facts(path: Path) -> RunFacts:
    """The facts of a run folder, of a folder of folds, or of a checkpoint.

    Raises:
        UsageError: something else.
        DataError, CheckpointError: a file of it cannot be read.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder", "name a run folder, or its best.pt")
    run = RunFolder(path if path.is_dir() else path.parent)
    if path.is_file() and path.suffix != ".pt":
        raise UsageError(f"{path}: is a file, expected a run", "name a run folder, or its best.pt")
    if path.is_file() and not run.config.is_file():  # taken out of its run
        saved = load_checkpoint(path)
        facts = _facts(path.parent, "training", saved.config.model_dump(), _members(saved.splits, saved.hashes), None)
        return replace(facts, path=path, why_not="it is a checkpoint without its run")
    if run.folds.is_file():
        return _of_folds(run)
    if run.ensemble.is_file():
        raise UsageError(f"{path}: is an ensemble, expected a run", "compare tests: vitmed compare ENSEMBLE RUN")
    if run.ranking.is_file() or not run.config.is_file():
        found = "holds a ranking of weights" if run.ranking.is_file() else "holds no run"
        raise UsageError(f"{path}: {found}, expected a run folder", "name two of the runs that vitmed runs lists")
    facts = _of_run(run)
    if path.is_dir() or facts.kind == "pretraining":
        return facts
    saved = load_checkpoint(path)
    table = find_evaluation(run, "test", saved.weights_hash, saved.policy)
    why_not = "" if table is not None else f"{path.name} was not evaluated on its test"
    return replace(facts, path=path, table=table, why_not=why_not)


def _of_run(run: RunFolder) -> RunFacts:
    try:
        tree = read_yaml(run.config)
    except YamlError as error:
        raise DataError(f"{run.config}: not a readable YAML file ({error})", error.fix) from None
    if not isinstance(tree, dict) or not all(isinstance(fields, dict) for fields in tree.values()):
        raise DataError(f"{run.config}: not the configuration of a run", "name another run")
    kind = "training" if "evaluate" in tree else "pretraining"
    facts = _facts(run.path, kind, tree, _images(run), _environment(run))
    if kind == "pretraining":
        return replace(facts, last=read_run(run, "", None).metric, why_not="pretraining is not tested")
    return _with_table(facts)


def _facts(
    path: Path, kind: str, tree: Mapping[str, Any], images: dict[str, Image] | None, environment: dict[str, str] | None
) -> RunFacts:
    """Fields that an older vitmed did not write have their default, as when the run is resumed."""
    fields: Any = PretrainConfig if kind == "pretraining" else Config
    whole = fields().model_dump()
    shown = {
        f"{section}.{name}": value
        for section in {**whole, **tree}
        for name, value in {**whole.get(section, {}), **tree.get(section, {})}.items()
    }
    compared = dict(shown)
    for section, name in PATHS:
        value = shown.get(f"{section}.{name}")
        if isinstance(value, str) and not is_keyword(name, value, path):
            place = os.path.normpath(find_path(value, path).absolute())
            compared[f"{section}.{name}"], shown[f"{section}.{name}"] = place, Path(place).name
    return RunFacts(path, kind, shown, compared, images, environment)


def _with_table(facts: RunFacts) -> RunFacts:
    try:
        return replace(facts, table=table_of(facts.path))
    except VitmedError as error:
        why = error.problem.replace(f"{facts.path}{os.sep}", "").replace(f"{facts.path}: ", "")
        return replace(facts, why_not=why)


def _images(run: RunFolder) -> dict[str, Image] | None:
    if not run.splits.is_file():
        return None
    try:
        rows = list(csv.DictReader(io.StringIO(run.splits.read_text(encoding="utf-8"), newline="")))
        return {
            from_cell(row["path"]): Image(row["sha256"], from_cell(row["class"]), from_cell(row["group"]), row["split"])
            for row in rows
        }
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        raise DataError(f"{run.splits}: not the splits.csv of a run", "restore it, or name another run") from None


def _environment(run: RunFolder) -> dict[str, str] | None:
    if not run.environment.is_file():
        return None
    try:
        found = json_of(run.environment.read_text(encoding="utf-8"))
        versions = {str(name): str(version) for name, version in found["versions"].items()}
        return versions | {name: str(found[name]) for name in SURROUNDINGS if found.get(name) is not None}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{run.environment}: not the file of a run", "restore it, or name another run") from None


def _of_folds(run: RunFolder) -> RunFacts:
    """The settings of the first fold; the images of all, each in the split "fold K" that tests it."""
    folds = [RunFolder(path) for path in run.path.glob("fold-*") if RunFolder(path).config.is_file()]
    folds.sort(key=lambda fold: natural(fold.path.name))
    if not folds:
        raise DataError(f"{run.path}: none of its folds has begun", f"vitmed cross-validate --resume {run.path}")
    facts = _of_run(folds[0])
    images = None if facts.images is None else {p: i._replace(split=NO_FOLD) for p, i in facts.images.items()}
    for fold in folds:
        for path, image in (_images(fold) or {}).items():
            if images is not None and image.split == "test":
                images[path] = image._replace(split=" ".join(fold.path.name.split("-")[:2]))  # of fold-1-2, "fold 1"
    facts = replace(facts, path=run.path, kind="cross-validation", images=images, table=None)
    return _with_table(facts)


def _members(splits: Splits, hashes: Mapping[str, Sequence[str]]) -> dict[str, Image]:
    return {
        sample.path: Image(digest, splits.text_of(sample), sample.group or "", name)
        for name, samples in splits.samples.items()
        for sample, digest in zip(samples, hashes.get(name, []) or [""] * len(samples), strict=False)
    }
