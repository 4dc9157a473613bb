"""The configuration: every setting with its type, range, flag and meaning.

A setting is declared once, as a field here (or in `core/pretrain_config.py`). The command line, the Python keywords,
the YAML keys and docs/configuration.md come from the fields; see `core/flags.py`. Names from tables elsewhere (models,
policies, metrics) are plain `str` here; `check_names` checks them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

PANELS = ("Most used", "Data", "Patients", "Model", "Training", "Evaluation", "Output")  # headings of --help, in order


@dataclass(frozen=True)
class Flag:
    """The flag and Python keyword of a field. The first sentence of the field's description is its help.

    Attributes:
        name: of the keyword and, with hyphens, of the flag. Default: the name of the field.
        also: another spelling of the flag, such as "-b".
        metavar: what --help shows for the value. Default: the choices, or the type.
        panel: heading of the flag in --help. Default: the panel of the section.
        first: whether --help lists the flag under "Most used" instead.
    """

    name: str = ""
    also: str = ""
    metavar: str = ""
    panel: str = ""
    first: bool = False


def read_window(value: Any) -> str | list[float] | None:
    """Read `data.window` from YAML or the command line: null, auto, percentiles, dicom, dicom:N, or two rising numbers.
    Raises ValueError for anything else."""
    if value is None or value in ("auto", "percentiles", "dicom"):
        return value
    if isinstance(value, str) and re.fullmatch(r"dicom:\d{1,3}", value):
        return value
    try:
        low, high = (float(part) for part in (value.split(",") if isinstance(value, str) else value))
    except (TypeError, ValueError):
        raise ValueError(
            f"data.window {value!r}: expected auto, percentiles, dicom, dicom:1, or two numbers such as 40,400"
        ) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"data.window {low:g},{high:g}: the first number must lie below the second")
    return [low, high]


def read_cost(value: Any) -> str | list[list[float]] | None:
    """Read `evaluate.cost` from YAML or the command line: null, two numbers with a colon, or a square matrix (also as
    JSON). Raises ValueError for anything else, or a cost below 0."""
    if value is None:
        return None
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
        raise ValueError(
            f"evaluate.cost {given}: expected two numbers above 0 such as 10:1 (in YAML with quotes), or a square "
            "matrix of numbers from 0 such as [[0,10],[1,0]], with the true class as row"
        )
    return value


class Section(BaseModel):
    """Fields that belong together; `panel` is the heading of their flags in --help."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)
    panel: ClassVar[str] = ""


