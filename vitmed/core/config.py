"""The configuration: every setting with its type, range, flag and meaning.

A setting is declared once, as a field of a section. The command line, the Python keywords, the YAML keys and
docs/configuration.md come from the fields; see `base_models.setting`. Names from tables elsewhere (models, policies,
metrics) are plain `str` here; `check_names` checks them.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from vitmed.core.base_models import Flag, Section, flags_of, names_in, optional, setting, share
from vitmed.core.text import DURATION, UNITS

GROUP_WORDS = ("names", "dicom", "copies")  # values of data.groups that are not a table


def read_window(value: Any) -> str | list[float] | None:
    """Read `data.window` from YAML or the command line: null, auto, percentiles, dicom, dicom:N, or two rising numbers;
    of four, the last two are for inverted images. Raises ValueError for anything else."""
    if value is None or (isinstance(value, str) and re.fullmatch(r"auto|percentiles|dicom(:\d{1,3})?", value)):
        return value
    try:
        numbers = [float(part) for part in (value.split(",") if isinstance(value, str) else value)]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) not in (2, 4):
        good = "auto, percentiles, dicom, dicom:1, or two numbers such as 40,400"
        raise ValueError(f"data.window {value!r}: expected {good}")
    if not all(-math.inf < low < high < math.inf for low, high in zip(numbers[::2], numbers[1::2], strict=True)):
        shown = ",".join(f"{number:g}" for number in numbers)
        raise ValueError(f"data.window {shown}: the first number must lie below the second, the third below the fourth")
    return numbers


class DataConfig(Section):
    """Which images, how they are split, and how each becomes a square array."""

    panel = "Data"

    root: str | None = optional("Folder of images. In a YAML file, relative to that file.")
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
    mean: list[float] | None = optional("Mean of each channel for normalize: given; pixel values are 0..1.")
    std: list[float] | None = optional(
        "Standard deviation of each channel for normalize: given; pixel values are 0..1."
    )
    window: str | list[float] | None = setting(
        "auto",
        "Which values of a 16-bit, float or grey DICOM image become black and white. percentiles: 0.5 and 99.5 of the "
        "training images; dicom: each file's own window (dicom:1: its second); [low, high]: these values; null: 8-bit "
        "images only. Chosen once and stored with the model. See docs/formats.md.",
        Flag(metavar="auto|percentiles|dicom|LOW,HIGH"),
    )
    frame: int | None = optional(
        "Which frame or page of a file that has several, from 0. null refuses such files.", Flag(), ge=0
    )
    val_fraction: float = setting(0.15, "Share split off for validation where there is no val folder.", gt=0, lt=1)
    test_fraction: float = setting(0.15, "Share split off for the test where there is no test folder.", gt=0, lt=1)
    split_seed: int = setting(
        0, "Seed of the split. Apart from train.seed, so that seeds of training can be compared.", ge=0, lt=2**63
    )
    max_train: int | None = optional("Train on a stratified sample of this many images.", Flag(), ge=2)
    card: str | None = optional(
        "Public data set that the images are, by its name in `vitmed data list`. Its card says how to find the "
        "patients, which augmentation policy fits, and what the columns of its tables are called; your own settings "
        "win. vitmed prints what the card warns of. See docs/datasets.md.",
        Flag(metavar="NAME"),
    )
    group_regex: str | None = optional(
        "Regular expression that finds the patient in a file's path; a patient is never split. The path is relative "
        "to the data root; the patient is the first bracket that matches, or the whole match. Names of several "
        "shapes need an alternative each, with its own bracket.",
        Flag(panel="Patients", metavar="REGEX", first=True),
    )
    groups: str | None = optional(
        "Where to find the patient ID, instead of --group-regex: file names, DICOM's PatientID, or a CSV table. "
        "copies: patients are unknown, but copies of one picture stay in one split. The table has columns "
        "path and patient; in a YAML file, its path is relative to that file.",
        Flag(panel="Patients", metavar="names|dicom|copies|TABLE"),
    )
    labels: str | None = optional(
        "CSV table with columns path and label, instead of a folder for each class. More columns: docs/patients.md. "
        "In a YAML file, relative to that file.",
        Flag(metavar="TABLE"),
    )
    split_column: str | None = optional(
        "Column of the table of labels that names the splits, where it is not split, subset or partition.",
        Flag(panel="Patients", metavar="COLUMN"),
    )
    target: Literal["auto", "classes", "findings", "grades", "number"] = setting(
        "auto",
        "What the labels are: classes, several findings, grades in order, or a number; default auto. auto: findings "
        "where labels are joined by |, or no column holds labels and two or more hold 0 and 1; a number where all "
        "labels are numbers, some with fractions, and more than 20 differ; grades with --ordinal; otherwise classes. "
        "See docs/targets.md.",
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
    folds: int | None = optional(
        "Divide all images into this many folds, one of which is the test.", Flag(panel="Patients"), ge=2
    )
    fold: int | None = optional(
        "Which fold is the test, from 1; by default train does each in turn.", Flag(panel="Patients"), ge=1
    )
    sites: str | None = optional(
        "Column of the table of labels, such as the hospital: each of its values is a fold. Each model is "
        "tested on a site that it has never seen.",
        Flag(panel="Patients", metavar="COLUMN"),
    )
    repeats: int = setting(
        1, "How often to divide the images into folds, each time anew.", Flag(panel="Patients"), ge=1
    )
    repeat: int = setting(1, "Which of the repeats this fold belongs to, from 1.", ge=1)
    hold_out: float | None = share(
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
        "Continue even if a patient is in two of the folder's own splits, or a file has two labels.",
        Flag(panel="Patients"),
    )
    positive: str | None = optional(
        "Two classes: the positive one, whose sensitivity is reported. Default: the class whose name does not mean "
        "normal. Three or more: vitmed evaluate RUN --positive CLASS.",
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
        le=1e9,
    )

    @property
    def divided(self) -> bool:
        """Whether folds or sites take the place of one test."""
        return self.folds is not None or self.sites is not None

    _window = field_validator("window", mode="plain")(read_window)
    _findings = field_validator("findings", mode="before")(names_in)


ABOUT_WEIGHTS = {"weights", "weights_sha256", "weights_reason", "licence", "terms"}  # of `ModelConfig`: no network


class ModelConfig(Section):
    """The Vision Transformer. Sizes come from the name; every number can be set."""

    panel = "Model"

    name: str = setting(
        "vit_tiny", "vit_tiny, vit_small, vit_base or vit_large.", Flag("model", metavar="SIZE", first=True)
    )
    image_size: int = setting(224, "Side of the square input, px.", Flag(first=True), ge=4, le=2048)
    patch_size: int = setting(16, "Side of a patch, px; must divide the image size.", Flag(), ge=1, le=256)
    channels: int = setting(3, "Input channels: 1 grey, 2 grey + alpha, 3 RGB, 4 RGB + alpha.", Flag(), ge=1, le=4)
    width: int | None = optional("Embedding width; default from the name.", ge=4, le=8192)
    depth: int | None = optional("Number of blocks; default from the name.", ge=1, le=128)
    heads: int | None = optional("Attention heads; must divide width; default from the name.", ge=1)
    mlp_ratio: float = setting(4.0, "Hidden width of the MLP / width.", gt=0, le=64)
    stem: Literal["auto", "patch", "conv", "residual"] = setting(
        "auto",
        "How patches are embedded: one convolution (patch), 3x3 convolutions of stride 2 (conv), or these and residual "
        "blocks (residual). The latter two learn faster from few images, and residual best. auto: residual in a plan "
        "from scratch, conv in other trainings from scratch, patch with weights.",
        Flag(),
    )
    positions: Literal["learned", "sincos_1d", "sincos_2d", "rotary", "learned_rotary"] = setting(
        "learned", "Position embedding; rotary as in DINOv3, learned_rotary as in EVA-02.", Flag()
    )
    pool: Literal["auto", "cls", "mean", "cls_mean", "attention", "coca"] = setting(
        "auto",
        "What the head sees: the class token (cls), the mean of the patches, both (cls_mean), or attention pooling. "
        "attention: as in SigLIP; coca: as in CONCH. auto: mean from scratch, what the publisher uses with weights.",
        Flag(),
    )
    pool_width: int | None = optional("Width of attention pooling; null: the width of the network.", ge=4, le=8192)
    class_token: bool = setting(True, "Whether the network has a class token; SigLIP has none.")
    registers: int = setting(0, "Learned tokens without a place; some DINOv2 weights have 4.", ge=0, le=64)
    layer_scale: bool = setting(False, "Scale each branch by learned numbers, as DINOv2 and UNI do.")
    mlp: Literal["gelu", "gelu_tanh", "quick_gelu", "swiglu", "swiglu_norm"] = setting(
        "gelu",
        "The MLP of a block: with GELU, one of its approximations (SigLIP, CLIP), or gated (SwiGLU; EVA-02's base has "
        "a norm in it).",
    )
    norm_pre: bool = setting(False, "A norm before the blocks, as in CLIP.")
    norm_eps: float = setting(1e-6, "Epsilon of the layer norms; 1e-12 in Hugging Face's ViT.", gt=0, lt=1)
    dropout: float = setting(0.0, "Dropout after positions, attention projection and MLP layers.", ge=0, lt=1)
    attention_dropout: float = setting(0.0, "Dropout of attention probabilities.", ge=0, lt=1)
    drop_path: float = setting(0.0, "Stochastic depth of the last block; grows linearly from 0.", Flag(), ge=0, lt=1)
    weights: str | None = setting(
        "auto",
        "Weights to start from: a file, or a name of `vitmed weights list`; they decide the network. The file is of "
        "vitmed, timm, torchvision, Hugging Face or Google; in a YAML file, relative to that file. none: random "
        "weights. auto: those on this machine that fit, else a download (docs/weights.md), else random weights.",
        Flag(metavar="FILE|NAME|none", first=True),
    )
    weights_sha256: str | None = optional("Of the weight file; written by a run, which repeats only with this file.")
    weights_reason: str | None = optional("Why `auto` chose these weights, or why there are none; written by a run.")
    licence: str | None = optional("Licence of the weights, where it is known; the checkpoint and the report keep it.")
    terms: str | None = optional(
        "What that licence demands of a model made from the weights, where vitmed knows; kept like the licence."
    )

    _none = field_validator("weights", mode="before")(lambda value: None if value == "none" else value)

    @property
    def start(self) -> str | None:
        """The weights, where some are named or chosen."""
        return None if self.weights == "auto" else self.weights


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
    crop: float = setting(
        1.0,
        "The least share of its area that a random crop leaves of an image, enlarged to the full size again; it takes "
        "the place of the policy's own crop. 1: as the policy says.",
        gt=0,
        le=1,
    )
    mixup: float = setting(0.0, "Alpha of mixup; 0 is off. It changes calibration.", Flag(), ge=0)
    cutmix: float = setting(0.0, "Alpha of cutmix; 0 is off. It changes calibration.", Flag(), ge=0)


COUNTS = ("batch_size", "micro_batch")  # fields of LoopConfig that are a number, or auto
BATCH = "Images per batch, or auto: the planned batch, of which as many images are computed at once as fit the memory."


def read_duration(value: Any) -> Any:
    """Read `train.time` from YAML or the command line: the seconds of a text such as 1h30m; a number (of seconds) or
    None is returned unchanged. Raises ValueError for any other text, including a number without a unit."""
    if not isinstance(value, str):
        return float(value) if type(value) is int else value
    match = DURATION.fullmatch(value.strip())
    if not match or not match[0]:
        good = "a number and its unit, such as 90s, 20m, 2h or 1h30m"
        raise ValueError(f"train.time {value!r} is not a duration: expected {good}")
    return float(sum(float(number) * UNITS[unit] for unit, number in match.groupdict("0").items()))


class LoopConfig(Section):
    """What training and pretraining share: the optimisation and where it runs."""

    panel = "Training"

    epochs: int = setting(30, "Passes over the training images.", Flag(first=True), ge=1)
    time: float | None = optional(
        "How long the whole command may take, such as 20m, 2h or 1h30m. The plan fits image size, epochs and, without "
        "weights, the network to it. In YAML a number is in seconds. See docs/training.md.",
        Flag(metavar="TIME", text=True),
        gt=0,
    )
    batch_size: int = setting(32, BATCH, Flag(also="-b", metavar="N|auto", first=True, text=True), ge=1)
    accumulate: int = setting(1, "Batches per optimiser step; effective batch = batch_size x accumulate.", Flag(), ge=1)
    micro_batch: int | Literal["auto"] | None = optional(
        "Images of a batch that are computed at once, or auto: as many as fit the memory. null: the whole batch. It "
        "changes no result but rounding, the masks of dropout and drop path, and, with a convolutional stem, the batch "
        "statistics, which are those of the images computed at once. Memory that runs out lowers it.",
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
        0, "Random seed of weights, image order, augmentation and dropout (pretrain: masks).", Flag(), ge=0, lt=2**63
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = setting("auto", "Where to compute.", Flag())
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto", "Arithmetic of training; auto picks the format that is fast on the device. Reports are in fp32.", Flag()
    )
    autotune: bool = setting(
        True,
        "Measure which arithmetic, kernels and threads are fastest here, where they are not set. It takes at most 3 % "
        "of the run and 6 seconds; the answer is kept in the cache folder and in the run.",
        Flag(),
    )
    compile: bool | None = optional(
        "Compile the network; default: where a long run earns the time of compiling.", Flag()
    )
    attention: Literal["auto", "fused", "explicit"] = setting(
        "auto", "Kernel of attention in training: PyTorch's fused one, or plain matrices. No effect on the result."
    )
    threads: int | None = optional(
        "Threads of a training step on a CPU; default the fastest number up to that of the cores.", ge=1
    )
    workers: int | None = optional(
        "Processes that load images; default from the number of cores.", Flag(also="-j"), ge=0
    )

    _time = field_validator("time", mode="before")(read_duration)

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
    freeze_blocks: int | None = optional(
        "Keep the embedding and the first N blocks as they are. null trains everything.", Flag(metavar="N"), ge=0
    )
    lora: int | None = optional(
        "Train low-rank additions to the blocks' matrices, and the head (LoRA).", Flag(metavar="RANK"), ge=1
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
    ema_decay: float | None = optional("Default min(0.999, 1 - 10 / steps), with a warm-up.", gt=0, lt=1)
    monitor: str = setting(
        "auroc", "Validation metric that picks the best epoch where train.choose is best.", Flag(metavar="METRIC")
    )
    choose: Literal["best", "loss", "last"] = setting(
        "best",
        "Which epoch best.pt holds: the best by monitor; the one with the lowest validation loss, the safer choice "
        "with few images; or the last, without early stopping, where validation is too small, or too like the "
        "training images, to choose by.",
    )
    patience: int | None = setting(
        10, "Stop after this many epochs without a better one by train.choose; null never.", Flag(), ge=1
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
    save_every: int | None = optional("Also keep a checkpoint every N epochs.", Flag(metavar="N", panel="Output"), ge=1)

    _track = field_validator("track", mode="before")(names_in)


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
            good = value != [] and all(
                len(row) == len(value) and all(0 <= cost < math.inf for cost in row) for row in value
            )
    except (TypeError, ValueError, OverflowError, RecursionError):
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

    resamples: int = setting(2000, "Bootstrap resamples behind the intervals of curves; 0: none.", Flag(), ge=0)
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
    calibration: Literal["auto", "none", "temperature"] = setting(
        "auto", "How the probabilities are calibrated; fitted, and by auto chosen, on validation.", Flag()
    )
    youden: bool = setting(False, "Two classes: decide at the threshold of the highest Youden index.", Flag())
    balanced: bool = setting(
        False,
        "Three classes or more: decide for the highest balanced accuracy, by probability / its mean on validation.",
        Flag(),
    )
    target_sensitivity: float | None = share("Two classes, or findings: the highest threshold with this sensitivity.")
    target_specificity: float | None = share("Two classes, or findings: the lowest threshold with this specificity.")
    cost: str | list[list[float]] | None = optional(
        "Decide for the lowest expected cost: 10:1, or [[0,10],[1,0]] with the truth as row. Of two classes '10:1' "
        "means that a missed positive costs 10 times a false alarm; of more, give a matrix whose columns are the "
        "predictions. Of grades, 'absolute' costs the error in grades and 'squared' its square.",
        Flag(metavar="MISSED:ALARM|MATRIX|absolute|squared"),
    )
    prevalence: float | None = share("Two classes: how common the positive class is where the model is to be used.")
    coverage: float = share("How often the prediction set of an image holds its true class.", default=0.9)
    max_risk: float | None = share("Abstain on uncertain images, to keep the share of wrong answers at or below this.")
    map_images: int | None = optional(
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
    def _columns(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [name for i, name in enumerate(value) if name not in value[:i]]
        return [value] if value and isinstance(value, str) else value or []

    _ordinal = field_validator("ordinal", mode="before")(lambda value: names_in(value, "evaluate.ordinal"))
    _cost = field_validator("cost", mode="before")(read_cost)

    @field_validator("format")
    @classmethod
    def _known_formats(cls, value: str) -> str:
        names = names_in(value)
        if unknown := [name for name in names if name not in FORMATS]:
            raise ValueError(f"evaluate.format {unknown[0]}: expected {', '.join(FORMATS)}")
        return ",".join(names)


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
            f"{repeat}: all folds are of all repeats; data.fold names one": data.fold is None and data.repeat > 1,
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
        planned = isinstance(train, TrainConfig) and "lr" not in train.model_fields_set  # `make_plan` validates again
        if train.min_lr > train.lr and not planned:
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
    clip_norm: float | None = optional("Clip the gradient to this norm; null is off.", gt=0)
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

    mask_ratio: float = share("Share of patches that is hidden.", default=0.75)


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
