"""The sections `data` and `model`: which images, in which split, as which square; and the Vision Transformer."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

from pydantic import field_validator

from vitmed.core.base_models import Flag, Section, names_in, setting, share

GROUP_WORDS = ("names", "dicom")  # values of data.groups that are not a table


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


class DataConfig(Section):
    """Which images, how they are split, and how each becomes a square array."""

    panel = "Data"

    root: str | None = setting(None, "Folder of images. In a YAML file, relative to that file.")
    resize: Literal["pad", "squash", "crop"] = setting(
        "pad", "How an image becomes square: pad keeps all of it, squash distorts it, crop cuts its sides.", Flag()
    )
    interpolation: Literal["bilinear", "bicubic", "lanczos", "nearest"] = setting(
        "bilinear", "How pixels are resampled; all but nearest antialias."
    )
    normalize: Literal["imagenet", "half", "image", "given"] = setting(
        "imagenet",
        "How pixel values are normalised; image removes differences of stain and light. imagenet: the usual mean and "
        "std; half: to -1..1; image: each channel of each image to mean 0 and std 1; given: data.mean and data.std.",
        Flag(),
    )
    mean: list[float] | None = setting(None, "Mean of each channel for normalize: given; pixel values are 0..1.")
    std: list[float] | None = setting(
        None, "Standard deviation of each channel for normalize: given; pixel values are 0..1."
    )
    window: str | list[float] | None = setting(
        "auto",
        "Which values of a 16-bit, float or grey DICOM image become black and white. percentiles: 0.5 and 99.5 of the "
        "training images; dicom: each file's own window (dicom:1: its second); [low, high]: these values; null: 8-bit "
        "images only. Chosen once and stored with the model. See docs/formats.md.",
        Flag(metavar="auto|percentiles|dicom|LOW,HIGH"),
    )
    frame: int | None = setting(
        None, "Which frame or page of a file that has several, from 0. null refuses such files.", Flag(), ge=0
    )
    val_fraction: float = setting(0.15, "Share split off for validation where there is no val folder.", gt=0, lt=1)
    test_fraction: float = setting(0.15, "Share split off for the test where there is no test folder.", gt=0, lt=1)
    split_seed: int = setting(
        0, "Seed of the split. Apart from train.seed, so that seeds of training can be compared.", ge=0
    )
    max_train: int | None = setting(None, "Train on a stratified sample of this many images.", Flag(), ge=2)
    card: str | None = setting(
        None,
        "Public data set that the images are, by its name in `vitmed data list`. Its card says how to find the "
        "patients, which augmentation policy fits, and what the columns of its tables are called; your own settings "
        "win. vitmed prints what the card warns of. See docs/datasets.md.",
        Flag(metavar="NAME"),
    )
    group_regex: str | None = setting(
        None,
        "Regular expression that finds the patient in a file's path; a patient is never split. The path is relative "
        "to the data root; the patient is the first bracket that matches, or the whole match. Names of several "
        "shapes need an alternative each, with its own bracket.",
        Flag(panel="Patients", metavar="REGEX", first=True),
    )
    groups: str | None = setting(
        None,
        "Where to find the patient ID, instead of --group-regex: file names, DICOM's PatientID, or a CSV table. "
        "The table has columns "
        "path and patient; in a YAML file, its path is relative to that file.",
        Flag(panel="Patients", metavar="names|dicom|TABLE"),
    )
    labels: str | None = setting(
        None,
        "CSV table with columns path and label, instead of a folder for each class. More columns: docs/patients.md. "
        "In a YAML file, relative to that file.",
        Flag(metavar="TABLE"),
    )
    target: Literal["auto", "classes", "findings", "grades", "number"] = setting(
        "auto",
        "What the labels are: classes, several findings, grades in order, or a number; default auto. auto: findings "
        "where the table has columns of 0 and 1, or labels joined by |; a number where all labels are numbers of many "
        "values; grades with --ordinal; classes otherwise. See docs/targets.md.",
        Flag(),
    )
    findings: list[str] = setting(
        [],
        "Columns of the table of labels that are findings: 1, 0, or empty where nobody has looked. Default: all "
        "columns that hold nothing else.",
        Flag("finding", metavar="COLUMN"),
    )
    uncertain: Literal["ignore", "ones", "zeros"] = setting(
        "ignore",
        "What a finding of -1 (uncertain, as in CheXpert) counts as: not known, present, or absent; default ignore.",
        Flag(),
    )
    unit: str = setting("", "Unit of the number that is predicted, such as years.", Flag(metavar="UNIT"))
    folds: int | None = setting(
        None, "Divide all images into this many folds, one of which is the test.", Flag(panel="Patients"), ge=2
    )
    fold: int | None = setting(
        None, "Which fold is the test, from 1; by default train does each in turn.", Flag(panel="Patients"), ge=1
    )
    sites: str | None = setting(
        None,
        "Column of the table of labels, such as the hospital: each of its values is a fold. Each model is "
        "tested on a site that it has never seen.",
        Flag(panel="Patients", metavar="COLUMN"),
    )
    repeats: int = setting(
        1, "How often to divide the images into folds, each time anew.", Flag(panel="Patients"), ge=1
    )
    repeat: int = setting(1, "Which of the repeats this fold belongs to, from 1.", ge=1)
    hold_out: float | None = share(
        None,
        "With folds: share of the images, by patient where known, that no fold contains. It is the test of the "
        "ensemble. A test folder of the data is held out in the same way.",
        Flag(panel="Patients", metavar="SHARE"),
    )
    resplit: bool = setting(
        False,
        "Ignore the train, val and test of the folder or the table, and split anew, by patient where known. Otherwise "
        "copies of a file stay in one split.",
        Flag(panel="Patients"),
    )
    allow_leakage: bool = setting(
        False,
        "Continue even if a patient is in two of the folder's own splits; the report says so.",
        Flag(panel="Patients"),
    )
    positive: str | None = setting(
        None,
        "Two classes: the positive one, whose sensitivity is reported. Default: the class whose name does not mean "
        "normal.",
        Flag(metavar="CLASS"),
    )
    on_bad_file: Literal["stop", "skip"] = setting(
        "stop",
        "What a file does that cannot be read: end the run, or be left out of every split and counted in the report. "
        "More than half of a class, or all of a class in a split, always ends it.",
        Flag(),
    )
    cache: bool = setting(
        True,
        "Keep decoded, resized images for the next run. Small sets that decode fast stay in memory, others in a file "
        "in the cache folder; false decodes every time and writes nothing.",
        Flag(),
    )
    cache_gb: float = setting(
        20.0,
        "Maximum total size of the cached decoded images, in GB. The oldest are deleted first.",
        Flag("cache_size", metavar="GB"),
        ge=0,
    )

    @property
    def divided(self) -> bool:
        """Whether folds or sites take the place of one test."""
        return self.folds is not None or self.sites is not None

    _window = field_validator("window", mode="plain")(read_window)
    _findings = field_validator("findings", mode="before")(names_in)


class PretrainDataConfig(DataConfig):
    """Which images to learn from: the ones that training would use, or all."""

    unlabelled: bool = setting(
        False,
        "Folders are no classes: take every image but those of a test folder. false splits as training does, and "
        "leaves its test images out.",
        Flag(),
    )


class ModelConfig(Section):
    """The Vision Transformer. Sizes come from the name; every number can be set."""

    panel = "Model"

    name: str = setting(
        "vit_tiny", "vit_tiny, vit_small, vit_base or vit_large.", Flag("model", metavar="SIZE", first=True)
    )
    image_size: int = setting(224, "Side of the square input, px.", Flag(first=True), ge=4, le=2048)
    patch_size: int = setting(16, "Side of a patch, px; must divide the image size.", Flag(), ge=1, le=256)
    channels: int = setting(3, "Input channels: 1 grey, 2 grey + alpha, 3 RGB, 4 RGB + alpha.", Flag(), ge=1, le=4)
    width: int | None = setting(None, "Embedding width; default from the name.", ge=4, le=8192)
    depth: int | None = setting(None, "Number of blocks; default from the name.", ge=1, le=128)
    heads: int | None = setting(None, "Attention heads; must divide width; default from the name.", ge=1)
    mlp_ratio: float = setting(4.0, "Hidden width of the MLP / width.", gt=0, le=64)
    stem: Literal["auto", "patch", "conv", "residual"] = setting(
        "auto",
        "How patches are embedded: one convolution (patch), 3x3 convolutions of stride 2 (conv), or these and residual "
        "blocks (residual). The latter two learn faster from few images, and residual best. auto: residual in a plan "
        "from scratch, conv in other trainings from scratch, patch with weights.",
        Flag(),
    )
    positions: Literal["learned", "sincos_1d", "sincos_2d", "rotary"] = setting(
        "learned", "Position embedding; rotary as in DINOv3.", Flag()
    )
    pool: Literal["auto", "cls", "mean", "cls_mean", "attention", "coca"] = setting(
        "auto",
        "What the head sees: the class token (cls), the mean of the patches, both (cls_mean), or attention pooling. "
        "attention: as in SigLIP; coca: as in CONCH. auto: mean from scratch, what the publisher uses with weights.",
        Flag(),
    )
    pool_width: int | None = setting(None, "Width of attention pooling; null: the width of the network.", ge=4, le=8192)
    class_token: bool = setting(True, "Whether the network has a class token; SigLIP has none.")
    registers: int = setting(0, "Learned tokens without a place; some DINOv2 weights have 4.", ge=0, le=64)
    layer_scale: bool = setting(False, "Scale each branch by learned numbers, as DINOv2 and UNI do.")
    mlp: Literal["gelu", "gelu_tanh", "quick_gelu", "swiglu"] = setting(
        "gelu", "The MLP of a block: with GELU, one of its approximations (SigLIP, CLIP), or gated (SwiGLU)."
    )
    norm_pre: bool = setting(False, "A norm before the blocks, as in CLIP.")
    norm_eps: float = setting(1e-6, "Epsilon of the layer norms; 1e-12 in Hugging Face's ViT.", gt=0, lt=1)
    dropout: float = setting(0.0, "Dropout after positions, attention projection and MLP layers.", ge=0, lt=1)
    attention_dropout: float = setting(0.0, "Dropout of attention probabilities.", ge=0, lt=1)
    drop_path: float = setting(0.0, "Stochastic depth of the last block; grows linearly from 0.", Flag(), ge=0, lt=1)
    weights: str | None = setting(
        None,
        "Weights to start from: a file, or a name of `vitmed weights list`; they decide the network. The file is of "
        "vitmed, timm, torchvision, Hugging Face or Google; in a YAML file, relative to that file.",
        Flag(metavar="FILE|NAME", first=True),
    )
    licence: str | None = setting(
        None, "Licence of the weights, where it is known; the checkpoint and the report keep it."
    )
    terms: str | None = setting(
        None, "What that licence demands of a model made from the weights, where vitmed knows; kept like the licence."
    )
