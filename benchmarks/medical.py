"""Medical images from scratch: the plan of `vitmed train` beside other networks trained for the same time.

    python benchmarks/medical.py WORK_FOLDER [--data DATA_FOLDER] [--sets busi knee_oa_kl ...] [--seeds 0 1 2]
        [--contenders plan resnet18 ...] [--threads N] [--minutes M] [--set section.field=value ...]
    python benchmarks/medical.py WORK_FOLDER --tell [--plot medical.png]
    python benchmarks/medical.py WORK_FOLDER --final
    python benchmarks/medical.py WORK_FOLDER --views [--sets ...] [--contenders ...] [--seeds ...]

DATA_FOLDER (default: VITMED_DATA) holds the development sets, packed or unpacked; `medical_sets.py` divides each.

    plan         `vitmed train DIR` without a flag but the table of labels and splits, by the functions of the command
    resnet18     torchvision's, random weights, 64 px; resnet18-96: 96 px
    timm         timm's ViT as wide as the plan's, at its image size, 64 patches cut by one convolution, with as many
                 blocks as make its operations equal to those of the plan's network
    colours      logistic regression on the colours and the size of an image

The networks train for as many seconds of CPU time as the plan took (compared on an idle machine with one thread, that
is wall time), through vitmed's own loop: the same batches, augmentation, moving average and precision rule; AdamW with
rate 1e-3, a cosine over the time and a tenth of warm-up. The plan's seconds include its measurement of speed and its
validation after every epoch, which the others do without. Reading the images is not counted.

Every contender is judged alike, with the calibration that vitmed fits on validation: on `val`, on `shift` (see
`medical_sets.py`) and on `corrupted`: validation images with every corruption of `vitmed stress` at strength 3, which
changes the file's own pixels, so that all image sizes see the same damage. `--final` scores the test of every finished
run, once. `--views` predicts `val` and `shift` again with every finished run that is named, from several views of an
image, whether or not the augmentation policy calls them safe; a line of WORK_FOLDER/views.jsonl each.

Every finished run is a line of WORK_FOLDER/results.jsonl and is not repeated; one that was cut off starts again.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from medical_sets import SETS, folder_of, labels_table, split_table
from medical_table import (
    METRICS,
    PARTS,
    Key,
    Line,
    add_line,
    draw_plot,
    finished_lines,
    finished_views,
    tell,
    tell_views,
)
from torch import nn

from vitmed.core.base_models import CLASSES
from vitmed.core.config import Config
from vitmed.core.files import write_text
from vitmed.core.load_config import load_config, with_values
from vitmed.core.run_folder import RunFolder
from vitmed.data.loading import Images, read_splits
from vitmed.data.samples import Sample, Splits, labelled_by
from vitmed.data.thread_batches import in_threads
from vitmed.decisions.calibration import fit_calibration
from vitmed.explanation.robustness import CORRUPTIONS, corrupt, is_grey, pick_images
from vitmed.imaging.augmentation import VIEWS, Symmetry, views_of
from vitmed.imaging.decode import read_image
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics.intervals import Units
from vitmed.metrics.kinds.classes import evaluate_predictions, metric_values
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.models.hardware import Precision, pick_precision, seeded
from vitmed.models.vit import ViT
from vitmed.training.baselines import fit_colours
from vitmed.training.finetune import Finetune
from vitmed.training.loop import Control, Stream, train_epoch
from vitmed.training.losses import objective_of
from vitmed.training.optimiser import ema_decay
from vitmed.training.plan.make_plan import Plan, make_plan
from vitmed.training.run import Run, Session
from vitmed.training.train_state import new_state

CPU = torch.device("cpu")
clock = time.process_time  # other work on the machine changes it little, and the contenders compute alike
LR = 1e-3
STRENGTH, CORRUPTED = 3, 300  # of the corruptions, 1 to 5; the most validation images that are corrupted
BATCH = 64  # images that are predicted at once


@dataclass(frozen=True)
class Trained:
    """What a contender has learned, and what that took.

    Attributes:
        how: the square of pixels that it sees.
        logits: of images in memory, (S, K).
        facts: for the line of results.
        views: a key of `VIEWS`, over which the logits are averaged.
    """

    how: Preprocessing
    logits: Callable[[Images], np.ndarray]
    facts: dict[str, Any]
    views: str = "one"


# ---- the contenders ----


def plan_config(options: argparse.Namespace, key: Key, sets: Iterable[str] = ()) -> Config:
    """What `vitmed train DIR --labels TABLE` starts from; the threads are those of every contender."""
    rows = split_table(key.set, options.data, options.work)
    table = labels_table(rows, options.work / "sets" / f"{key.set}_labels.csv")
    given = {"data.root": str(folder_of(key.set, options.data, options.work)), "data.labels": str(table)}
    alike = (f"train.threads={torch.get_num_threads()}", "train.workers=0", "train.device=cpu", "model.weights=none")
    return load_config(None, {**given, "train.seed": key.seed}, (*alike, *sets))


def train_plan(options: argparse.Namespace, key: Key, place: Path) -> Trained:
    """The run of `vitmed train`, without its reports; of at most `--minutes`, if given."""
    ready = make_plan(plan_config(options, key, options.set), True)
    config, epochs = ready.config, ready.config.train.epochs
    if options.minutes is not None:
        how, train = Preprocessing.of(config), len(ready.splits.samples["train"])
        batch = min(train, config.train.batch_size)
        _, _, per_step = fastest(ViT(config.model, len(ready.splits.classes)), how, batch)
        epochs = min(epochs, max(1, int(60 * options.minutes / (per_step * (train // batch)))))
        warmup = config.train.warmup_epochs * epochs / config.train.epochs
        config = with_values(config, {"train.epochs": epochs, "train.warmup_epochs": warmup})
    session = Session.of(config)
    task = Finetune.new(config, ready.splits, session)
    read = read_splits(ready.splits, Preprocessing.of(config), config.data)
    start, wall = clock(), time.perf_counter()
    run = Run.new(task, config, read, RunFolder(place), session)
    run.train()
    cost = {"seconds": clock() - start, "wall_seconds": time.perf_counter() - wall, "steps": run.state.step}
    saved = load_checkpoint(run.folder.best)
    run.folder.last.unlink()
    facts = cost | {"side": config.model.image_size}
    return of_network(saved.model(), saved.preprocessing, facts, config.augment.views)


def resnet18(ready: Plan, side: int) -> tuple[nn.Module, int]:
    """torchvision's ResNet-18 with random weights, and the side of its images."""
    from torchvision.models import resnet18 as network

    return network(num_classes=len(ready.splits.classes)), side