class DataConfig(Section):
    """Which images, how they are split, and how each becomes a square array."""

    panel = "Data"

    root: str | None = Field(
        None, description="Folder of images, or a MedMNIST .npz file. In a YAML file, relative to that file."
    )
    resize: Annotated[Literal["pad", "squash", "crop"], Flag()] = Field(
        "pad",
        description="How an image becomes square: pad keeps all of it, squash distorts it, crop cuts its sides.",
    )
    interpolation: Literal["bilinear", "bicubic", "lanczos", "nearest"] = Field(
        "bilinear", description="How pixels are resampled; all but nearest antialias."
    )
    normalize: Annotated[Literal["imagenet", "half", "image", "given"], Flag()] = Field(
        "imagenet",
        description="How pixel values are normalised; image removes differences of stain and light. imagenet: the "
        "usual mean and std; half: to -1..1; image: each channel of each image to mean 0 and std 1; given: data.mean "
        "and data.std.",
    )
    mean: list[float] | None = Field(
        None, description="Mean of each channel for normalize: given; pixel values are 0..1."
    )
    std: list[float] | None = Field(
        None, description="Standard deviation of each channel for normalize: given; pixel values are 0..1."
    )
    window: Annotated[str | list[float] | None, Flag(metavar="auto|percentiles|dicom|LOW,HIGH")] = Field(
        "auto",
        description="Which values of a 16-bit, float or grey DICOM image become black and white. percentiles: 0.5 and "
        "99.5 of the training images; dicom: each file's own window (dicom:1: its second); [low, high]: these values; "
        "null: 8-bit images only. Chosen once and stored with the model. See docs/formats.md.",
    )
    frame: Annotated[int | None, Flag()] = Field(
        None, ge=0, description="Which frame or page of a file that has several, from 0. null refuses such files."
    )
    val_fraction: float = Field(
        0.15, gt=0, lt=1, description="Share split off for validation where there is no val folder."
    )
    test_fraction: float = Field(
        0.15, gt=0, lt=1, description="Share split off for the test where there is no test folder."
    )
    split_seed: int = Field(
        0, ge=0, description="Seed of the split. Apart from train.seed, so that seeds of training can be compared."
    )
    max_train: Annotated[int | None, Flag()] = Field(
        None, ge=2, description="Train on a stratified sample of this many images."
    )
    group_regex: Annotated[str | None, Flag(panel="Patients", metavar="REGEX", first=True)] = Field(
        None,
        description="Regular expression that finds the patient in a file's path; a patient is never split. The path is "
        "relative to the data root; the patient is the first bracket, or the whole match.",
    )
    groups: Annotated[str | None, Flag(panel="Patients", metavar="names|dicom|TABLE")] = Field(
        None,
        description="Where the patient stands instead: in file names, DICOM's PatientID, or a CSV table. The table has "
        "columns path and patient; in a YAML file, its path is relative to that file.",
    )
    labels: Annotated[str | None, Flag(metavar="TABLE")] = Field(
        None,
        description="CSV table with columns path and label, instead of a folder for each class. More columns: "
        "docs/patients.md. In a YAML file, relative to that file.",
    )
    folds: Annotated[int | None, Flag(panel="Patients")] = Field(
        None, ge=2, description="Divide all images into this many folds, one of which is the test."
    )
    fold: Annotated[int | None, Flag(panel="Patients")] = Field(
        None, ge=1, description="Which fold is the test, from 1; by default train does each in turn."
    )
    allow_leakage: Annotated[bool, Flag(panel="Patients")] = Field(
        False, description="Go on where a patient is in two of the folder's own splits; the report says so."
    )
    positive: Annotated[str | None, Flag(metavar="CLASS")] = Field(
        None,
        description="Two classes: the positive one, whose sensitivity is reported. Default: the class whose name does "
        "not mean normal.",
    )
    cache: Annotated[bool, Flag()] = Field(
        True,
        description="Keep decoded, resized images for the next run. Small sets that decode fast stay in memory, others "
        "in a file in the cache folder; false decodes every time and writes nothing.",
    )
    cache_gb: Annotated[float, Flag("cache_size", metavar="GB")] = Field(
        20.0, ge=0, description="Most that the files of decoded images may take together, in GB. The oldest go first."
    )

    @field_validator("window", mode="plain")
    @classmethod
    def _a_window(cls, value: Any) -> str | list[float] | None:
        return read_window(value)


class ModelConfig(Section):
    """The Vision Transformer. Sizes come from the name; every number can be set."""

    panel = "Model"

    name: Annotated[str, Flag("model", metavar="SIZE", first=True)] = Field(
        "vit_tiny", description="vit_tiny, vit_small, vit_base or vit_large."
    )
    image_size: Annotated[int, Flag(first=True)] = Field(
        224, ge=4, le=2048, description="Side of the square input, px."
    )
    patch_size: Annotated[int, Flag()] = Field(
        16, ge=1, le=256, description="Side of a patch, px; must divide the image size."
    )
    channels: Annotated[int, Flag()] = Field(
        3, ge=1, le=4, description="Input channels: 1 grey, 2 grey + alpha, 3 RGB, 4 RGB + alpha."
    )
    width: int | None = Field(None, ge=4, description="Embedding width; default from the name.")
    depth: int | None = Field(None, ge=1, le=128, description="Number of blocks; default from the name.")
    heads: int | None = Field(None, ge=1, description="Attention heads; must divide width; default from the name.")
    mlp_ratio: float = Field(4.0, gt=0, description="Hidden width of the MLP / width.")
    stem: Annotated[Literal["auto", "patch", "conv"], Flag()] = Field(
        "auto",
        description="How patches are embedded: one convolution (patch) or a stack of them (conv). conv, 3x3 "
        "convolutions of stride 2, learns faster from few images; auto: conv when training from scratch, patch with "
        "weights.",
    )
    positions: Annotated[Literal["learned", "sincos_1d", "sincos_2d"], Flag()] = Field(
        "learned", description="Position embedding."
    )
    pool: Annotated[Literal["auto", "cls", "mean"], Flag()] = Field(
        "auto",
        description="What the head sees: the class token (cls) or the mean of the patches. auto: mean from scratch, "
        "cls with weights.",
    )
    registers: int = Field(0, ge=0, le=64, description="Learned tokens without a place; some DINOv2 weights have 4.")
    layer_scale: bool = Field(False, description="Scale each branch by learned numbers, as DINOv2 and UNI do.")
    norm_eps: float = Field(1e-6, gt=0, lt=1, description="Epsilon of the layer norms; 1e-12 in Hugging Face's ViT.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout after positions, attention projection and MLP layers.")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of attention probabilities.")
    drop_path: Annotated[float, Flag()] = Field(
        0.0, ge=0, lt=1, description="Stochastic depth of the last block; grows linearly from 0."
    )
    weights: Annotated[str | None, Flag(metavar="FILE|NAME", first=True)] = Field(
        None,
        description="Weights to start from: a file, or a name of `vitmed weights list`; they decide the network. The "
        "file is of vitmed, timm, torchvision, Hugging Face or Google; in a YAML file, relative to that file.",
    )
    licence: str | None = Field(
        None, description="Licence of the weights, where it is known; the checkpoint and the report keep it."
    )


