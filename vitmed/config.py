"""The configuration: frozen, strict, documented per field. Defaults < YAML file < command line.

`docs/configuration.md` is generated from the descriptions here. Names that stand in a table elsewhere
(models, policies, metrics) are plain `str` here and are checked against that table by `check_names`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from vitmed.errors import UsageError, unknown_key


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)


class DataConfig(Section):
    """Which images, how they are split, and how each becomes a square array."""

    root: str | None = Field(None, description="Folder of images; in a YAML file, relative to that file.")
    resize: Literal["pad", "squash", "crop"] = Field(
        "pad",
        description="How an image becomes square: pad keeps all of it, squash distorts it, crop cuts its sides.",
    )
    normalize: Literal["imagenet", "half", "image"] = Field(
        "imagenet",
        description="imagenet: the usual mean and std; half: to -1..1; image: each channel of each image to mean 0 and "
        "std 1, which removes differences of stain and light between slides.",
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
    positive: str | None = Field(
        None,
        description="Of two classes the finding, whose sensitivity is told; default the one not named like normal.",
    )
    cache_mb: int = Field(
        2048, ge=0, description="Keep decoded, resized training images in memory up to this size; 0 decodes every time."
    )


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
        description="Weight file to start from, of vitmed, timm, torchvision, Hugging Face or Google; it decides the "
        "network. In a YAML file, relative to that file.",
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


class Config(Section):
    """One training run, completely."""

    data: DataConfig = DataConfig()  # type: ignore[call-arg]
    model: ModelConfig = ModelConfig()  # type: ignore[call-arg]
    augment: AugmentConfig = AugmentConfig()  # type: ignore[call-arg]
    train: TrainConfig = TrainConfig()  # type: ignore[call-arg]

    @field_validator("data")
    @classmethod
    def _something_left_to_train_on(cls, data: DataConfig) -> DataConfig:
        if data.val_fraction + data.test_fraction >= 1:
            raise ValueError("data.val_fraction + data.test_fraction leave nothing to train on")
        return data

    @field_validator("train")
    @classmethod
    def _min_lr_below_lr(cls, train: TrainConfig) -> TrainConfig:
        if train.min_lr > train.lr:
            raise ValueError(f"train.min_lr {train.min_lr:g} is above train.lr {train.lr:g}")
        return train

    def to_yaml(self) -> str:
        """All fields, resolved, in the order of the docs."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False)


def load_config(
    file: str | Path | None = None, overrides: dict[str, Any] | None = None, sets: Sequence[str] = ()
) -> Config:
    """Build the configuration: defaults < YAML file < `sets` < `overrides`.

    Args:
        file: a YAML file, or the name of a recipe that travels with vitmed (`malaria`).
        overrides: {"section.field": value}; None values are skipped (a flag that was not given).
        sets: "section.field=value" texts, the value parsed as YAML.

    Raises:
        UsageError: an unknown key, a wrong type or a value out of range; says what is accepted.
    """
    tree: dict[str, Any] = {}
    if file is not None:
        path = find_config(file)
        tree = _number(_read_yaml(path))
        for section, field in (("data", "root"), ("model", "weights")):
            fields = tree.get(section)
            if isinstance(fields, dict) and isinstance(fields.get(field), str):
                fields[field] = str(Path(path.parent, fields[field]))
    for text in [sets] if isinstance(sets, str) else sets:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: expected section.field=value", "for example --set train.lr=1e-4")
        try:
            _put(tree, key.strip(), _number(yaml.safe_load(value)))
        except yaml.YAMLError:
            raise UsageError(f"--set {text}: the value is not valid YAML", "quote it") from None
    for key, value in (overrides or {}).items():
        if value is not None:
            _put(tree, key, value)
    return build_config(tree)


def build_config(tree: dict[str, Any]) -> Config:
    """Check a plain tree of values. Raises UsageError that names the key and what is accepted."""
    for section, fields in tree.items():
        if section not in Config.model_fields:
            raise unknown_key("config section", str(section), Config.model_fields)
        if not isinstance(fields, dict):
            raise UsageError(f"config section '{section}' holds {fields!r}, expected fields", f"write {section}.field")
        known = Config.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
        for key in fields:
            if key not in known:
                raise unknown_key(f"config key in '{section}'", str(key), known)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"config {key} = {first['input']!r}: {first['msg']}", f"see {key} in docs/configuration.md"
        ) from None


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
    here = Path(__file__).parent
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


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    section, _, field = key.partition(".")
    if not field:
        raise UsageError(f"--set {key}: expected section.field", f"sections are {', '.join(Config.model_fields)}")
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
