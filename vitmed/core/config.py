"""The configuration: every setting with its type, range, flag and meaning.

A setting is declared once, as a field of a section, here or in `sections`. The command line, the Python keywords, the
YAML keys and docs/configuration.md come from the fields; see `base_models.setting`. Names from
tables elsewhere (models, policies, metrics) are plain `str` here; `check_names` checks them.
"""

import json
import math
from typing import Any, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from vitmed.core.base_models import Flag, Section, flags_of, names_in, setting, share
from vitmed.core.sections import AugmentConfig, DataConfig, LoopConfig, ModelConfig, TrainConfig

GRADE_ERRORS = ("absolute", "squared")  # values of evaluate.cost that follow from the order of grades


def read_cost(value: Any) -> str | list[list[float]] | None:
    """Read `evaluate.cost` from YAML or the command line: null, a value of `GRADE_ERRORS`, two numbers with a colon, or
    a square matrix (also as JSON). Raises ValueError for anything else, or a cost below 0."""
    if value is None or value in GRADE_ERRORS:
        return value  # type: ignore[no-any-return]
    given = value
    try:
        if isinstance(value, str) and value.lstrip().startswith("["):
            value = json.loads(value)
        if isinstance(value, str):
            costs = [float(part) for part in value.split(":")]
            good = len(costs) == 2 and all(0 < cost < math.inf for cost in costs)
        else:
            value = [[float(cost) for cost in row] for row in value]
            good = all(len(row) == len(value) and all(0 <= cost < math.inf for cost in row) for row in value)
    except (TypeError, ValueError):
        good = False
    if not good:
        two, matrix = "two numbers above 0 such as 10:1 (in YAML with quotes)", "a square matrix of numbers from 0"
        matrix += " such as [[0,10],[1,0]], with the true class as row"
        raise ValueError(f"evaluate.cost {given}: expected {two}, {matrix}, or absolute or squared for grades")
    return value


FORMATS = ("html", "md", "json", "paper")  # that a report can be written as


class EvaluateConfig(Section):
    """What an evaluation reports, and how. It changes no weight; everything is chosen on validation."""

    panel = "Evaluation"

    resamples: int = setting(
        2000, "Bootstrap resamples behind the intervals of curves and differences; 0: none.", Flag(), ge=0
    )
    subgroups: list[str] = setting(
        [],
        "Column of the table of labels, such as site; the images of each value are also evaluated separately.",
        Flag("subgroup", metavar="COLUMN"),
    )
    raters: list[str] = setting(
        [],
        "Column of the table of labels with the class that a human reader assigned.",
        Flag("rater", metavar="COLUMN"),
    )
    rater_scores: list[str] = setting(
        [],
        "Two classes: column of the table of labels with a reader's score, higher for the positive class.",
        Flag("rater_score", metavar="COLUMN"),
    )
    ordinal: list[str] = setting(
        [], "The classes from the lowest grade to the highest, where they are grades.", Flag(metavar="CLASS,CLASS,...")
    )
    calibration: Literal["auto", "none", "temperature", "vector"] = setting(
        "auto", "How the probabilities are calibrated; fitted, and by auto chosen, on validation.", Flag()
    )
    youden: bool = setting(False, "Two classes: decide at the threshold of the highest Youden index.", Flag())
    balanced: bool = setting(
        False,
        "Three classes or more: decide for the highest balanced accuracy, by probability / prevalence in validation.",
        Flag(),
    )
    target_sensitivity: float | None = share(
        None, "Two classes: decide at the highest threshold with this sensitivity."
    )
    target_specificity: float | None = share(None, "Two classes: decide at the lowest threshold with this specificity.")
    cost: str | list[list[float]] | None = setting(
        None,
        "Decide for the lowest expected cost: 10:1, or [[0,10],[1,0]] with the truth as row. Of two classes '10:1' "
        "means that a missed positive costs 10 times a false alarm; of more, give a matrix whose columns are the "
        "predictions. Of grades, 'absolute' costs the error in grades and 'squared' its square.",
        Flag(metavar="MISSED:ALARM|MATRIX|absolute|squared"),
    )
    prevalence: float | None = share(
        None, "Two classes: how common the positive class is where the model is to be used."
    )
    coverage: float = share(0.9, "How often the prediction set of an image holds its true class.")
    max_risk: float | None = share(
        None, "Abstain on uncertain images, to keep the share of wrong answers at or below this."
    )
    map_images: int | None = setting(
        None,
        "Images on which attention maps are evaluated; 0: no maps. null: as many as take some seconds, and none of "
        "train and val.",
        Flag(metavar="N"),
        ge=0,
    )
    format: str = setting(
        "html",
        "Formats of the report: html, md, json, paper. html and json are always written; paper: figures as PDF, tables "
        "as LaTeX and CSV, and the results in one sentence.",
        Flag(panel="Output", metavar="FORMAT,..."),
    )
    report: bool = setting(
        True,
        "Draw figures and write report.html. false: only predictions.csv and metrics.json; `vitmed evaluate` makes "
        "the page later.",
        Flag(panel="Output"),
    )
    show_names: bool = setting(
        False,
        "Name images by their paths in the report. false: by their rows in predictions.csv.",
        Flag(panel="Output"),
    )

    @field_validator("subgroups", "raters", "rater_scores", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return list(dict.fromkeys([value] if isinstance(value, str) else value)) if value else []

    _ordinal = field_validator("ordinal", mode="before")(names_in)
    _cost = field_validator("cost", mode="before")(read_cost)

    @field_validator("format")
    @classmethod
    def _known_formats(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",")]
        if unknown := [name for name in names if name not in FORMATS]:
            raise ValueError(f"evaluate.format {unknown[0]}: expected {', '.join(FORMATS)}")
        return ",".join(dict.fromkeys(names))