class AugmentConfig(Section):
    """Random changes of training images; which ones are safe depends on the modality."""

    panel = "Training"

    policy: Annotated[str, Flag(also="--augment", metavar="NAME", first=True)] = Field(
        "medical", description="Augmentation policy for the modality, such as blood_smear; see docs/training.md."
    )
    flips: bool = Field(
        True, description="Allow the policy's mirror flips; refused if classes differ by left and right."
    )
    mixup: Annotated[float, Flag()] = Field(0.0, ge=0, description="Alpha of mixup; 0 is off. It changes calibration.")
    cutmix: Annotated[float, Flag()] = Field(
        0.0, ge=0, description="Alpha of cutmix; 0 is off. It changes calibration."
    )


class LoopConfig(Section):
    """What training and pretraining share: the optimisation and where it runs."""

    panel = "Training"

    epochs: Annotated[int, Flag(first=True)] = Field(30, ge=1, description="Passes over the training images.")
    batch_size: Annotated[int, Flag(also="-b", first=True)] = Field(32, ge=1, description="Images per forward pass.")
    accumulate: Annotated[int, Flag()] = Field(
        1, ge=1, description="Batches per optimiser step; effective batch = batch_size x accumulate."
    )
    lr: Annotated[float, Flag(first=True)] = Field(5e-4, gt=0, description="Peak learning rate of AdamW.")
    min_lr: float = Field(1e-6, ge=0, description="Learning rate at the end of the cosine.")
    warmup_epochs: Annotated[float, Flag()] = Field(
        3.0, ge=0, description="Linear warm-up, in epochs; at most a third of the run."
    )
    weight_decay: Annotated[float, Flag()] = Field(
        0.05, ge=0, description="Weight decay of AdamW. Not applied to biases, norms, tokens and positions."
    )
    clip_norm: float | None = Field(1.0, gt=0, description="Clip the gradient to this norm; null is off.")
    seed: Annotated[int, Flag()] = Field(
        0, ge=0, description="Seed of weights, order, augmentation and dropout or masks."
    )
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], Flag()] = Field("auto", description="Where to compute.")
    precision: Annotated[Literal["auto", "fp32", "bf16", "fp16"], Flag()] = Field(
        "auto", description="Arithmetic of training; auto takes what the device does fast. Reports are always fp32."
    )
    workers: Annotated[int | None, Flag(also="-j")] = Field(
        None, ge=0, description="Processes that load images; default from the number of cores."
    )


