"""The sections `data`, `model`, `augment` and `train` of the configuration: every setting, its range and meaning."""

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from vitmed.core.base_models import Flag, Section, names_in, setting, share
from vitmed.core.text import read_duration

GROUP_WORDS = ("names", "dicom", "copies")  # values of data.groups that are not a table


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
        good = "auto, percentiles, dicom, dicom:1, or two numbers such as 40,400"
        raise ValueError(f"data.window {value!r}: expected {good}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"data.window {low:g},{high:g}: the first number must lie below the second")
    return [low, high]


class DataConfig(Section):
    """Which images, how they are split, and how each becomes a square array."""

    panel = "Data"

    root: str | None = setting(None)("Folder of images. In a YAML file, relative to that file.")
    resize: Literal["pad", "squash", "crop"] = setting("pad", Flag())(
        "How an image becomes square: pad keeps all of it, squash distorts it, crop cuts its sides."
    )
    interpolation: Literal["bilinear", "bicubic", "lanczos", "nearest"] = setting("bilinear")(
        "How pixels are resampled; all but nearest antialias."
    )
    normalize: Literal["imagenet", "half", "image", "given"] = setting("imagenet", Flag())(
        "How pixel values are normalised; image removes differences of stain and light. imagenet: the usual mean and "
        "std; half: to -1..1; image: each channel of each image to mean 0 and std 1; given: data.mean and data.std."
    )
    mean: list[float] | None = setting(None)("Mean of each channel for normalize: given; pixel values are 0..1.")
    std: list[float] | None = setting(None)(
        "Standard deviation of each channel for normalize: given; pixel values are 0..1."
    )
    window: str | list[float] | None = setting("auto", Flag(metavar="auto|percentiles|dicom|LOW,HIGH"))(
        "Which values of a 16-bit, float or grey DICOM image become black and white. percentiles: 0.5 and 99.5 of the "
        "training images; dicom: each file's own window (dicom:1: its second); [low, high]: these values; null: 8-bit "
        "images only. Chosen once and stored with the model. See docs/formats.md."
    )
    frame: int | None = setting(None, Flag(), ge=0)(
        "Which frame or page of a file that has several, from 0. null refuses such files."
    )
    val_fraction: float = setting(0.15, gt=0, lt=1)("Share split off for validation where there is no val folder.")
    test_fraction: float = setting(0.15, gt=0, lt=1)("Share split off for the test where there is no test folder.")
    split_seed: int = setting(0, ge=0)(
        "Seed of the split. Apart from train.seed, so that seeds of training can be compared."
    )
    max_train: int | None = setting(None, Flag(), ge=2)("Train on a stratified sample of this many images.")
    card: str | None = setting(None, Flag(metavar="NAME"))(
        "Public data set that the images are, by its name in `vitmed data list`. Its card says how to find the "
        "patients, which augmentation policy fits, and what the columns of its tables are called; your own settings "
        "win. vitmed prints what the card warns of. See docs/datasets.md."
    )
    group_regex: str | None = setting(None, Flag(panel="Patients", metavar="REGEX", first=True))(
        "Regular expression that finds the patient in a file's path; a patient is never split. The path is relative "
        "to the data root; the patient is the first bracket that matches, or the whole match. Names of several "
        "shapes need an alternative each, with its own bracket."
    )
    groups: str | None = setting(None, Flag(panel="Patients", metavar="names|dicom|copies|TABLE"))(
        "Where to find the patient ID, instead of --group-regex: file names, DICOM's PatientID, or a CSV table. "
        "copies: patients are unknown, but copies of one picture stay in one split. The table has columns "
        "path and patient; in a YAML file, its path is relative to that file."
    )
    labels: str | None = setting(None, Flag(metavar="TABLE"))(
        "CSV table with columns path and label, instead of a folder for each class. More columns: docs/patients.md. "
        "In a YAML file, relative to that file."
    )
    split_column: str | None = setting(None, Flag(panel="Patients", metavar="COLUMN"))(
        "Column of the table of labels that names the splits, where it is not split, subset or partition."
    )
    target: Literal["auto", "classes", "findings", "grades", "number"] = setting("auto", Flag())(
        "What the labels are: classes, several findings, grades in order, or a number; default auto. auto: findings "
        "where the table has columns of 0 and 1, or labels joined by |; a number where all labels are numbers of many "
        "values; grades with --ordinal; classes otherwise. See docs/targets.md."
    )
    findings: list[str] = setting([], Flag("finding", metavar="COLUMN"))(
        "Columns of the table of labels that are findings: 1, 0, or empty where nobody has looked. Default: all "
        "columns that hold nothing else."
    )
    uncertain: Literal["ignore", "ones", "zeros"] = setting("ignore", Flag())(
        "What a finding of -1 (uncertain, as in CheXpert) counts as: not known, present, or absent; default ignore."
    )
    unit: str = setting("", Flag(metavar="UNIT"))("Unit of the number that is predicted, such as years.")
    folds: int | None = setting(None, Flag(panel="Patients"), ge=2)(
        "Divide all images into this many folds, one of which is the test."
    )
    fold: int | None = setting(None, Flag(panel="Patients"), ge=1)(
        "Which fold is the test, from 1; by default train does each in turn."
    )
    sites: str | None = setting(None, Flag(panel="Patients", metavar="COLUMN"))(
        "Column of the table of labels, such as the hospital: each of its values is a fold. Each model is "
        "tested on a site that it has never seen."
    )
    repeats: int = setting(1, Flag(panel="Patients"), ge=1)(
        "How often to divide the images into folds, each time anew."
    )
    repeat: int = setting(1, ge=1)("Which of the repeats this fold belongs to, from 1.")
    hold_out: float | None = share(None, Flag(panel="Patients", metavar="SHARE"))(
        "With folds: share of the images, by patient where known, that no fold contains. It is the test of the "
        "ensemble. A test folder of the data is held out in the same way."
    )
    resplit: bool = setting(False, Flag(panel="Patients"))(
        "Ignore the train, val and test of the folder or the table, and split anew, by patient where known. Otherwise "
        "copies of a file stay in one split."
    )
    allow_leakage: bool = setting(False, Flag(panel="Patients"))(
        "Continue even if a patient is in two of the folder's own splits, or a file has two labels."
    )
    positive: str | None = setting(None, Flag(metavar="CLASS"))(
        "Two classes: the positive one, whose sensitivity is reported. Default: the class whose name does not mean "
        "normal. Three or more: vitmed evaluate RUN --positive CLASS."
    )
    on_bad_file: Literal["stop", "skip"] = setting("stop", Flag())(
        "What a file does that cannot be read: end the run, or be left out of every split and counted in the report. "
        "More than half of a class, or all of a class in a split, always ends it."
    )
    cache: bool = setting(True, Flag())(
        "Keep decoded, resized images for the next run. Small sets that decode fast stay in memory, others in a file "
        "in the cache folder; false decodes every time and writes nothing."
    )
    cache_gb: float = setting(20.0, Flag("cache_size", metavar="GB"), ge=0)(
        "Maximum total size of the cached decoded images, in GB. The oldest are deleted first."
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

    name: str = setting("vit_tiny", Flag("model", metavar="SIZE", first=True))(
        "vit_tiny, vit_small, vit_base or vit_large."
    )
    image_size: int = setting(224, Flag(first=True), ge=4, le=2048)("Side of the square input, px.")
    patch_size: int = setting(16, Flag(), ge=1, le=256)("Side of a patch, px; must divide the image size.")
    channels: int = setting(3, Flag(), ge=1, le=4)("Input channels: 1 grey, 2 grey + alpha, 3 RGB, 4 RGB + alpha.")
    width: int | None = setting(None, ge=4, le=8192)("Embedding width; default from the name.")
    depth: int | None = setting(None, ge=1, le=128)("Number of blocks; default from the name.")
    heads: int | None = setting(None, ge=1)("Attention heads; must divide width; default from the name.")
    mlp_ratio: float = setting(4.0, gt=0, le=64)("Hidden width of the MLP / width.")
    stem: Literal["auto", "patch", "conv", "residual"] = setting("auto", Flag())(
        "How patches are embedded: one convolution (patch), 3x3 convolutions of stride 2 (conv), or these and residual "
        "blocks (residual). The latter two learn faster from few images, and residual best. auto: residual in a plan "
        "from scratch, conv in other trainings from scratch, patch with weights."
    )
    positions: Literal["learned", "sincos_1d", "sincos_2d", "rotary", "learned_rotary"] = setting("learned", Flag())(
        "Position embedding; rotary as in DINOv3, learned_rotary as in EVA-02."
    )
    pool: Literal["auto", "cls", "mean", "cls_mean", "attention", "coca"] = setting("auto", Flag())(
        "What the head sees: the class token (cls), the mean of the patches, both (cls_mean), or attention pooling. "
        "attention: as in SigLIP; coca: as in CONCH. auto: mean from scratch, what the publisher uses with weights."
    )
    pool_width: int | None = setting(None, ge=4, le=8192)("Width of attention pooling; null: the width of the network.")
    class_token: bool = setting(True)("Whether the network has a class token; SigLIP has none.")
    registers: int = setting(0, ge=0, le=64)("Learned tokens without a place; some DINOv2 weights have 4.")
    layer_scale: bool = setting(False)("Scale each branch by learned numbers, as DINOv2 and UNI do.")
    mlp: Literal["gelu", "gelu_tanh", "quick_gelu", "swiglu", "swiglu_norm"] = setting("gelu")(
        "The MLP of a block: with GELU, one of its approximations (SigLIP, CLIP), or gated (SwiGLU; EVA-02's base has "
        "a norm in it)."
    )
    norm_pre: bool = setting(False)("A norm before the blocks, as in CLIP.")
    norm_eps: float = setting(1e-6, gt=0, lt=1)("Epsilon of the layer norms; 1e-12 in Hugging Face's ViT.")
    dropout: float = setting(0.0, ge=0, lt=1)("Dropout after positions, attention projection and MLP layers.")
    attention_dropout: float = setting(0.0, ge=0, lt=1)("Dropout of attention probabilities.")
    drop_path: float = setting(0.0, Flag(), ge=0, lt=1)("Stochastic depth of the last block; grows linearly from 0.")
    weights: str | None = setting("auto", Flag(metavar="FILE|NAME|none", first=True))(
        "Weights to start from: a file, or a name of `vitmed weights list`; they decide the network. The file is of "
        "vitmed, timm, torchvision, Hugging Face or Google; in a YAML file, relative to that file. none: random "
        "weights. auto: those on this machine that fit, else a download (docs/weights.md), else random weights."
    )
    weights_sha256: str | None = setting(None)(
        "Of the weight file; written by a run, which repeats only with this file."
    )
    weights_reason: str | None = setting(None)(
        "Why `auto` chose these weights, or why there are none; written by a run."
    )
    licence: str | None = setting(None)(
        "Licence of the weights, where it is known; the checkpoint and the report keep it."
    )
    terms: str | None = setting(None)(
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

    policy: str = setting("medical", Flag(also="--augment", metavar="NAME", first=True))(
        "Augmentation policy for the modality, such as blood_smear; see docs/training.md."
    )
    flips: bool = setting(True)("Allow the policy's mirror flips; refused if classes differ by left and right.")
    views: Literal["one", "mirror", "flips", "turns", "all"] = setting("one", Flag(panel="Evaluation"))(
        "Copies of an image over which every prediction is averaged, as the augmentation policy makes them. one: the "
        "image alone; mirror: also its mirror image; flips: left-right, upside down, and both; turns: all quarter "
        "turns; all: the eight symmetries of a square. It changes no weight; the checkpoint keeps it. See "
        "docs/training.md."
    )
    crop: float = setting(1.0, gt=0, le=1)(
        "The least share of its area that a random crop leaves of an image, enlarged to the full size again; it takes "
        "the place of the policy's own crop. 1: as the policy says."
    )
    mixup: float = setting(0.0, Flag(), ge=0)("Alpha of mixup; 0 is off. It changes calibration.")
    cutmix: float = setting(0.0, Flag(), ge=0)("Alpha of cutmix; 0 is off. It changes calibration.")


COUNTS = ("batch_size", "micro_batch")  # fields of LoopConfig that are a number, or auto


BATCH = "Images per batch, or auto: the planned batch, of which as many images are computed at once as fit the memory."


class LoopConfig(Section):
    """What training and pretraining share: the optimisation and where it runs."""

    panel = "Training"

    epochs: int = setting(30, Flag(first=True), ge=1)("Passes over the training images.")
    time: float | None = setting(None, Flag(metavar="TIME", text=True), gt=0)(
        "How long the whole command may take, such as 20m, 2h or 1h30m. From scratch the plan chooses the network, the "
        "image size and the epochs that fit. In YAML a number is in seconds. See docs/training.md."
    )
    batch_size: int = setting(32, Flag(also="-b", metavar="N|auto", first=True, text=True), ge=1)(BATCH)
    accumulate: int = setting(1, Flag(), ge=1)("Batches per optimiser step; effective batch = batch_size x accumulate.")
    micro_batch: int | Literal["auto"] | None = setting(None, Flag(metavar="N|auto", text=True))(
        "Images of a batch that are computed at once, or auto: as many as fit the memory. null: the whole batch. It "
        "changes no result but rounding and, with a convolutional stem, the batch statistics, which are those of the "
        "images computed at once. Memory that runs out lowers it."
    )
    grad_checkpointing: bool = setting(False, Flag())(
        "Recompute each block in the backward pass: a fraction of the memory, about a third more time. No effect on "
        "the result."
    )
    lr: float = setting(5e-4, Flag(first=True), gt=0)("Peak learning rate of AdamW.")
    min_lr: float = setting(1e-6, ge=0)("Learning rate at the end of the cosine.")
    warmup_epochs: float = setting(3.0, Flag(), ge=0)("Linear warm-up, in epochs; at most a third of the run.")
    weight_decay: float = setting(0.05, Flag(), ge=0)(
        "Weight decay of AdamW. Not applied to biases, norms, tokens and positions."
    )
    clip_norm: float | None = setting(1.0, gt=0)("Clip the gradient to this norm; null is off.")
    seed: int = setting(0, Flag(), ge=0)(
        "Random seed of weights, image order, augmentation and dropout (pretrain: masks)."
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = setting("auto", Flag())("Where to compute.")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting("auto", Flag())(
        "Arithmetic of training; auto picks the format that is fast on the device. Reports are in fp32."
    )
    augment_on: Literal["auto", "cpu", "device"] = setting("auto", Flag())(
        "Where training images change at random: in the processes that load them, or on the device that trains. auto: "
        "on a GPU that has fewer than 8 CPU cores, else in the processes. A run keeps its choice."
    )
    autotune: bool = setting(True, Flag())(
        "Measure which arithmetic, kernels and threads are fastest here, where they are not set. It takes at most 3 % "
        "of the run and 6 seconds; the answer is kept in the cache folder and in the run."
    )
    compile: bool | None = setting(None, Flag())(
        "Compile the network; default: where a long run earns the time of compiling."
    )
    attention: Literal["auto", "fused", "explicit"] = setting("auto")(
        "Kernel of attention in training: PyTorch's fused one, or plain matrices. No effect on the result."
    )
    threads: int | None = setting(None, ge=1)(
        "Threads of a training step on a CPU; default the fastest number up to that of the cores."
    )
    workers: int | None = setting(None, Flag(also="-j"), ge=0)(
        "Processes that load images; default from the number of cores."
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

    layer_decay: float = setting(1.0, Flag(), gt=0, le=1)(
        "Learning rate factor per block, from the head down; 1 is off."
    )
    freeze: bool = setting(False, Flag())(
        "Keep the pretrained network and fit a logistic regression on its features (linear probe)."
    )
    probe_first: bool = setting(False, Flag())(
        "Start the head from the logistic regression that --freeze fits, then train everything."
    )
    freeze_blocks: int | None = setting(None, Flag(metavar="N"), ge=0)(
        "Keep the embedding and the first N blocks as they are. null trains everything."
    )
    lora: int | None = setting(None, Flag(metavar="RANK"), ge=1)(
        "Train low-rank additions to the blocks' matrices, and the head (LoRA)."
    )
    baseline: bool = setting(True, Flag())("Also fit baselines that need no training, and compare them at the end.")
    smoothing: float = setting(0.05, Flag(), ge=0, lt=1)("Label smoothing.")
    balance: Literal["none", "adjust", "loss", "sampler"] = setting("none", Flag())(
        "Counter class imbalance in training: logit adjustment (adjust), class weights (loss) or a balanced sampler. "
        "Probabilities stay at the prevalence of training; --balanced and --youden decide for balanced accuracy."
    )
    ema: bool = setting(True, Flag())("Evaluate and keep an exponential moving average of the weights.")
    ema_decay: float | None = setting(None, gt=0, lt=1)("Default min(0.999, 1 - 10 / steps), with a warm-up.")
    monitor: str = setting("auroc", Flag(metavar="METRIC"))(
        "Validation metric that picks the best checkpoint and stops early."
    )
    choose: Literal["best", "last"] = setting("best")(
        "Which epoch best.pt holds: the best by monitor, or the last, without early stopping. Use last where "
        "validation is too small, or too like the training images, to choose by."
    )
    patience: int | None = setting(10, Flag(), ge=1)(
        "Stop after this many epochs without a better monitor. null never stops early."
    )
    shard: bool = setting(False, Flag("shard_model"))(
        "Divide the weights, gradients and moments among the processes (FSDP2), for a network that does not fit one "
        "GPU. No effect on the result, nor with one process."
    )
    test: bool = setting(True, Flag(panel="Output"))(
        "Evaluate the test split when training ends. false leaves it to vitmed evaluate, so that many runs can be "
        "compared on validation and one of them tested."
    )
    track: list[str] = setting([], Flag(metavar="NAME", panel="Output"))(
        "Also show the run in mlflow or wandb. A tracker that fails stops no run. See docs/tracking.md."
    )
    save_every: int | None = setting(None, Flag(metavar="N", panel="Output"), ge=1)(
        "Also keep a checkpoint every N epochs."
    )

    _track = field_validator("track", mode="before")(names_in)