class RunConfig(Section):
    """What the configurations of training and of pretraining share."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()

    @field_validator("data")
    @classmethod
    def _something_left_to_train_on(cls, data: DataConfig) -> DataConfig:
        test = 0 if data.sites is not None else data.test_fraction if data.folds is None else 1 / data.folds
        fold = f"data.fold {data.fold} of data.folds {data.folds}"
        repeat = f"data.repeat {data.repeat} of data.repeats {data.repeats}"
        problems = {
            "the shares of validation and test leave nothing to train on": data.val_fraction + test >= 1,
            "data.groups and data.group_regex both define the patients": None not in (data.groups, data.group_regex),
            "data.folds and data.sites both define the folds": None not in (data.folds, data.sites),
            "data.fold needs data.folds or data.sites": data.fold is not None and not data.divided,
            "data.hold_out needs data.folds or data.sites": data.hold_out is not None and not data.divided,
            "data.repeats needs data.folds; sites are always the same folds": data.repeats > 1 and data.folds is None,
            f"{repeat}: there is no such repeat": data.repeat > data.repeats,
            f"{fold}: there is no such fold": data.folds is not None and (data.fold or 1) > data.folds,
        }
        for problem, wrong in problems.items():
            if wrong:
                raise ValueError(problem)
        return data

    @model_validator(mode="after")
    def _mean_and_std_fit(self) -> Self:
        data, channels = self.data, self.model.channels
        if {data.mean is not None, data.std is not None} != {data.normalize == "given"}:
            raise ValueError("data.normalize given, data.mean and data.std go together: set all or none")
        for name in ("mean", "std"):
            values = getattr(data, name)
            if values is not None and len(values) not in (1, 3, channels):
                raise ValueError(f"data.{name} has {len(values)} numbers for {channels} channels")
        if data.std is not None and min(data.std) <= 0:
            raise ValueError("data.std holds a number that is not above 0")
        return self

    @field_validator("train", check_fields=False)
    @classmethod
    def _min_lr_below_lr(cls, train: Any) -> Any:
        if train.min_lr > train.lr:
            raise ValueError(f"train.min_lr {train.min_lr:g} is above train.lr {train.lr:g}")
        return train

    def to_yaml(self) -> str:
        """All fields, resolved, in the order of the docs."""
        import yaml  # here, since `vitmed train --help` needs the fields and no YAML

        return yaml.safe_dump(self.model_dump(), sort_keys=False)


class Config(RunConfig):
    """One training run, completely."""

    augment: AugmentConfig = AugmentConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()

    @field_validator("train")
    @classmethod
    def _one_way_to_tune(cls, train: TrainConfig) -> TrainConfig:
        if train.freeze and (train.probe_first or train.lora or train.freeze_blocks is not None):
            raise ValueError("train.freeze trains no weights, so it excludes every other way of fine-tuning")
        if train.lora and train.freeze_blocks is not None:
            raise ValueError("train.lora already freezes all blocks, so it excludes train.freeze_blocks")
        return train


class PretrainDataConfig(DataConfig):
    """Which images to learn from: the ones that training would use, or all."""

    unlabelled: bool = setting(
        False,
        "Folders are no classes: take every image but those of a test folder. false splits as training does, and "
        "leaves its test images out.",
        Flag(),
    )


class PretrainTrainConfig(LoopConfig):
    """The optimisation of pretraining; some defaults differ from training."""

    epochs: int = setting(
        200, "Passes over the images; the paper has 800 and gains up to 1,600.", Flag(first=True), ge=1
    )
    batch_size: int = setting(
        128,
        "Images per batch (the paper has 4,096), or auto: as many of them are computed at once as fit the memory.",
        Flag(also="-b", metavar="N|auto", first=True, text=True),
        ge=1,
    )
    lr: float = setting(
        5e-4, "Peak learning rate of AdamW; the paper has 2.4e-3 for its batch of 4,096.", Flag(first=True), gt=0
    )
    min_lr: float = setting(0.0, "Learning rate at the end of the cosine.", ge=0)
    warmup_epochs: float = setting(10.0, "Linear warm-up, in epochs; at most a third of the run.", Flag(), ge=0)
    clip_norm: float | None = setting(None, "Clip the gradient to this norm; null is off.", gt=0)
    # What training chooses and pretraining does not.
    balance: ClassVar[str] = "none"
    betas: ClassVar[tuple[float, float]] = (0.9, 0.95)  # of the MAE paper
    choose: ClassVar[str] = "last"
    ema: ClassVar[bool] = False
    ema_decay: ClassVar[float | None] = None
    layer_decay: ClassVar[float] = 1.0
    patience: ClassVar[int | None] = None
    shard: ClassVar[bool] = False


class PretrainAugmentConfig(Section):
    """Random changes of the images before patches are hidden."""

    panel = "Training"

    policy: str = setting(
        "mae", "Augmentation policy; see docs/training.md.", Flag(also="--augment", metavar="NAME", first=True)
    )
    flips: bool = setting(True, "Allow the policy's mirror flips.")


class MaeConfig(Section):
    """The masked autoencoder around the encoder."""

    panel = "Training"

    mask_ratio: float = share(0.75, "Share of patches that is hidden.")
    normalise_patches: bool = setting(
        True, "Predict each patch at mean 0 and standard deviation 1, which the paper found better."
    )
    decoder_width: int | None = setting(
        None, "Default 512 for encoders of 768 and more, else about half the encoder's.", ge=4, le=8192
    )
    decoder_depth: int | None = setting(None, "Default 8 for encoders of 768 and more, else 4.", ge=1, le=128)
    decoder_heads: int | None = setting(None, "Default the decoder's width / 32.", ge=1)


class PretrainConfig(RunConfig):
    """One pretraining run, completely."""

    data: PretrainDataConfig = PretrainDataConfig()
    augment: PretrainAugmentConfig = PretrainAugmentConfig()
    mae: MaeConfig = MaeConfig()
    train: PretrainTrainConfig = PretrainTrainConfig()

    @property
    def encoder(self) -> ModelConfig:
        """The network that learns. A decoder needs `norm` over every token, and pooling the mean moves it behind."""
        return self.model.model_copy(update={"pool": "cls"})


# Fields that name a file or folder, relative to their YAML file.
PATHS = (("data", "root"), ("data", "groups"), ("data", "labels"), ("model", "weights"))
FLAGS = flags_of(Config)  # of `vitmed train`; plan and probe take the same keywords
EVALUATE_FLAGS = flags_of(Config, "evaluate")
OF_PROBE = "data", "model.weights", "model.image_size", "train.seed", "train.device", "train.workers", "evaluate"
PROBE_FLAGS = flags_of(Config, *OF_PROBE)
TUNE_FLAGS = flags_of(Config, without=("train.time",))  # of tune itself: how long all trials may take
