"""Every setting, for every kind of label and every command that takes it, has an effect, a note or a refusal.

`SETTINGS` has a row for each field of the configuration, `OPTIONS` for each option of a command beside these. A new one
without a row fails. A cell is checked on what the setting reaches: splits, pixels, network, loss, decisions and
numbers, without training; `shown` names the test file that shows the effect of what changes no such thing.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Answer, draw_nothing, once, recording
from filelock import FileLock
from PIL import Image
from reports import write_report
from typer.main import get_command

from vitmed import evaluate, monitor, train, tune
from vitmed.cli.commands import APPS
from vitmed.core.base_models import Target, fields_of, flags_of
from vitmed.core.config import FLAGS, Config, PretrainConfig
from vitmed.core.errors import EndedByCaller, UsageError, VitmedError
from vitmed.core.load_config import load_config
from vitmed.data.splits import make_splits
from vitmed.decisions.operating_points import asked_point
from vitmed.decisions.policy import choose_policy
from vitmed.imaging.augmentation import Augmenter
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics.kinds.findings import FindingPredictions
from vitmed.metrics.kinds.number import NumberPredictions
from vitmed.metrics.predictions import Predictions
from vitmed.models.hardware import Precision
from vitmed.models.vit import ViT
from vitmed.report.evaluate import note_prevalence
from vitmed.studies.one_run import TrainResult
from vitmed.training.losses import objective_of
from vitmed.training.optimiser import parameter_groups
from vitmed.training.plan.make_plan import LAST_KEPT, config_of_target, make_plan

KINDS = ("two", "three", "grades", "findings", "number")  # classes are two or more, which settings tell apart
OF = {"two": "classes", "three": "classes"}
NAMES = {"two": ("healthy", "ill"), "three": ("a", "b", "c"), "grades": ("g0", "g1", "g2"), "findings": ("e", "f", "g")}
SIZE = 120
ROOT = Path(__file__).parent


# ---- what a setting can change ----


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty images of twenty patients at two sites, one of 16 bits, and a table of labels for each kind."""

    def make(place: Path) -> Path:
        rng = np.random.default_rng(0)
        (place / "images").mkdir()
        tables: dict[str, list[list[object]]] = {kind: [["path", "patient", "site"]] for kind in KINDS}
        for kind in KINDS:
            tables[kind][0] += [*"rs", "score", *(NAMES["findings"] if kind == "findings" else ["label"])]
        for i in range(60):
            path = f"images/P{i // 3}_{i}.png"
            Image.fromarray(rng.integers(0, 256, (20, 14, 3), dtype=np.uint8)).save(place / path)
            for kind in KINDS:
                label: list[object] = [round(float(rng.uniform(20, 80)), 2)]
                if kind == "findings":
                    label = [-1 if rng.random() < 0.1 else int(rng.random() < 0.5) for _ in NAMES[kind]]
                elif kind != "number":
                    label = [NAMES[kind][i % len(NAMES[kind])]]
                reader = NAMES.get(kind, "ab")[i % 2]
                tables[kind].append([path, f"P{i // 3}", "AB"[i // 3 % 2], reader, reader, i / 7, *label])
        for kind, rows in tables.items():
            with (place / f"{kind}.csv").open("w", newline="") as stream:
                csv.writer(stream).writerows(rows)
        Image.fromarray(rng.integers(0, 1000, (20, 14)).astype(np.uint16)).save(place / "deep.png")
        return place

    return once(tmp_path_factory, "settings", make)


def config_of(folder: Path, kind: str, settings: Mapping[str, Any]) -> Config:
    data = {"data.root": folder, "data.labels": folder / f"{kind}.csv", "data.cache": False}
    order = {"evaluate.ordinal": ",".join(NAMES[kind])} if kind == "grades" else {}
    return load_config(None, {**data, **order, **settings})


def splits_of(config: Config, kind: str) -> Any:
    found = make_splits(config.data, ordinal=config.evaluate.ordinal)
    return found.samples, found.target, found.classes


def pixels(config: Config, kind: str) -> Any:
    root, found = Path(str(config.data.root)), []
    how = Preprocessing.of(config)
    for path in (sorted((root / "images").glob("*.png"))[0], root / "deep.png"):
        try:
            square = how.read(path).copy()
            found.append((square.tobytes(), how.normalise(torch.from_numpy(square)[None]).numpy().tobytes()))
        except VitmedError as error:
            found.append((type(error).__name__, ""))
    return found


def network(config: Config, kind: str) -> Any:
    torch.manual_seed(0)
    model = ViT(config.model, 3).train()
    for value in model.parameters():
        torch.nn.init.normal_(value, std=0.3)
    found = model(torch.ones(2, config.model.channels, config.model.image_size, config.model.image_size))
    return str(model), found.detach().numpy().tobytes()


def augmented(config: Config, kind: str) -> Any:
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    augment = Augmenter(config.augment.policy, 32, 3, config.augment.flips, config.augment.crop)
    return [augment(image, (0, 0, i)).tobytes() for i in range(8)]


def loss(config: Config, kind: str) -> Any:
    """Of a batch whose classes are apart, before the first step."""
    torch.manual_seed(0)
    np.random.seed(0)
    outputs = 2 if kind == "number" else len(NAMES[kind])
    model = ViT(config.model, outputs)
    torch.nn.init.normal_(model.head.weight, std=1.0)
    labels = np.arange(12) % 3 // 2 if outputs == 2 else np.array([0] * 7 + [1] * 3 + [2] * 2)
    targets = torch.from_numpy(labels)
    if kind in ("findings", "number"):
        targets = torch.linspace(-1, 1, 12) if kind == "number" else (torch.arange(36).reshape(12, 3) % 5 == 0).float()
    target = SimpleNamespace(kind=OF.get(kind, kind))
    images = SimpleNamespace(labels=labels, targets=targets, preprocessing=Preprocessing.of(config), target=target)
    batch = torch.randint(0, 256, (12, 16, 16, 3), dtype=torch.uint8)
    cpu = torch.device("cpu")
    objective = objective_of(images, outputs, config, Precision("fp32", torch.float32, ""), cpu)  # type: ignore[arg-type]
    return float(objective.part(model, objective.prepare(batch, targets)).detach())


def steps(config: Config, kind: str) -> Any:
    """Rates and decay of every parameter."""
    groups = parameter_groups(ViT(config.model, 3), config.train.weight_decay, config.train.layer_decay)
    return [({k: v for k, v in group.items() if k != "params"}, len(group["params"])) for group in groups]


def weights(config: Config, kind: str) -> Any:
    """After an epoch of two classes; the loop is the same for every kind, and so are the settings that it reads."""
    return trained_weights(config.to_yaml(), config.train.epochs) if kind == "two" else config.to_yaml()


@functools.cache
def trained_weights(config: str, epochs: int) -> Any:
    """Of a run that ends before its evaluation."""
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        file, runs = Path(place) / "config.yaml", Path(place) / "runs"
        file.write_text(config)
        with pytest.raises(EndedByCaller):
            train(config=file, output=runs, name="one", each_epoch=lambda one: one["epoch"] == epochs, **BARE_RUN)
        return load_checkpoint(runs / "one" / "best.pt").weights_hash


BARE_RUN = {"report": False, "baseline": False, "test": False, "workers": 0, "device": "cpu", "precision": "fp32"}


def predictions(kind: str, seed: int) -> Any:
    """Of a model that is often right, with the columns of two readers and a site."""
    rng = np.random.default_rng(seed)
    paths, groups = tuple(f"{i}.png" for i in range(SIZE)), tuple(f"P{i // 2}" for i in range(SIZE))
    names, columns = NAMES.get(kind, ("age",)), {"site": tuple("AB"[i // 2 % 2] for i in range(SIZE))}
    if kind == "number":
        truth = rng.normal(50, 10, SIZE)
        logits = np.stack([(truth - 50) / 10 + rng.normal(0, 0.5, SIZE), np.full(SIZE, -0.7)], axis=1)
        target = Target(kind="number", unit="years", centre=50, spread=10)
        return NumberPredictions(names, paths, groups, truth, logits.astype(np.float32), target=target, columns=columns)
    if kind == "findings":
        labels = (rng.random((SIZE, 3)) < 0.3).astype(np.int8)
        logits = (rng.normal(-1, 1, (SIZE, 3)) + 2 * labels).astype(np.float32)
        return FindingPredictions(names[:2], paths, groups, labels[:, :2], logits[:, :2], columns=columns)
    labels = rng.choice(len(names), SIZE, p=(0.7, 0.3) if kind == "two" else (0.6, 0.25, 0.15))
    logits = rng.normal(0, 1.5, (SIZE, len(names)))
    logits[np.arange(SIZE), labels] += 2
    for reader in "rs":
        wrong = rng.random(SIZE) < 0.2
        columns[reader] = tuple(names[(k + w) % len(names)] for k, w in zip(labels, wrong, strict=True))
    columns["score"] = tuple(f"{k + x:.3f}" for k, x in zip(labels, rng.normal(0, 1, SIZE), strict=True))
    return Predictions(names, paths, groups, labels, logits.astype(np.float32), columns=columns)


def decided(config: Config, kind: str) -> tuple[Any, Any]:
    """The policy that validation chooses, and a test to which it is applied."""
    test = predictions(kind, 1)
    if kind in OF or kind == "grades":
        test = replace(test, positive=config.data.positive)
    chosen = choose_policy(predictions(kind, 0), config.evaluate, None, None)
    return chosen, chosen.apply(test)


def policy(config: Config, kind: str) -> Any:
    """The policy, which a report repeats (that it does, `numbers` of the coverage shows), and its decisions."""
    chosen, test = decided(config, kind)
    return chosen.to_json(), test.columns


def numbers(config: Config, kind: str, page: bool = False, policy: bool = True) -> Any:
    """metrics.json and predictions.csv of a test, after validation has chosen; with `page` report.html too.

    A report that several cells need is written once, for all processes of the tests.
    """
    one = config.evaluate.model_copy(update={"report": page and config.evaluate.report})
    name = f"{kind} {policy} {config.model_copy(update={'evaluate': one}).to_yaml()}"
    place = Path(str(config.data.root)) / "reports" / hashlib.sha256(name.encode()).hexdigest()
    place.parent.mkdir(exist_ok=True)
    with FileLock(f"{place}.lock"):
        if not place.is_dir():
            chosen, test = decided(config, kind) if policy else (None, predictions(kind, 1))
            write_report(place, test, title="test", facts={}, config=one, policy=chosen)
    files = {file.relative_to(place).as_posix(): file for file in place.rglob("*") if file.is_file()}
    found = [json.loads(file.read_text()) for name, file in sorted(files.items()) if name.endswith("metrics.json")]
    for one in found:
        del one["report"]  # which repeats the configuration
    return sorted(files), found, (place / "predictions.csv").read_text()


def pages(config: Config, kind: str) -> Any:
    return numbers(config, kind, page=True)


# ---- what is expected ----


@dataclass(frozen=True)
class Cell:
    """A value of the setting, with others that it needs, and what it changes, or the sentence of the refusal.

    Attributes:
        where: a function of configuration and kind whose result changes; None where it is refused.
        said: the refusal.
    """

    value: Any
    where: Callable[[Config, str], Any] | None = None
    beside: tuple[tuple[str, Any], ...] = ()
    said: str = ""


@dataclass(frozen=True)
class Shown:
    """The same for every kind; a file of tests shows it."""

    file: str


def row(value: Any, where: Any, beside: Mapping[str, Any] | None = None, **others: Any) -> dict[str, Cell]:
    """A cell for each kind: the effect, unless `others` names a refusal, or another value with its effect."""
    usual = Cell(value, where, tuple((beside or {}).items()))
    found = dict.fromkeys(KINDS, usual)
    for kind, other in others.items():
        found[kind] = replace(usual, where=None, said=other) if isinstance(other, str) else other
    return found


shown = Shown
FOLDS = {"data.folds": 3}
NOTHING = "changes nothing for labels of the kind"
NOT_NUMBER = {"number": f"{NOTHING} number"}
OF_CLASSES = {"findings": f"{NOTHING} findings", **NOT_NUMBER}
TWO_ALONE = {"three": "a threshold decides between two classes", "grades": "a threshold decides between two classes"}
TINIER = {"train.epochs": 1, "train.batch_size": 8, "train.warmup_epochs": 0.0, "train.choose": "last"}
TINIER |= {"model.image_size": 16, "model.patch_size": 8, "model.width": 16, "model.depth": 2, "model.heads": 2}
TINIER |= {"evaluate.resamples": 0}
PERMITS = "tests/data/test_splits_by_patient.py"

SETTINGS: dict[str, dict[str, Cell] | Shown] = {
    "data.root": shown("tests/data/test_splits.py"),
    "data.resize": row("squash", pixels),
    "data.interpolation": row("nearest", pixels),
    "data.normalize": row("half", pixels),
    "data.mean": row([0.3], pixels, {"data.normalize": "given", "data.mean": [0.5], "data.std": [0.5]}),
    "data.std": row([0.7], pixels, {"data.normalize": "given", "data.mean": [0.5], "data.std": [0.5]}),
    "data.window": row([0.0, 500.0], pixels),
    "data.frame": shown("tests/imaging/test_dicom.py"),
    "data.val_fraction": row(0.4, splits_of),
    "data.test_fraction": row(0.4, splits_of),
    "data.split_seed": row(1, splits_of),
    "data.max_train": row(12, splits_of),
    "data.card": shown("tests/core/test_dataset_cards.py"),
    "data.group_regex": row(r"(P\d)", splits_of),
    "data.groups": row("names", splits_of),
    "data.labels": shown("tests/commands/test_labels_table.py"),
    "data.split_column": shown("tests/data/test_splits_by_patient.py"),
    "data.target": row(
        "grades", splits_of, three="have no order", two="have no order", findings=Cell("number", said="column"),
        number=Cell("classes", said="too few"), grades=Cell("number", said="number"),
    ),
    "data.findings": row(["f"], splits_of, **dict.fromkeys(("two", "three", "number"), "column"), grades="omit"),
    "data.uncertain": row(
        "ones", splits_of, number=NOT_NUMBER["number"], **dict.fromkeys(("two", "three"), f"{NOTHING} classes"),
        grades=f"{NOTHING} grades",
    ),
    "data.unit": row("mm", splits_of, **dict.fromkeys(("two", "three", "findings"), "number"), grades="omit"),
    "data.folds": row(4, splits_of),
    "data.fold": row(2, splits_of, FOLDS),
    "data.sites": row("site", splits_of),
    "data.repeats": shown("tests/studies/test_folds.py"),
    "data.repeat": row(2, splits_of, {**FOLDS, "data.fold": 1, "data.repeats": 2}),
    "data.hold_out": row(0.3, splits_of, FOLDS),
    "data.resplit": shown(PERMITS),
    "data.allow_leakage": shown(PERMITS),
    "data.positive": row(
        "healthy", numbers, three="positive class", grades="positive class", **OF_CLASSES
    ),
    "data.on_bad_file": shown("tests/commands/test_train.py"),
    "data.cache": shown("tests/data/test_image_cache.py"),
    "data.cache_gb": shown("tests/data/test_image_cache.py"),
    "model.name": row("vit_small", lambda config, kind: config.model.name),
    "model.image_size": row(32, network),
    "model.patch_size": row(4, network),
    "model.channels": row(1, network),
    "model.width": row(32, network),
    "model.depth": row(1, network),
    "model.heads": row(4, network),
    "model.mlp_ratio": row(2.0, network),
    "model.stem": row("conv", network),
    "model.positions": row("sincos_2d", network),
    "model.pool": row("mean", network),
    "model.pool_width": row(8, network, {"model.pool": "attention"}),
    "model.class_token": row(False, network, {"model.pool": "mean"}),
    "model.registers": row(2, network),
    "model.layer_scale": row(True, network),
    "model.mlp": row("swiglu", network),
    "model.norm_pre": row(True, network),
    "model.norm_eps": row(0.1, network),
    "model.dropout": row(0.5, network),
    "model.attention_dropout": row(0.5, network),
    "model.drop_path": row(0.5, network),
    "model.weights": shown("tests/models/weights/test_pretrained.py"),
    "model.weights_sha256": shown("tests/models/weights/test_weights_auto.py"),
    "model.weights_reason": shown("tests/models/weights/test_weights_auto.py"),
    "model.licence": shown("tests/models/weights/test_pretrained.py"),
    "model.terms": shown("tests/commands/test_fine_tuning.py"),
    "augment.policy": row("light", augmented),
    "augment.flips": row(False, augmented, {"augment.policy": "light"}),
    "augment.views": shown("tests/commands/test_train_views.py"),
    "augment.crop": row(0.5, augmented),
    "augment.mixup": row(0.8, loss, findings="mixup", number="mixup"),
    "augment.cutmix": row(0.8, loss, findings="cutmix", number="cutmix"),
    "train.epochs": row(2, weights),
    "train.time": shown("tests/commands/test_train_time.py"),
    "train.batch_size": row(4, weights),
    "train.accumulate": row(2, weights),
    "train.micro_batch": shown("tests/training/test_memory.py"),
    "train.grad_checkpointing": shown("tests/training/test_gradients.py"),
    "train.lr": row(1e-2, weights),
    "train.min_lr": row(4e-3, weights, {"train.lr": 5e-3}),
    "train.warmup_epochs": row(0.3, weights),
    "train.weight_decay": row(0.5, steps),
    "train.clip_norm": row(0.01, weights),
    "train.seed": row(1, weights),
    "train.device": shown("tests/models/test_hardware.py"),
    "train.precision": shown("tests/inference/test_choose_precision.py"),
    "train.autotune": shown("tests/training/plan/test_autotune.py"),
    "train.compile": shown("tests/training/plan/test_autotune.py"),
    "train.attention": shown("tests/training/plan/test_autotune.py"),
    "train.threads": shown("tests/training/plan/test_autotune.py"),
    "train.workers": shown("tests/data/test_loading.py"),
    "train.layer_decay": row(0.5, steps),
    "train.freeze": shown("tests/commands/test_fine_tuning.py"),
    "train.probe_first": shown("tests/commands/test_fine_tuning.py"),
    "train.freeze_blocks": shown("tests/commands/test_fine_tuning.py"),
    "train.lora": shown("tests/commands/test_fine_tuning.py"),
    "train.baseline": shown("tests/commands/test_labels_table.py"),
    "train.smoothing": row(0.3, loss, **OF_CLASSES),
    "train.balance": row("loss", loss, number="not for number"),
    "train.ema": row(False, weights, {"train.batch_size": 2}),
    "train.ema_decay": row(0.5, weights),
    "train.monitor": shown("tests/commands/test_numbers_and_grades.py"),
    "train.choose": shown("tests/training/plan/test_plan_rules.py"),
    "train.patience": shown("tests/training/test_loop.py"),
    "train.shard": shown("tests/training/test_ranks.py"),
    "train.test": shown("tests/commands/test_train.py"),
    "train.track": shown("tests/training/test_trackers.py"),
    "train.save_every": shown("tests/conftest.py"),
    "evaluate.resamples": row(50, numbers, **NOT_NUMBER),
    "evaluate.subgroups": row(["site"], numbers),
    "evaluate.raters": row(["r", "s"], numbers, **OF_CLASSES),
    "evaluate.rater_scores": row(["score"], numbers, three="two classes", grades="two classes", **OF_CLASSES),
    "evaluate.ordinal": row(
        ["c", "b", "a"], numbers, two=Cell(["ill", "healthy"], numbers), grades=Cell(["g2", "g1", "g0"], numbers),
        findings="no column for the label", number="grade",
    ),
    "evaluate.calibration": row("none", policy, **NOT_NUMBER),
    "evaluate.youden": row(True, policy, **TWO_ALONE, **NOT_NUMBER),
    "evaluate.balanced": row(
        True, policy, two="of two classes --youden", findings="of two classes --youden", **NOT_NUMBER
    ),
    "evaluate.target_sensitivity": row(0.95, policy, **TWO_ALONE, **NOT_NUMBER),
    "evaluate.target_specificity": row(0.95, policy, **TWO_ALONE, **NOT_NUMBER),
    "evaluate.cost": row(
        "10:1", policy, **NOT_NUMBER,
        **dict.fromkeys(("three", "grades"), Cell([[0.0, 9.0, 9.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]], policy)),
    ),
    "evaluate.prevalence": row(
        0.05, numbers, **NOT_NUMBER, three="changes nothing: it is for two classes", grades="changes nothing"
    ),
    "evaluate.coverage": row(0.6, numbers),
    "evaluate.max_risk": row(0.1, policy, **NOT_NUMBER),
    "evaluate.map_images": shown("tests/commands/test_train.py"),
    "evaluate.format": row("html,md", pages),
    "data.unlabelled": shown("tests/commands/test_pretrain.py"),
    "mae.mask_ratio": shown("tests/commands/test_pretrain.py"),
    "evaluate.report": row(False, pages),
    "evaluate.show_names": shown("tests/report/test_write.py"),
}  # fmt: skip

# Options beside the configuration: command -> the files of tests that show them; and their names.
RUN = "training/plan/test_plan_rules commands/test_train studies/test_study"
NEW = "data config sets output name offline"
OPTIONS: dict[str, tuple[str, str]] = {
    "train": (
        f"{RUN} commands/test_resume studies/test_folds commands/test_evaluate commands/test_scale "
        "studies/test_cluster",
        f"{NEW} resume parallel on strict fail_under devices",
    ),
    "check": ("commands/test_check cli/test_cli test_settings", "data output strict no_index"),
    "plan": (f"{RUN} cli/test_written_files", "data config sets output force offline"),
    "probe": (f"{RUN} studies/test_rank_weights studies/test_cluster", f"{NEW} on strict fail_under"),
    "pretrain": (f"{RUN} commands/test_pretrain", "data config sets output name resume"),
    "demo": ("test_api commands/test_evaluate data/test_synthetic", "output seed cells fail_under"),
    "predict": (
        "commands/test_predict commands/test_predict_shard cli/test_written_files inference/test_inference "
        "studies/test_cluster",
        "images checkpoint runs top_k csv plot force window shard precision features output on strict",
    ),
    "merge": ("commands/test_predict_shard cli/test_written_files", "folder output force"),
    "evaluate": (
        "commands/test_evaluate decisions/test_policy commands/test_predict",
        "checkpoint data split allow_leakage output positive precision fail_under window",
    ),
    "compare": ("commands/test_compare deploy/test_acceptance", "output results accept"),
    "explain": ("commands/test_explain commands/test_predict", "images checkpoint runs methods target output window"),
    "stress": (
        "commands/test_stress commands/test_evaluate commands/test_predict",
        "checkpoint data split allow_leakage output images corruptions seed window",
    ),
    "sample-size": (
        "metrics/test_sample_size", "number expected half_width lower_bound power prevalence images_per_patient icc",
    ),
    "auto": (f"{RUN} commands/test_auto studies/test_folds studies/test_cluster", f"{NEW} resume parallel on strict"),
    "cross-validate": (
        f"{RUN} studies/test_folds commands/test_evaluate commands/test_resume studies/test_cluster",
        f"{NEW} resume parallel on strict fail_under",
    ),
    "ensemble": ("commands/test_ensemble", "output runs"),
    "tune": (
        f"{RUN} commands/test_tune commands/test_scale studies/test_cluster",
        f"{NEW} trials time space grid seeds prune resume parallel devices on strict",
    ),
    "runs": ("commands/test_runs", "folder sort"),
    "diff": ("commands/test_diff", "first second"),
    "export": (
        "commands/test_export deploy/test_export_weights cli/test_written_files", "checkpoint to data force",
    ),
    "bundle": ("commands/test_bundle", "model to extras force"),
    "serve": (
        "commands/test_serve deploy/http/test_limits deploy/http/test_scores deploy/test_structured_report",
        "checkpoint host port api_key_file no_key max_megabytes max_images timeout queue batch scores "
        "precision window",
    ),
    "monitor": (
        "commands/test_monitor test_settings", "run new output split period false_alarms shift",
    ),
    "data list": ("", ""), "weights list": ("", ""),
    "data get": ("commands/test_data", "name folder offline"),
    "data import": ("data/test_public_files", "source folder"),
    "weights fetch": ("models/weights/test_weights_catalogue core/test_downloads", "names folder offline"),
    "weights where": ("models/weights/test_weights_catalogue", "name"),
    "summary": ("models/test_vit test_api", "num_classes model"),
}  # fmt: skip
EVERYWHERE = {"quiet", "verbose", "as_json"}  # tests/cli/test_streams.py
OTHER_NAMES = {
    "max_megabytes": "megabytes",
    "max_images": "images",
}  # of the Python function that it reaches


def leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    for inner, one in getattr(command, "commands", {}).items():
        yield from leaves(f"{name} {inner}", one)
    if not hasattr(command, "commands"):
        yield name, command


COMMANDS = dict(pair for name, app in APPS.items() for pair in leaves(name, get_command(app)))


# ---- the tests ----


def refusal(config: Config, kind: str) -> str:
    """What vitmed says before a training, or of an evaluation, of these labels; "" for nothing."""
    notes = list[str]()
    try:
        splits = make_splits(config.data, ordinal=config.evaluate.ordinal)
        config = config_of_target(config, splits)
        asked_point(config.evaluate, splits.choices)
        note_prevalence(config.evaluate, splits.target.kind, splits.classes, notes)
    except VitmedError as error:
        notes.append(str(error))
    return " ".join(notes)


def of_field(command: str, param: Any) -> str | None:
    """The field of the configuration that an option sets; None for an option of the command itself."""
    kind: Any = PretrainConfig if command == "pretrain" else Config
    place = flags_of(kind).get(param.name)
    if place is None:
        return None
    section, _, name = place.partition(".")
    about = (fields_of(kind, section)[name].description or "").partition(". ")[0].rstrip(".") + "."
    return place if getattr(param, "help", None) == about else None


def test_every_field_and_every_option_has_a_row() -> None:
    fields = {
        f"{part}.{name}"
        for kind in (Config, PretrainConfig)
        for part in kind.model_fields
        for name in fields_of(kind, part)
    }
    assert sorted(SETTINGS) == sorted(fields) and len(fields) > 100
    assert sorted(OPTIONS) == sorted(COMMANDS)
    for command, app in COMMANDS.items():
        own = {param.name for param in app.params if of_field(command, param) is None} - EVERYWHERE
        assert sorted(own) == sorted(OPTIONS[command][1].split()), command


# Each trains, or writes a page, for itself; `train.lr`, `train.accumulate` and `evaluate.report` run with every push.
COSTLY = {f"train.{name}" for name in ("epochs", "batch_size", "min_lr", "warmup_epochs", "clip_norm", "ema_decay")}
COSTLY |= {"train.seed", "train.ema", "evaluate.format", "evaluate.coverage", "evaluate.prevalence", "evaluate.raters"}


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in COSTLY))
        for name, cells in SETTINGS.items()
        if isinstance(cells, dict)
    ],
)
def test_a_setting_changes_something_or_says_that_it_does_not(setting: str, folder: Path, no_figures: None) -> None:
    cells = SETTINGS[setting]
    assert isinstance(cells, dict) and tuple(cells) == KINDS
    for kind, cell in cells.items():
        beside = {**TINIER, **dict(cell.beside)}
        before, after = (config_of(folder, kind, given) for given in (beside, {**beside, setting: cell.value}))
        said = refusal(after, kind)
        assert (said == "") == (cell.where is not None), (setting, kind, said)
        assert cell.said in said, (setting, kind, said)
        if cell.where is not None:
            assert cell.where(before, kind) != cell.where(after, kind), (setting, kind)


def names_in(file: Path, words: set[str]) -> bool:
    """Whether a file of tests gives one of these options, as a flag, a keyword or a text."""
    ways = [w for word in words for w in (rf"--{word.replace('_', '-')}\b", rf"\b{word}=", rf"[\"'.]{word}\b")]
    return re.search("|".join(ways), file.read_text(encoding="utf-8")) is not None


@pytest.mark.parametrize("setting", [name for name, cells in SETTINGS.items() if isinstance(cells, Shown)])
def test_what_is_shown_elsewhere_is_named_there(setting: str) -> None:
    cells, name = SETTINGS[setting], setting.partition(".")[2]
    assert isinstance(cells, Shown)
    flag = next((keyword for keyword, place in FLAGS.items() if place == setting), name)
    assert names_in(ROOT.parent / cells.file, {name, flag, OTHER_NAMES.get(name, name)})


@pytest.mark.parametrize("command", OPTIONS)
def test_options_are_named_in_their_tests(command: str) -> None:
    files, names = (words.split() for words in OPTIONS[command])
    for name in names:
        param = next(one for one in COMMANDS[command].params if one.name == name)
        spelled = {name, OTHER_NAMES.get(name, name), *(flag[2:] for flag in param.opts if flag.startswith("--"))}
        found = param.param_type_name == "argument" or any(names_in(ROOT / f"{file}.py", spelled) for file in files)
        assert found, (command, name)


# ---- the commands ----


@pytest.mark.parametrize("command", ["train", "plan", "auto", "cross-validate", "tune", "probe"])
def test_every_command_that_trains_refuses_what_a_number_has_no_use_for(
    command: str, folder: Path, tmp_path: Path, vitmed: Callable[..., Answer], ages: TrainResult
) -> None:
    for flags in (("--max-risk", "0.1"), ("--youden",), ("--calibration", "none"), ("--rater", "r")):
        place = tmp_path / "plan.yaml" if command == "plan" else tmp_path / "runs"
        given = [folder, "--labels", folder / "number.csv", "-o", place, "--no-cache"]
        given += ["--weights", ages.checkpoint] if command == "probe" else ["--epochs", "1", "--image-size", "16"]
        answer = vitmed(command, *given, *flags)
        assert answer.code == 2 and f"{NOTHING} number" in answer.err, (flags, answer.err[-500:])


def test_an_evaluation_refuses_what_the_labels_have_no_use_for(
    ages: TrainResult, findings: TrainResult, tmp_path: Path
) -> None:
    for run, given in (
        (ages, {"max_risk": 0.1}), (ages, {"youden": True}), (ages, {"calibration": "none"}), (ages, {"rater": ["r"]}),
        (findings, {"rater": ["patient"]}), (findings, {"ordinal": "amber,blue,rare"}),
    ):  # fmt: skip
        for source in (run.checkpoint, run.folder / "test" / "predictions.csv"):
            with pytest.raises(UsageError, match=NOTHING):
                evaluate(source, output=tmp_path / "r", **given)


def test_a_table_is_evaluated_without_images(ages: TrainResult, tmp_path: Path) -> None:
    table = ages.folder / "test" / "predictions.csv"
    for name, value in {
        "data": tmp_path, "split": "val", "device": "cpu", "precision": "bf16", "group_regex": "x", "groups": "names",
        "allow_leakage": True, "map_images": 3,
    }.items():  # fmt: skip
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}: a predictions.csv is evaluated without"):
            evaluate(table, output=tmp_path / "r", **{name: value})


def test_patience_says_where_the_last_epoch_is_kept(folder: Path) -> None:
    def warned(**given: Any) -> list[str]:
        ui = recording()
        make_plan(config_of(folder, "two", {f"train.{name}": value for name, value in given.items()}), True)
        return [text for text in ui.warned if "changes nothing" in text]

    assert warned() == [] and warned(patience=3, choose="best") == []
    assert warned(patience=3) == [LAST_KEPT.format("patience", 3)] == warned(patience=3, choose="last")
    assert warned(monitor="log_loss") == [LAST_KEPT.format("monitor", "log_loss")]


def test_what_a_number_does_not_show_is_said(ages: TrainResult, vitmed: Callable[..., Answer]) -> None:
    image = next(load_checkpoint(ages.folder).splits.root.rglob("*.png"))
    answer = vitmed("predict", image, "--checkpoint", ages.folder, "--top-k", "2")
    assert answer.code == 0 and "--top-k changes nothing" in answer.err


def test_the_charts_of_a_monitor_are_as_asked(ages: TrainResult) -> None:
    for given, said in (
        ({"false_alarms": 1.0}, "--false-alarms 1,"),
        ({"false_alarms": 1e-5}, "--false-alarms 1e-05"),
        ({"shift": 9.0}, "--shift 9"),
    ):
        with pytest.raises(UsageError, match=said):
            monitor(ages.folder, ages.folder / "test" / "predictions.csv", **given)


def test_tune_needs_the_test(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--no-test do not go with tune"):
        tune(folder, labels=folder / "two.csv", test=False, output=tmp_path)