def timm_vit(ready: Plan) -> tuple[nn.Module, int]:
    """timm's ViT with a plain patch embedding, of the depth whose operations are nearest to those of the plan's."""
    from timm.models import VisionTransformer

    model, classes = ready.config.model, len(ready.splits.classes)
    side, width, heads = model.image_size, model.width, model.heads
    aim = operations(ViT(model, classes), side)
    assert width is not None and heads is not None  # the plan names them

    def vit(depth: int) -> nn.Module:
        return VisionTransformer(
            img_size=side, patch_size=side // 8, embed_dim=width, num_heads=heads, depth=depth, num_classes=classes,
        )  # fmt: skip

    depth = min(range(1, 13), key=lambda n: abs(operations(vit(n), side) - aim))
    return vit(depth), side


def operations(network: nn.Module, side: int) -> int:
    """Multiplications and additions of one image, forwards."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.eval()(torch.zeros(1, 3, side, side))
    return counter.get_total_flops()


NETWORKS: dict[str, Callable[[Plan], tuple[nn.Module, int]]] = {
    "resnet18": lambda ready: resnet18(ready, 64),
    "resnet18-96": lambda ready: resnet18(ready, 96),
    "timm": timm_vit,
}


def train_network(options: argparse.Namespace, key: Key, place: Path) -> Trained:
    """One of `NETWORKS`, for the time that the plan took with this seed."""
    seconds = time_of_plan(options, key)
    ready, network, how = built(options, key)
    network, cost = train_for(seconds, ready, network, how, key.seed)
    torch.save(network.state_dict(), place / "network.pt")
    return of_network(network, how, cost, ready.config.augment.views)


def train_for(
    seconds: float, ready: Plan, network: nn.Module, how: Preprocessing, seed: int
) -> tuple[nn.Module, dict[str, Any]]:
    """Train a network for seconds of CPU with the batches, augmentation and loss of the plan; what it costs."""
    planned, splits = ready.config, ready.splits
    values = {
        "train.epochs": 1000, "train.warmup_epochs": 100,  # more than there is time for: the schedule follows the time
        "train.lr": LR, "train.weight_decay": 0.05, "train.batch_size": planned.train.batch_size, "train.ema": True,
        "augment.policy": planned.augment.policy, "augment.flips": planned.augment.flips,
    }  # fmt: skip
    images = in_memory(Images(splits.root, splits.samples["train"], how, splits.target))
    network, precision, per_step = fastest(network, how, min(len(images), planned.train.batch_size))
    values["train.ema_decay"] = ema_decay(max(11, round(seconds / per_step)))
    config = with_values(ready.given, values)
    seen = {"model.image_size": how.image_size, "model.channels": how.channels, "train.seed": seed}
    stream = Stream.of(images, with_values(config, seen), CPU)
    state = new_state(network, config, stream.batches.batches, CPU, precision)
    objective = objective_of(images, len(splits.classes), config, precision, CPU)
    start, wall = clock(), time.perf_counter()

    def share() -> float:
        return min(1.0, (clock() - start) / seconds)

    def tick() -> None:
        state.share = share()

    while share() < 1:
        train_epoch(state, stream, objective, Control(config, lambda: share() >= 1, tick))
        state.epoch, state.batch = state.epoch + 1, 0
    cost = {"seconds": clock() - start, "wall_seconds": time.perf_counter() - wall, "steps": state.step}
    facts = {"side": how.image_size, "precision": precision.name, "depth": len(getattr(network, "blocks", ()))}
    return state.evaluated_model, cost | facts


def built(options: argparse.Namespace, key: Key) -> tuple[Plan, nn.Module, Preprocessing]:
    """A network with random weights, and what it sees."""
    ready = make_plan(plan_config(options, key), True)
    with seeded(key.seed):
        network, side = NETWORKS[key.contender](ready)
    return ready, network, replace(Preprocessing.of(ready.config), image_size=side)


def fastest(network: nn.Module, how: Preprocessing, batch: int) -> tuple[nn.Module, Precision, float]:
    """The order of the network's numbers in memory and the precision that train fastest, and seconds of a step."""
    x = how.normalise(torch.zeros(batch, how.image_size, how.image_size, how.channels, dtype=torch.uint8))
    precisions = {p.name: p for p in (pick_precision("fp32", CPU), pick_precision("auto", CPU))}
    ways = []
    for order in (torch.contiguous_format, torch.channels_last):
        for precision in precisions.values():
            trial, times = copy.deepcopy(network).train().to(memory_format=order), []
            for _ in range(4):
                start = clock()
                with torch.autocast("cpu", precision.dtype, enabled=precision.mixed):
                    loss = trial(x).float().logsumexp(1).mean()
                loss.backward()
                times.append(clock() - start)
            ways.append((min(times[1:]), order, precision))
    seconds, order, precision = min(ways, key=lambda way: way[0])
    return network.to(memory_format=order), precision, seconds


