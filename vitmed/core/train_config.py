"""The sections `augment`, `train`, `mae` and `evaluate`: the optimisation, and what an evaluation reports."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from vitmed.core.base_models import Flag, Section, names_in, setting, share
from vitmed.core.text import read_duration


class AugmentConfig(Section):
    """Random changes of training images; which ones are safe depends on the modality."""

    panel = "Training"

    policy: str = setting(
        "medical",
        "Augmentation policy for the modality, such as blood_smear; see docs/training.md.",
        Flag(also="--augment", metavar="NAME", first=True),
    )
    flips: bool = setting(True, "Allow the policy's mirror flips; refused if classes differ by left and right.")
    views: Literal["one", "mirror", "flips", "turns", "all"] = setting(
        "one",
        "Copies of an image over which every prediction is averaged, as the augmentation policy makes them. one: the "
        "image alone; mirror: also its mirror image; flips: left-right, upside down, and both; turns: all quarter "
        "turns; all: the eight symmetries of a square. It changes no weight; the checkpoint keeps it. See "
        "docs/training.md.",
        Flag(panel="Evaluation"),
    )
    mixup: float = setting(0.0, "Alpha of mixup; 0 is off. It changes calibration.", Flag(), ge=0)
    cutmix: float = setting(0.0, "Alpha of cutmix; 0 is off. It changes calibration.", Flag(), ge=0)


COUNTS = ("batch_size", "micro_batch")  # fields of LoopConfig that are a number, or auto


BATCH = "Images per batch, or auto: the planned batch, of which as many images are computed at once as fit the memory."


class LoopConfig(Section):
    """What training and pretraining share: the optimisation and where it runs."""

    panel = "Training"

    epochs: int = setting(30, "Passes over the training images.", Flag(first=True), ge=1)
    time: float | None = setting(
        None,
        "How long the whole command may take, such as 20m, 2h or 1h30m. From scratch the plan chooses the network, the "
        "image size and the epochs that fit. In YAML a number is in seconds. See docs/training.md.",
        Flag(metavar="TIME", text=True),
        gt=0,
    )
    batch_size: int = setting(32, BATCH, Flag(also="-b", metavar="N|auto", first=True, text=True), ge=1)
    accumulate: int = setting(1, "Batches per optimiser step; effective batch = batch_size x accumulate.", Flag(), ge=1)
    micro_batch: int | Literal["auto"] | None = setting(
        None,
        "Images of a batch that are computed at once, or auto: as many as fit the memory. null: the whole batch. It "
        "changes no result but rounding and, with a convolutional stem, the batch statistics, which are those of the "
        "images computed at once. Memory that runs out lowers it.",
        Flag(metavar="N|auto", text=True),
    )
    grad_checkpointing: bool = setting(
        False,
        "Recompute each block in the backward pass: a fraction of the memory, about a third more time. No effect on "
        "the result.",
        Flag(),
    )
    lr: float = setting(5e-4, "Peak learning rate of AdamW.", Flag(first=True), gt=0)
    min_lr: float = setting(1e-6, "Learning rate at the end of the cosine.", ge=0)
    warmup_epochs: float = setting(3.0, "Linear warm-up, in epochs; at most a third of the run.", Flag(), ge=0)
    weight_decay: float = setting(
        0.05, "Weight decay of AdamW. Not applied to biases, norms, tokens and positions.", Flag(), ge=0
    )
    clip_norm: float | None = setting(1.0, "Clip the gradient to this norm; null is off.", gt=0)
    seed: int = setting(
        0, "Random seed of weights, image order, augmentation and dropout (pretrain: masks).", Flag(), ge=0
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = setting("auto", "Where to compute.", Flag())
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto", "Arithmetic of training; auto picks the format that is fast on the device. Reports are in fp32.", Flag()
    )
    augment_on: Literal["auto", "cpu", "device"] = setting(
        "auto",
        "Where training images change at random: in the processes that load them, or on the device that trains. auto: "
        "on a GPU that has fewer than 8 CPU cores, else in the processes. A run keeps its choice.",
        Flag(),
    )
    autotune: bool = setting(
        True,
        "Measure which arithmetic, kernels and threads are fastest here, where they are not set. It takes at most 3 % "
        "of the run and 15 seconds; the answer is kept in the cache folder and in the run.",
        Flag(),
    )
    compile: bool | None = setting(
        None, "Compile the network; default: where a long run earns the time of compiling.", Flag()
    )
    attention: Literal["auto", "fused", "explicit"] = setting(
        "auto", "Kernel of attention in training: PyTorch's fused one, or plain matrices. No effect on the result."
    )
    threads: int | None = setting(
        None, "Threads of a training step on a CPU; default the fastest number up to that of the cores.", ge=1
    )
    workers: int | None = setting(
        None, "Processes that load images; default from the number of cores.", Flag(also="-j"), ge=0
    )

    @model_validator(mode="before")
    @classmethod
    def _auto(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        texts = {name: value for name in COUNTS if isinstance(value := given.get(name), str)}  # of the command line
        given = {**given, **{name: int(value) for name, value in texts.items() if re.fullmatch(r"-?\d{1,9}", value)}}
        if given.get("batch_size") == "auto":
            del given["batch_size"]
            if given.get("micro_batch") is None:
                given["micro_batch"] = "auto"
        return given

    @field_validator("time", mode="before")
    @classmethod
    def _duration(cls, value: Any) -> Any:
        try:
            return read_duration(value)
        except ValueError as error:
            raise ValueError(f"train.time {error}") from None

    @field_validator("micro_batch", mode="plain")
    @classmethod
    def _count(cls, value: Any) -> Any:
        if value not in (None, "auto") and not (type(value) is int and value > 0):
            raise ValueError(f"train.micro_batch {value!r}: expected auto, null, or a number from 1")
        return value


class TrainConfig(LoopConfig):
    """The optimisation and its bookkeeping."""

    betas: ClassVar[tuple[float, float]] = (0.9, 0.999)  # of AdamW

    layer_decay: float = setting(
        1.0, "Learning rate factor per block, from the head down; 1 is off.", Flag(), gt=0, le=1
    )
    freeze: bool = setting(
        False, "Keep the pretrained network and fit a logistic regression on its features (linear probe).", Flag()
    )
    probe_first: bool = setting(
        False, "Start the head from the logistic regression that --freeze fits, then train everything.", Flag()
    )
    freeze_blocks: int | None = setting(
        None, "Keep the embedding and the first N blocks as they are. null trains everything.", Flag(metavar="N"), ge=0
    )
    lora: int | None = setting(
        None, "Train low-rank additions to the blocks' matrices, and the head (LoRA).", Flag(metavar="RANK"), ge=1
    )
    baseline: bool = setting(True, "Also fit baselines that need no training, and compare them at the end.", Flag())
    smoothing: float = setting(0.05, "Label smoothing.", Flag(), ge=0, lt=1)
    balance: Literal["none", "adjust", "loss", "sampler"] = setting(
        "none",
        "Counter class imbalance in training: logit adjustment (adjust), class weights (loss) or a balanced sampler. "
        "Probabilities stay at the prevalence of training; --balanced and --youden decide for balanced accuracy.",
        Flag(),
    )
    ema: bool = setting(True, "Evaluate and keep an exponential moving average of the weights.", Flag())
    ema_decay: float | None = setting(None, "Default min(0.999, 1 - 10 / steps), with a warm-up.", gt=0, lt=1)
    monitor: str = setting(
        "auroc", "Validation metric that picks the best checkpoint and stops early.", Flag(metavar="METRIC")
    )
    choose: Literal["best", "last"] = setting(
        "best",
        "Which epoch best.pt holds: the best by monitor, or the last, without early stopping. Use last where "
        "validation is too small, or too like the training images, to choose by.",
    )
    patience: int | None = setting(
        10, "Stop after this many epochs without a better monitor. null never stops early.", Flag(), ge=1
    )
    shard: bool = setting(
        False,
        "Divide the weights, gradients and moments among the processes (FSDP2), for a network that does not fit one "
        "GPU. No effect on the result, nor with one process.",
        Flag("shard_model"),
    )
    test: bool = setting(
        True,
        "Evaluate the test split when training ends. false leaves it to vitmed evaluate, so that many runs can be "
        "compared on validation and one of them tested.",
        Flag(panel="Output"),
    )
    track: list[str] = setting(
        [],
        "Also show the run in mlflow or wandb. A tracker that fails stops no run. See docs/tracking.md.",
        Flag(metavar="NAME", panel="Output"),
    )
    save_every: int | None = setting(
        None, "Also keep a checkpoint every N epochs.", Flag(metavar="N", panel="Output"), ge=1
    )

    _track = field_validator("track", mode="before")(names_in)


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
        raise ValueError(
            f"evaluate.cost {given}: expected two numbers above 0 such as 10:1 (in YAML with quotes), a square "
            "matrix of numbers from 0 such as [[0,10],[1,0]], with the true class as row, or absolute or squared for "
            "grades"
        )
    return value


SHARES = ("target_sensitivity", "target_specificity", "prevalence", "coverage", "max_risk")  # fields between 0 and 1
FORMATS = ("html", "md", "json")  # that a report can be written as


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
        "Formats of the report: html, md, json. html and json are always written.",
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