class TrainConfig(LoopConfig):
    """The optimisation and its bookkeeping."""

    layer_decay: Annotated[float, Flag()] = Field(
        1.0, gt=0, le=1, description="Learning rate factor per block, from the head down; 1 is off."
    )
    freeze: Annotated[bool, Flag()] = Field(
        False,
        description="Keep the pretrained network and fit a logistic regression on its features (linear probe).",
    )
    probe_first: Annotated[bool, Flag()] = Field(
        False, description="Start the head from the logistic regression of freeze, then train everything."
    )
    freeze_blocks: Annotated[int | None, Flag(metavar="N")] = Field(
        None, ge=0, description="Keep the embedding and the first N blocks as they are. null trains everything."
    )
    lora: Annotated[int | None, Flag(metavar="RANK")] = Field(
        None, ge=1, description="Train low-rank additions to the blocks' matrices, and the head (LoRA)."
    )
    baseline: Annotated[bool, Flag()] = Field(
        True, description="Also fit baselines that need no training, and compare them at the end."
    )
    smoothing: Annotated[float, Flag()] = Field(0.05, ge=0, lt=1, description="Label smoothing.")
    balance: Annotated[Literal["none", "loss", "sampler"], Flag()] = Field(
        "none",
        description="Counter class imbalance by class weights (loss) or a balanced sampler; ruins calibration. AUROC "
        "stays.",
    )
    ema: Annotated[bool, Flag()] = Field(
        True, description="Evaluate and keep an exponential moving average of the weights."
    )
    ema_decay: float | None = Field(None, gt=0, lt=1, description="Default min(0.999, 1 - 10 / steps), with a warm-up.")
    monitor: Annotated[str, Flag(metavar="METRIC")] = Field(
        "auroc", description="Validation metric that picks the best checkpoint and stops early."
    )
    choose: Literal["best", "last"] = Field(
        "best",
        description="Which epoch best.pt holds: the best by monitor, or the last, without early stopping. Use last "
        "where validation is too small, or too like the training images, to choose by.",
    )
    patience: Annotated[int | None, Flag()] = Field(
        10, ge=1, description="Stop after this many epochs without a better monitor. null never stops early."
    )
    save_every: Annotated[int | None, Flag(metavar="N", panel="Output")] = Field(
        None, ge=1, description="Also keep a checkpoint every N epochs."
    )


class RunConfig(Section):
    """What the configurations of training and of pretraining share."""

    data: DataConfig = DataConfig()  # type: ignore[call-arg]
    model: ModelConfig = ModelConfig()  # type: ignore[call-arg]

    @field_validator("data")
    @classmethod
    def _something_left_to_train_on(cls, data: DataConfig) -> DataConfig:
        if data.val_fraction + (data.test_fraction if data.folds is None else 1 / data.folds) >= 1:
            raise ValueError("the shares of validation and test leave nothing to train on")
        if data.groups is not None and data.group_regex is not None:
            raise ValueError("data.groups and data.group_regex both define the patients")
        if (data.fold or 1) > (data.folds or 1):
            raise ValueError(f"data.fold {data.fold} of data.folds {data.folds}: there is no such fold")
        return data

    @model_validator(mode="after")
    def _mean_and_std_fit(self) -> RunConfig:
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


SHARES = ("target_sensitivity", "target_specificity", "prevalence", "coverage", "max_risk")  # fields between 0 and 1
FORMATS = ("html", "md", "json", "pdf")  # that a report can be written as