def time_of_plan(options: argparse.Namespace, key: Key) -> float:
    """Seconds of CPU that the plan took for this set and seed, or `--minutes`."""
    plan = finished_lines(options.work).get(key._replace(contender="plan"))
    if plan is None:
        sys.exit(f"{key.set}, seed {key.seed}: the plan is not measured; name plan among --contenders first")
    return float(plan["seconds"])


def of_network(
    network: nn.Module, how: Preprocessing, facts: dict[str, Any], views: str, reduced: bool = False
) -> Trained:
    """A trained network, which predicts in fp32 or, `reduced`, in bf16 where the CPU has it; views of the plan."""
    network.eval()
    precision = pick_precision("auto" if reduced else "fp32", CPU)

    @torch.inference_mode()
    def logits(images: Images) -> np.ndarray:
        found = []
        for first in range(0, len(images), BATCH):
            pixels = [images.read(i) for i in range(first, min(first + BATCH, len(images)))]
            with torch.autocast("cpu", precision.dtype, enabled=precision.mixed):
                logits = network(how.normalise(torch.from_numpy(np.stack(pixels))))
            found.append(logits.float().numpy())
        return np.concatenate(found)

    return Trained(how, logits, facts | {"parameters": sum(p.numel() for p in network.parameters())}, views)


def fit_baseline(options: argparse.Namespace, key: Key, place: Path) -> Trained:
    """The logistic regression on colours and size, at the plan's image size."""
    ready = make_plan(plan_config(options, key), True)
    how = Preprocessing.of(ready.config)
    images = {name: Images(ready.splits.root, part, how) for name, part in ready.splits.samples.items()}
    start = clock()
    of_split = fit_colours(ready.splits, images)

    def logits(asked: Images) -> np.ndarray:
        name = f"asked {len(images)}"  # a new name each time, as the features of a split are kept
        images[name] = asked
        return of_split(name)

    return Trained(how, logits, {"seconds": clock() - start, "side": how.image_size})


