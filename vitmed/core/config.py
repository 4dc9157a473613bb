"""The configuration: frozen, strict, documented per field. Defaults < YAML file < command line.

`docs/configuration.md` is generated from the descriptions here. Names that stand in a table elsewhere
(models, policies, metrics) are plain `str` here and are checked against that table by `check_names`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from vitmed.core.errors import UsageError, unknown_key
from vitmed.core.places import find


def read_window(value: Any) -> str | list[float] | None:
    """`data.window` as YAML or the command line has it: null, auto, percentiles, dicom, dicom:N, or two numbers.

    Raises:
        ValueError: anything else, or numbers that do not rise.
    """
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
    """`evaluate.cost` as YAML or the command line has it: null, two numbers with a colon, or a matrix (also as JSON).

    Raises:
        ValueError: anything else, a cost below 0, or a matrix that is not square.
    """
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
            "matrix of numbers of 0 and more such as [[0,10],[1,0]], the row being the truth"
        )
    return value


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)


class DataConfig(Section):
    """Which images, how they are split, and how each becomes a square array."""

    root: str | None = Field(
        None, description="Folder of images, or a MedMNIST .npz file; in a YAML file, relative to that file."
    )
    resize: Literal["pad", "squash", "crop"] = Field(
        "pad",
        description="How an image becomes square: pad keeps all of it, squash distorts it, crop cuts its sides.",
    )
    interpolation: Literal["bilinear", "bicubic", "lanczos", "nearest"] = Field(
        "bilinear", description="How pixels are resampled, always with antialiasing but for nearest."
    )
    normalize: Literal["imagenet", "half", "image", "given"] = Field(
        "imagenet",
        description="imagenet: the usual mean and std; half: to -1..1; image: each channel of each image to mean 0 and "
        "std 1, which removes differences of stain and light between slides; given: data.mean and data.std.",
    )
    mean: list[float] | None = Field(None, description="Of each channel, of values in 0..1, for normalize: given.")
    std: list[float] | None = Field(None, description="Of each channel, of values in 0..1, for normalize: given.")
    window: str | list[float] | None = Field(
        "auto",
        description="Which values of a deep image (16-bit, float, grey DICOM) become black and white: auto, "
        "percentiles (0.5 and 99.5 of the training images), dicom (each file's own window; dicom:1 its second), or "
        "[low, high]; null: 8-bit images only. Settled once, stored with the model. See docs/formats.md.",
    )
    frame: int | None = Field(
        None, ge=0, description="Which frame or page of a file that has several, from 0; null refuses such files."
    )
    val_fraction: float = Field(
        0.15, gt=0, lt=1, description="Share split off for validation where there is no val folder."
    )
    test_fraction: float = Field(
        0.15, gt=0, lt=1, description="Share split off for the test where there is no test folder."
    )
    split_seed: int = Field(0, ge=0, description="Seed of the split; separate from train.seed, so that seeds compare.")
    max_train: int | None = Field(None, ge=2, description="Train on a stratified sample of this many images.")
    group_regex: str | None = Field(
        None,
        description="Finds the patient in a path relative to the data root: the first bracket, or the whole match. "
        "A patient is then never split.",
    )
    groups: str | None = Field(
        None,
        description="How patients are known instead: names (from the file names, as vitmed shows them), dicom "
        "(PatientID), or a CSV table with columns path and patient (in a YAML file, relative to that file).",
    )
    labels: str | None = Field(
        None,
        description="CSV table with columns path and label, instead of folders by class; more in docs/patients.md. In "
        "a YAML file, relative to that file.",
    )
    folds: int | None = Field(None, ge=2, description="Divide all images into so many folds; one is the test.")
    fold: int | None = Field(
        None, ge=1, description="Which of the folds is the test, from 1; null: training does each in turn."
    )
    allow_leakage: bool = Field(
        False, description="Go on where a patient is in two of the folder's own splits; the report says so."
    )
    positive: str | None = Field(
        None,
        description="Of two classes the finding, whose sensitivity is told; default the one not named like normal.",
    )
    cache: bool = Field(
        True,
        description="Keep decoded, resized images: few and quick ones in memory, others in a file in the cache folder; "
        "false decodes every time and writes nothing.",
    )
    cache_gb: float = Field(
        20.0, ge=0, description="Most that the files of decoded images may have together, GB; the oldest go first."
    )

    @field_validator("window", mode="plain")
    @classmethod
    def _a_window(cls, value: Any) -> str | list[float] | None:
        return read_window(value)


class ModelConfig(Section):
    """The Vision Transformer. Sizes come from the name; every number can be set."""

    name: str = Field("vit_tiny", description="Size: vit_tiny, vit_small, vit_base, vit_large.")
    image_size: int = Field(224, ge=4, le=2048, description="Side of the square input, px.")
    patch_size: int = Field(16, ge=1, le=256, description="Side of a patch, px; must divide image_size.")
    channels: int = Field(3, ge=1, le=4, description="Input channels: 1 grey, 2 grey + alpha, 3 RGB, 4 RGB + alpha.")
    width: int | None = Field(None, ge=4, description="Embedding width; default from the name.")
    depth: int | None = Field(None, ge=1, le=128, description="Number of blocks; default from the name.")
    heads: int | None = Field(None, ge=1, description="Attention heads; must divide width; default from the name.")
    mlp_ratio: float = Field(4.0, gt=0, description="Hidden width of the MLP / width.")
    stem: Literal["auto", "patch", "conv"] = Field(
        "auto",
        description="patch: one convolution; conv: a stack of 3x3 convolutions of stride 2, faster to learn from few "
        "images; auto: conv when training from scratch, patch with weights.",
    )
    positions: Literal["learned", "sincos_1d", "sincos_2d"] = Field("learned", description="Position embedding.")
    pool: Literal["auto", "cls", "mean"] = Field(
        "auto",
        description="What the head sees: class token, or mean of patches; auto: mean from scratch, cls with weights.",
    )
    registers: int = Field(0, ge=0, le=64, description="Learned tokens without a place; some DINOv2 weights have 4.")
    layer_scale: bool = Field(False, description="Scale each branch by learned numbers; DINOv2 and UNI have it.")
    norm_eps: float = Field(1e-6, gt=0, lt=1, description="Epsilon of the layer norms; Hugging Face's ViT has 1e-12.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout after positions, attention projection and MLP layers.")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of attention probabilities.")
    drop_path: float = Field(0.0, ge=0, lt=1, description="Stochastic depth of the last block; grows linearly from 0.")
    weights: str | None = Field(
        None,
        description="What to start from: a weight file of vitmed, timm, torchvision, Hugging Face or Google (in a YAML "
        "file, relative to that file), or a name of `vitmed weights list`; it decides the network.",
    )
    licence: str | None = Field(
        None, description="Licence of the weights, where it is known; it travels with the checkpoint into the report."
    )


class AugmentConfig(Section):
    """Random changes of training images; safe ones depend on the modality."""

    policy: str = Field("medical", description="Name of the policy; see docs/training.md.")
    flips: bool = Field(True, description="Allow the policy's mirror flips; refused if classes differ by left/right.")
    mixup: float = Field(0.0, ge=0, description="Alpha of mixup; 0 is off. It changes calibration.")
    cutmix: float = Field(0.0, ge=0, description="Alpha of cutmix; 0 is off. It changes calibration.")


class TrainConfig(Section):
    """The optimisation and its bookkeeping."""

    epochs: int = Field(30, ge=1, description="Passes over the training images.")
    batch_size: int = Field(32, ge=1, description="Images per forward pass.")
    accumulate: int = Field(
        1, ge=1, description="Batches per optimiser step; effective batch = batch_size x accumulate."
    )
    lr: float = Field(5e-4, gt=0, description="Peak learning rate of AdamW.")
    min_lr: float = Field(1e-6, ge=0, description="Learning rate at the end of the cosine.")
    warmup_epochs: float = Field(3.0, ge=0, description="Linear warm-up, in epochs (at most a third of the run).")
    weight_decay: float = Field(0.05, ge=0, description="Not applied to biases, norms, class token and positions.")
    layer_decay: float = Field(
        1.0, gt=0, le=1, description="Learning rate factor per block from the head down; 1 is off."
    )
    freeze: bool = Field(
        False,
        description="Keep the pretrained network and fit a logistic regression on its features (linear probe).",
    )
    probe_first: bool = Field(
        False, description="Start the head from that logistic regression instead of random numbers, then train all."
    )
    freeze_blocks: int | None = Field(
        None, ge=0, description="Keep the embedding and the first N blocks as they are; null trains everything."
    )
    lora: int | None = Field(
        None, ge=1, description="Train additions of this rank to the matrices of the blocks, and the head (LoRA)."
    )
    baseline: bool = Field(
        True, description="Fit what needs no training first, and say at the end whether training beat it."
    )
    clip_norm: float | None = Field(1.0, gt=0, description="Clip the gradient to this norm; null is off.")
    smoothing: float = Field(0.05, ge=0, lt=1, description="Label smoothing.")
    balance: Literal["none", "loss", "sampler"] = Field(
        "none",
        description="Counter class imbalance by class weights or a balanced sampler. Ruins calibration; AUROC stays.",
    )
    ema: bool = Field(True, description="Judge and keep an exponential moving average of the weights.")
    ema_decay: float | None = Field(None, gt=0, lt=1, description="Default min(0.999, 1 - 10 / steps), with a warm-up.")
    monitor: str = Field("auroc", description="Validation metric that picks the best checkpoint and stops early.")
    choose: Literal["best", "last"] = Field(
        "best",
        description="Which epoch best.pt holds: the best by monitor, or the last, without early stopping: for a "
        "validation split too small, or too like the training images, to choose by.",
    )
    patience: int | None = Field(
        10, ge=1, description="Stop after this many epochs without a better monitor; null never."
    )
    save_every: int | None = Field(None, ge=1, description="Also keep a checkpoint every N epochs.")
    seed: int = Field(0, ge=0, description="Seed of weights, order, augmentation and dropout.")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="Where to compute.")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="Arithmetic of training; auto takes what the device does fast. Reports are always fp32."
    )
    workers: int | None = Field(None, ge=0, description="Processes that load images; default from the number of cores.")


class RunConfig(Section):
    """What the configurations of training and of pretraining share."""

    @field_validator("data", check_fields=False)
    @classmethod
    def _something_left_to_train_on(cls, data: DataConfig) -> DataConfig:
        if data.val_fraction + (data.test_fraction if data.folds is None else 1 / data.folds) >= 1:
            raise ValueError("the shares of validation and test leave nothing to train on")
        if data.groups is not None and data.group_regex is not None:
            raise ValueError("data.groups and data.group_regex both say who the patient is")
        if (data.fold or 1) > (data.folds or 1):
            raise ValueError(f"data.fold {data.fold} of data.folds {data.folds}: there is no such fold")
        return data

    @model_validator(mode="after")
    def _mean_and_std_fit(self) -> RunConfig:
        data, channels = self.data, self.model.channels  # type: ignore[attr-defined]
        if {data.mean is not None, data.std is not None} != {data.normalize == "given"}:
            raise ValueError("data.normalize given, data.mean and data.std go together")
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
        return yaml.safe_dump(self.model_dump(), sort_keys=False)


SHARES = ("target_sensitivity", "target_specificity", "prevalence", "coverage", "max_risk")  # fields between 0 and 1
FORMATS = ("html", "md", "json", "pdf")  # that a report can be written as


class EvaluateConfig(Section):
    """What an evaluation finds, and how. It changes no weight; all that is chosen is chosen on validation."""

    resamples: int = Field(default=2000, ge=0, description="Bootstrap resamples behind the intervals; 0: none.")
    subgroups: list[str] = Field(
        default=[], description="Columns of the table of labels whose values are judged one by one: [site, age]."
    )

    raters: list[str] = Field(
        default=[], description="Columns of the table of labels that hold the class which a reader saw: [reader_1]."
    )
    ordinal: list[str] = Field(
        default=[], description="The classes from the lowest grade to the highest, where they are grades."
    )

    @field_validator("subgroups", "raters", "ordinal", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return list(dict.fromkeys([value] if isinstance(value, str) else value)) if value else []

    @field_validator("ordinal")
    @classmethod
    def _with_commas(cls, value: list[str]) -> list[str]:
        return [part.strip() for name in value for part in name.split(",")] if len(value) == 1 else value

    calibration: Literal["none", "temperature", "vector"] = Field(
        default="temperature", description="How the probabilities are corrected, fitted on validation."
    )
    youden: bool = Field(default=False, description="Two classes: decide at the threshold of the highest Youden index.")
    target_sensitivity: float | None = Field(
        default=None, gt=0, lt=1, description="Two classes: decide at the highest threshold with this sensitivity."
    )
    target_specificity: float | None = Field(
        default=None, gt=0, lt=1, description="Two classes: decide at the lowest threshold with this specificity."
    )
    cost: str | list[list[float]] | None = Field(
        default=None,
        description="Decide for the lowest expected cost. Of two classes '10:1': a finding that is missed costs 10 "
        "times a false alarm. Of more a matrix: the row is the truth, the column what is called.",
    )
    prevalence: float | None = Field(
        default=None, gt=0, lt=1, description="Two classes: how common the finding is where the model is to be used."
    )
    coverage: float = Field(
        default=0.9, gt=0, lt=1, description="How often the set of classes that is given for an image holds the truth."
    )
    max_risk: float | None = Field(
        default=None, gt=0, lt=1, description="Give no answer where the share of errors may lie above this."
    )

    @field_validator("cost", mode="before")
    @classmethod
    def _cost(cls, value: Any) -> Any:
        return read_cost(value)

    map_images: int | None = Field(
        default=None,
        ge=0,
        description="Images on which maps of attention are judged; null: as many as take some seconds, and none of "
        "train and val; 0: no maps.",
    )

    format: str = Field(
        default="html",
        description="As what the report is written, with commas: html, json, md, pdf. html and json always are; pdf "
        "needs Chromium, Chrome or Edge on this machine.",
    )
    show_names: bool = Field(
        default=False, description="Whether a report calls an image by its path; false: by its row in predictions.csv."
    )

    @field_validator("format")
    @classmethod
    def _known_formats(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",")]
        if unknown := [name for name in names if name not in FORMATS]:
            raise ValueError(f"evaluate.format {unknown[0]}: expected {', '.join(FORMATS)}")
        return ",".join(dict.fromkeys(names))


class Config(RunConfig):
    """One training run, completely."""

    data: DataConfig = DataConfig()  # type: ignore[call-arg]
    model: ModelConfig = ModelConfig()  # type: ignore[call-arg]
    augment: AugmentConfig = AugmentConfig()  # type: ignore[call-arg]
    train: TrainConfig = TrainConfig()  # type: ignore[call-arg]
    evaluate: EvaluateConfig = EvaluateConfig()

    @field_validator("train")
    @classmethod
    def _one_way_to_tune(cls, train: TrainConfig) -> TrainConfig:
        if train.freeze and (train.probe_first or train.lora or train.freeze_blocks is not None):
            raise ValueError("train.freeze trains nothing, so it goes with no other way of fine-tuning")
        if train.lora and train.freeze_blocks is not None:
            raise ValueError("train.lora keeps all blocks, so train.freeze_blocks has nothing to say")
        return train


class PretrainDataConfig(DataConfig):
    """Which images are learned from: the same as training would take, or all of them."""

    unlabelled: bool = Field(
        False,
        description="Folders are no classes: take every image but those of a test folder. False splits as training "
        "does, and leaves its test images out.",
    )


class PretrainAugmentConfig(Section):
    """Random changes of the images, before patches are hidden."""

    policy: str = Field("mae", description="Name of the policy.")
    flips: bool = Field(True, description="Allow the policy's mirror flips.")


class MaeConfig(Section):
    """The masked autoencoder around the encoder."""

    mask_ratio: float = Field(0.75, gt=0, lt=1, description="Share of patches that is hidden.")
    normalise_patches: bool = Field(
        True, description="Guess each patch at mean 0 and standard deviation 1, which the paper found better."
    )
    decoder_width: int | None = Field(
        None, ge=4, description="Default 512 for encoders of 768 and more, else about half the encoder's."
    )
    decoder_depth: int | None = Field(None, ge=1, description="Default 8 for encoders of 768 and more, else 4.")
    decoder_heads: int | None = Field(None, ge=1, description="Default the decoder's width / 32.")


class PretrainTrainConfig(Section):
    """The optimisation of pretraining."""

    epochs: int = Field(200, ge=1, description="Passes over the images; the paper has 800 and gains up to 1,600.")
    batch_size: int = Field(128, ge=1, description="Images per forward pass; the paper has 4,096.")
    accumulate: int = Field(
        1, ge=1, description="Batches per optimiser step; effective batch = batch_size x accumulate."
    )
    lr: float = Field(
        5e-4, gt=0, description="Peak learning rate of AdamW; the paper has 2.4e-3 for its batch of 4,096."
    )
    min_lr: float = Field(0.0, ge=0, description="Learning rate at the end of the cosine.")
    warmup_epochs: float = Field(10.0, ge=0, description="Linear warm-up, in epochs (at most a third of the run).")
    weight_decay: float = Field(0.05, ge=0, description="Not applied to biases, norms, tokens and positions.")
    clip_norm: float | None = Field(None, gt=0, description="Clip the gradient to this norm; null is off.")
    seed: int = Field(0, ge=0, description="Seed of weights, order, augmentation and masks.")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="Where to compute.")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field("auto", description="Arithmetic of training.")
    workers: int | None = Field(None, ge=0, description="Processes that load images; default from the number of cores.")


class PretrainConfig(RunConfig):
    """One pretraining run, completely."""

    data: PretrainDataConfig = PretrainDataConfig()  # type: ignore[call-arg]
    model: ModelConfig = ModelConfig()  # type: ignore[call-arg]
    augment: PretrainAugmentConfig = PretrainAugmentConfig()  # type: ignore[call-arg]
    mae: MaeConfig = MaeConfig()  # type: ignore[call-arg]
    train: PretrainTrainConfig = PretrainTrainConfig()  # type: ignore[call-arg]


AnyConfig = TypeVar("AnyConfig", Config, PretrainConfig)


def load_config(
    file: str | Path | None = None,
    overrides: dict[str, Any] | None = None,
    sets: Sequence[str] = (),
    kind: type[AnyConfig] = Config,  # type: ignore[assignment]
) -> AnyConfig:
    """Build the configuration: defaults < YAML file < `sets` < `overrides`.

    Args:
        file: a YAML file, or the name of a recipe that travels with vitmed (`malaria`).
        overrides: {"section.field": value}; None values are skipped (a flag that was not given).
        sets: "section.field=value" texts, the value parsed as YAML.
        kind: what to build, `Config` or `PretrainConfig`.

    Raises:
        UsageError: an unknown key, a wrong type or a value out of range; says what is accepted.
    """
    tree: dict[str, Any] = {}
    if file is not None:
        path = find_config(file)
        tree = _number(_read_yaml(path))
        for section, field in PATHS:
            fields = tree.get(section)
            fields = fields if isinstance(fields, dict) else {}
            value = fields.get(field)
            if isinstance(value, str) and not is_word(field, value, path.parent):
                fields[field] = str(find(value, path.parent))
    for text in [sets] if isinstance(sets, str) else sets:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: expected section.field=value", "for example --set train.lr=1e-4")
        try:
            _put(tree, key.strip(), _number(yaml.safe_load(value)), kind)
        except yaml.YAMLError:
            raise UsageError(f"--set {text}: the value is not valid YAML", "quote it") from None
    for key, value in (overrides or {}).items():
        if value is not None:
            _put(tree, key, value, kind)
    return build_config(tree, kind)


def is_word(field: str, value: str, folder: str | Path = ".") -> bool:
    """Whether a field of `PATHS` holds a word with a meaning of its own, and no path."""
    if field == "weights":  # a name of public weights has neither folder nor suffix
        return len(Path(value).parts) == 1 and not Path(value).suffix and not Path(folder, value).is_file()
    return field == "groups" and value in GROUP_WORDS


def build_config(tree: dict[str, Any], kind: type[AnyConfig] = Config) -> AnyConfig:  # type: ignore[assignment]
    """Check a plain tree of values. Raises UsageError that names the key and what is accepted."""
    for section, fields in tree.items():
        if section not in kind.model_fields:
            raise unknown_key("config section", str(section), kind.model_fields)
        if not isinstance(fields, dict):
            raise UsageError(f"config section '{section}' holds {fields!r}, expected fields", f"write {section}.field")
        known = kind.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
        for key in fields:
            if key not in known:
                raise unknown_key(f"config key in '{section}'", str(key), known)
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "value_error":  # ours, of fields that do not go together
            raise UsageError(str(first["ctx"]["error"]), "change or leave out one of them") from None
        raise UsageError(
            f"config {key} = {first['input']!r}: {expected(first)}", f"see {key} in docs/configuration.md"
        ) from None


def expected(error: Mapping[str, Any]) -> str:
    """What pydantic wanted, in words; of a share that was given in percent also how it is written."""
    value = error["input"]
    if error["loc"][-1] in SHARES and isinstance(value, int | float):
        share = "expected a share above 0 and below 1"
        return f"{share} (for {value:g} %: {value / 100:g})" if 2 <= value < 100 else share
    return str(error["msg"])


def find_config(name: str | Path) -> Path:
    """The YAML file of that path, or the recipe of that name that travels with vitmed."""
    path = Path(name)
    if path.is_file():
        return path
    bundled = recipes()
    if str(name) in bundled:
        return bundled[str(name)]
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        raise UsageError(f"{path}: no such config file", f"give a YAML file, or one of: {', '.join(bundled)}")
    raise unknown_key("config", str(name), bundled)


def recipes() -> dict[str, Path]:
    """Name -> file of the recipes in `configs/` (inside the wheel, else beside the package)."""
    here = Path(__file__).parents[1]
    folder = here / "configs" if (here / "configs").is_dir() else here.parent / "configs"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def check_names(config: Config, models: Any, policies: Any, metrics: Any) -> None:
    """Raises UsageError where a name stands in none of the tables, listing what exists."""
    for what, name, table in (
        ("model", config.model.name, models),
        ("policy", config.augment.policy, policies),
        ("metric", config.train.monitor, metrics),
    ):
        if name not in table:
            raise unknown_key(what, name, table)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: not a readable YAML file ({error})", "mend the file") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UsageError(
            f"{path}: holds {type(tree).__name__}, expected sections", "write data:, model:, augment:, train:"
        )
    return tree


def _put(tree: dict[str, Any], key: str, value: Any, kind: type[RunConfig]) -> None:
    section, _, field = key.partition(".")
    if not field:
        raise UsageError(f"--set {key}: expected section.field", f"sections are {', '.join(kind.model_fields)}")
    fields = tree.setdefault(section, {})
    if isinstance(fields, dict):
        fields[field] = value


def _number(value: Any) -> Any:
    """YAML reads `1e-4` as text; take it as the number everybody means."""
    if isinstance(value, dict):
        return {key: _number(item) for key, item in value.items()}
    if isinstance(value, str):
        try:
            return float(value) if "e" in value.lower() and value.strip()[0] in "+-.0123456789" else value
        except ValueError:
            return value
    return value


GROUP_WORDS = ("names", "dicom")  # values of data.groups that are no table
# Fields that name a file or folder: relative to the YAML file that they stand in.
PATHS = (("data", "root"), ("data", "groups"), ("data", "labels"), ("model", "weights"))