class EvaluateConfig(Section):
    """What an evaluation reports, and how. It changes no weight; everything is chosen on validation."""

    panel = "Evaluation"

    resamples: Annotated[int, Flag()] = Field(
        default=2000, ge=0, description="Bootstrap resamples behind the intervals; 0: none."
    )
    subgroups: Annotated[list[str], Flag("subgroup", metavar="COLUMN")] = Field(
        default=[], description="Column of the table of labels whose values are evaluated one by one, such as site."
    )
    raters: Annotated[list[str], Flag("rater", metavar="COLUMN")] = Field(
        default=[], description="Column of the table of labels that holds the class which a reader saw."
    )
    ordinal: Annotated[list[str], Flag(metavar="CLASS,CLASS,...")] = Field(
        default=[], description="The classes from the lowest grade to the highest, where they are grades."
    )
    calibration: Annotated[Literal["none", "temperature", "vector"], Flag()] = Field(
        default="temperature", description="How the probabilities are calibrated; fitted on validation."
    )
    youden: Annotated[bool, Flag()] = Field(
        default=False, description="Two classes: decide at the threshold of the highest Youden index."
    )
    target_sensitivity: Annotated[float | None, Flag(metavar="SHARE")] = Field(
        default=None, gt=0, lt=1, description="Two classes: decide at the highest threshold with this sensitivity."
    )
    target_specificity: Annotated[float | None, Flag(metavar="SHARE")] = Field(
        default=None, gt=0, lt=1, description="Two classes: decide at the lowest threshold with this specificity."
    )
    cost: Annotated[str | list[list[float]] | None, Flag(metavar="MISSED:ALARM|MATRIX")] = Field(
        default=None,
        description="Decide for the lowest expected cost: 10:1, or [[0,10],[1,0]] with the truth as row. Of two "
        "classes '10:1' means that a missed positive costs 10 times a false alarm; of more, give a matrix whose "
        "columns are the predictions.",
    )
    prevalence: Annotated[float | None, Flag(metavar="SHARE")] = Field(
        default=None,
        gt=0,
        lt=1,
        description="Two classes: how common the positive class is where the model is to be used.",
    )
    coverage: Annotated[float, Flag(metavar="SHARE")] = Field(
        default=0.9, gt=0, lt=1, description="How often the prediction set of an image holds its true class."
    )
    max_risk: Annotated[float | None, Flag(metavar="SHARE")] = Field(
        default=None, gt=0, lt=1, description="Abstain where the share of errors may lie above this."
    )
    map_images: Annotated[int | None, Flag(metavar="N")] = Field(
        default=None,
        ge=0,
        description="Images on which attention maps are evaluated; 0: no maps. null: as many as take some seconds, and "
        "none of train and val.",
    )
    format: Annotated[str, Flag(panel="Output", metavar="FORMAT,...")] = Field(
        default="html",
        description="Formats of the report: html, md, json, pdf. html and json are always written; pdf needs Chromium, "
        "Chrome or Edge on this machine.",
    )
    show_names: Annotated[bool, Flag(panel="Output")] = Field(
        default=False,
        description="Name images by their paths in the report. false: by their rows in predictions.csv.",
    )

    @field_validator("subgroups", "raters", "ordinal", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return list(dict.fromkeys([value] if isinstance(value, str) else value)) if value else []

    @field_validator("ordinal")
    @classmethod
    def _with_commas(cls, value: list[str]) -> list[str]:
        return [part.strip() for name in value for part in name.split(",")] if len(value) == 1 else value

    @field_validator("cost", mode="before")
    @classmethod
    def _cost(cls, value: Any) -> Any:
        return read_cost(value)

    @field_validator("format")
    @classmethod
    def _known_formats(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",")]
        if unknown := [name for name in names if name not in FORMATS]:
            raise ValueError(f"evaluate.format {unknown[0]}: expected {', '.join(FORMATS)}")
        return ",".join(dict.fromkeys(names))


class Config(RunConfig):
    """One training run, completely."""

    augment: AugmentConfig = AugmentConfig()  # type: ignore[call-arg]
    train: TrainConfig = TrainConfig()  # type: ignore[call-arg]
    evaluate: EvaluateConfig = EvaluateConfig()

    @field_validator("train")
    @classmethod
    def _one_way_to_tune(cls, train: TrainConfig) -> TrainConfig:
        if train.freeze and (train.probe_first or train.lora or train.freeze_blocks is not None):
            raise ValueError("train.freeze trains no weights, so it excludes every other way of fine-tuning")
        if train.lora and train.freeze_blocks is not None:
            raise ValueError("train.lora already freezes all blocks, so it excludes train.freeze_blocks")
        return train


def expected(error: Mapping[str, Any]) -> str:
    """What pydantic expected, in words; for a share in percent, also the right number."""
    value = error["input"]
    if error["loc"][-1] in SHARES and isinstance(value, int | float):
        share = "expected a share above 0 and below 1"
        return f"{share} (for {value:g} %: {value / 100:g})" if 2 <= value < 100 else share
    return str(error["msg"])


GROUP_WORDS = ("names", "dicom")  # values of data.groups that are not a table
# Fields that name a file or folder, relative to their YAML file.
PATHS = (("data", "root"), ("data", "groups"), ("data", "labels"), ("model", "weights"))