# ---- what is judged ----


def part_images(options: argparse.Namespace, key: Key, part: str, how: Preprocessing, splits: Splits) -> Images:
    """The images of a part, in memory; of `corrupted` each chosen validation image with each corruption."""
    rows = split_table(key.set, options.data, options.work)
    here = [row for row in rows if row.part == ("val" if part == "corrupted" else part)]
    samples = [Sample(row.path, splits.classes.index(row.label), row.group) for row in here]
    images = Images(splits.root, samples, how)
    if part != "corrupted":
        return in_memory(images)
    chosen = pick_images(images.labels.tolist(), CORRUPTED, 0)
    files = [read_image(splits.root / samples[i].path, how.channels) for i in chosen]
    grey = all(map(is_grey, files))
    names = [name for name, corruption in CORRUPTIONS.items() if not (grey and corruption.colour)]
    several = [(name, i) for name in names for i in range(len(chosen))]
    found = Images(splits.root, [samples[chosen[i]] for _, i in several], how)
    damaged = in_threads(lambda n: how.fit(corrupt(files[n[1]], n[0], STRENGTH, (0, n[1]))), several)
    found.cache = np.stack(list(damaged))
    return found


def in_memory(images: Images) -> Images:
    """The same images, decoded."""
    images.cache = np.stack(list(in_threads(images.read, range(len(images)))))
    return images


def judged(trained: Trained, options: argparse.Namespace, key: Key, parts: Iterable[str]) -> dict[str, Line]:
    """Part -> metric -> value and interval, with the calibration that is best on validation.

    `log_loss_raw` is that of the logits as they are. The predictions go into the folder of the run.
    """
    splits = make_plan(plan_config(options, key), True).splits
    classes = splits.classes

    def predicted(part: str) -> Predictions:
        images = part_images(options, key, part, trained.how, splits)
        return labelled_by(
            CLASSES, classes, images.samples, np.mean(list(by_view(trained, images, trained.views).values()), 0)
        )

    val = predicted("val")
    calibration = fit_calibration(val.logits, known_labels(val), "auto", Units(val.units))
    found = {}
    for part in parts:
        raw = val if part == "val" else predicted(part)
        calibrated = calibration.calibrate(raw)
        overall = evaluate_predictions(calibrated).overall
        values = {name: overall[name] for name in METRICS} | {
            "log_loss_raw": evaluate_predictions(raw).overall["log_loss"]
        }
        found[part] = {name: [one.value, one.low, one.high] for name, one in values.items()}
        if part != "corrupted":  # there an image has several rows
            write_text(folder_of_run(options, key) / f"{part}.csv", calibrated.to_csv())
    return found


def by_view(trained: Trained, images: Images, views: str) -> dict[Symmetry, np.ndarray]:
    """Symmetry -> logits (S, K) of images in memory."""
    assert isinstance(images.cache, np.ndarray)
    pixels, found = images.cache, {}
    for symmetry, x in zip(VIEWS[views], views_of(torch.from_numpy(pixels).permute(0, 3, 1, 2), views), strict=True):
        images.cache = x.permute(0, 2, 3, 1).numpy()
        found[symmetry] = trained.logits(images)
    images.cache = pixels
    return found


def compare_views(options: argparse.Namespace, key: Key) -> Line:
    """Part -> views -> metric -> value of a finished run, each calibrated on validation."""
    trained, splits = loaded(options, key), make_plan(plan_config(options, key), True).splits
    images = {part: part_images(options, key, part, trained.how, splits) for part in ("val", "shift")}
    logits = {part: by_view(trained, of, "all") for part, of in images.items()}
    found: Line = {part: {} for part in images}
    for views, symmetries in VIEWS.items():
        mean = {part: np.mean([of[one] for one in symmetries], 0) for part, of in logits.items()}
        predictions = {
            part: labelled_by(CLASSES, splits.classes, images[part].samples, of) for part, of in mean.items()
        }
        val = predictions["val"]
        calibration = fit_calibration(val.logits, known_labels(val), "auto", Units(val.units))
        for part, raw in predictions.items():
            values = metric_values(calibration.calibrate(raw))
            found[part][views] = {name: values[name] for name in METRICS}
    return found


def folder_of_run(options: argparse.Namespace, key: Key) -> Path:
    """Where the weights and predictions of a run are."""
    name = "_".join(str(part) for part in key if part is not None)
    return options.work / "runs" / re.sub(r"[^\w.=-]", "-", name)


def trainer(contender: str) -> Callable[[argparse.Namespace, Key, Path], Trained]:
    """How a contender learns."""
    if contender.startswith("plan"):
        return train_plan
    return fit_baseline if contender == "colours" else train_network


def run(options: argparse.Namespace, key: Key) -> None:
    """Train and judge a contender once; one line of results."""
    place = folder_of_run(options, key)
    shutil.rmtree(place, ignore_errors=True)  # of a run that was cut off
    place.mkdir(parents=True)
    trained = trainer(key.contender)(options, key, place)
    parts = judged(trained, options, key, PARTS)
    add_line(options.work, {**key._asdict(), "threads": torch.get_num_threads(), **trained.facts, "parts": parts})
    reached = ", ".join(f"{part} AUROC {numbers['auroc'][0]:.3f}" for part, numbers in parts.items())
    print(f"{' '.join(map(str, key))}: {reached}; {trained.facts['seconds']:.0f} s", file=sys.stderr, flush=True)


def loaded(options: argparse.Namespace, key: Key) -> Trained:
    """A finished run, with the weights that it kept."""
    place = folder_of_run(options, key)
    if key.contender == "colours":
        return fit_baseline(options, key, place)
    if key.contender.startswith("plan"):
        saved = load_checkpoint(RunFolder(place).best)
        return of_network(saved.model(), saved.preprocessing, {}, saved.config.augment.views)
    ready, network, how = built(options, key)
    network.load_state_dict(torch.load(place / "network.pt", weights_only=True))
    return of_network(network, how, {}, ready.config.augment.views)


def final(options: argparse.Namespace, key: Key) -> None:
    """Score the test of a finished run."""
    add_line(options.work, {**key._asdict(), "parts": judged(loaded(options, key), options, key, ["test"])})


def row_of(key: Key) -> tuple[int, int, str, int]:
    """The place of a run in the tables."""
    return list(SETS).index(key.set), CONTENDERS.index(key.contender.split()[0]), key.contender, key.seed


def main() -> None:
    """Read the options, make the runs that are missing, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--data", type=Path, default=os.environ.get("VITMED_DATA"), help="default: VITMED_DATA")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(MAIN))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, help="of PyTorch; set OMP_NUM_THREADS alike")
    parser.add_argument("--minutes", type=float, help="at most so long for the plan, and so for every network")
    parser.add_argument("--set", action="append", default=[], help="a change of the plan; it is named after it")
    parser.add_argument("--tell", action="store_true", help="only the tables of what is finished")
    parser.add_argument("--plot", type=Path, help="draw what is finished into this PNG file")
    parser.add_argument("--final", action="store_true", help="score the test of every finished run, once")
    parser.add_argument("--views", action="store_true", help="compare views of the images with every finished run")
    options = parser.parse_args()
    if options.data is None and not options.tell:
        parser.error("name the folder of the sets with --data or VITMED_DATA")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    options.data = Path(options.data or "").resolve()
    options.work = options.work.resolve()
    changed = " ".join(["plan", *options.set])
    wanted = [
        Key(name, changed if contender == "plan" else contender, seed, options.minutes)
        for seed in options.seeds
        for name in options.sets
        for contender in options.contenders
    ]
    for key in [] if options.tell else wanted:
        known = finished_lines(options.work).get(key)
        if options.views:
            if known is not None and key.contender != "colours" and key not in finished_views(options.work):
                line = {**key._asdict(), "parts": compare_views(options, key)}
                add_line(options.work, line, "views.jsonl")
        elif options.final and known is not None and "test" not in known["parts"]:
            final(options, key)
        elif not options.final and known is None:
            run(options, key)
    if options.views:
        return tell_views({key: line for key, line in finished_views(options.work).items() if key in wanted})
    done = finished_lines(options.work)
    lines = {key: done[key] for key in sorted(done, key=row_of) if key.minutes == options.minutes}
    tell(lines)
    if options.plot:
        draw_plot(lines, options.plot)


MAIN = ("plan", "resnet18", "timm", "colours")
CONTENDERS = (*MAIN, "resnet18-96")

if __name__ == "__main__":
    main()
