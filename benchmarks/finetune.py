"""Fine-tuning real weights: the plan of `vitmed train --time` beside timm as a careful user writes it.

    python benchmarks/finetune.py WORK_FOLDER --weights FILE [--data DATA_FOLDER] [--sets busi ...] [--minutes 2 5]
        [--contenders plan timm scratch resnet18 probe] [--seeds 0] [--set section.field=value ...] [--long 20]
    python benchmarks/finetune.py WORK_FOLDER --tell [--plot finetune.png]

DATA_FOLDER (default: VITMED_DATA) holds the development sets; `medical_sets.py` divides each, and says what `val` and
`shift` are. FILE is a ViT of timm's names, 224 px, class token (`vit_tiny_patch16_224_augreg.pth`).

    plan        `vitmed train DIR --weights FILE --time M`, by the functions of the command
    scratch     the same with `--weights none`
    probe       `vitmed train DIR --weights FILE --freeze`: a logistic regression of the features at 224 px
    timm        the same file in timm's ViT at 224 px: AdamW, layer decay 0.75, rate 2.5e-4 behind a tenth of warm-up,
                cosine, batches of 32, weight decay 0.05, label smoothing 0.1, random crops of half the area or more,
                flips, an average of the weights, drop path 0.1, bf16 where the CPU has it; `timm-5e-4` has twice the
                rate and `timm-1e-4` less
    resnet18    torchvision's from random weights at 64 px, with the augmentation of the plan

All use one thread and get `M` minutes of CPU for training; the plan's include the choice of the engine, the fitted head
and validation after every epoch, which timm does without. Reading the images is not counted, nor timm's resizing to
256 px. Each is calibrated on validation as `vitmed train` does; `raw` is the log loss of the
logits as they are. `--long R` thins the training images, and those of validation, to R:1 between the commonest class
and the rarest (the n-th has R^(-n / (K - 1)) of the first). A finished run is a line of WORK_FOLDER/results.jsonl and
is not repeated.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import medical
import numpy as np
import torch
from matplotlib.figure import Figure
from medical import Trained, clock, in_memory, judged, of_network
from medical_sets import SETS, folder_of, labels_table, split_table
from medical_table import METRICS, Key, Line, add_line, finished_lines, spread_text
from torch import nn

from vitmed.core.config import Config
from vitmed.core.load_config import load_config
from vitmed.core.run_folder import RunFolder
from vitmed.data.loading import Images, read_splits
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.models.hardware import pick_precision, seeded
from vitmed.report.plots.drawing import BLUE, GREY, ORANGE, add_grid, png
from vitmed.training.baselines import fit_baselines
from vitmed.training.finetune import Finetune
from vitmed.training.optimiser import ema_decay
from vitmed.training.plan.make_plan import make_plan
from vitmed.training.plan.time import Clock
from vitmed.training.run import Run, Session

CPU = torch.device("cpu")
PARTS = ("val", "shift")
RATES = {"timm": 2.5e-4, "timm-5e-4": 5e-4, "timm-1e-4": 1e-4}
CONTENDERS = ("plan", *RATES, "scratch", "resnet18", "probe")
STORED = 256  # px of the squares that timm's crops are cut from


# ---- the contenders ----


def plan_config(options: argparse.Namespace, key: Key, sets: Iterable[str] = ()) -> Config:
    """What `vitmed train DIR --labels TABLE --weights FILE --time M` starts from."""
    rows = [
        row for row in split_table(key.set, options.data, options.work) if row.path not in thinned_out(options, key)
    ]
    table = labels_table(rows, options.work / "sets" / f"{key.set}_labels_{options.long or 'all'}_{os.getpid()}.csv")
    weights = "none" if key.contender.startswith("scratch") else str(options.weights)
    alike: tuple[str, ...] = ("train.threads=1", "train.workers=0", "train.device=cpu", f"model.weights={weights}")
    if key.minutes is not None and not key.contender.startswith("probe"):
        alike += (f"train.time={60 * key.minutes}",)
    data = {"data.root": str(folder_of(key.set, options.data, options.work)), "data.labels": str(table)}
    return load_config(None, {**data, "train.seed": key.seed}, (*alike, *sets))


def train_plan(options: argparse.Namespace, key: Key, place: Path) -> Trained:
    """The run of `vitmed train`, without its reports: `plan`, `scratch` and `probe`."""
    frozen = key.contender.startswith("probe")
    config = plan_config(options, key, [*options.set, *["train.freeze=true"] * frozen])
    plan = make_plan(config, True)
    config = plan.config
    session = Session.of(config, clock=CpuClock())
    task = Finetune.new(config, plan.splits, session, plan.weights)
    read = read_splits(plan.splits, Preprocessing.of(config), config.data)
    session.clock.began = start = clock()
    run = Run.new(task, config, read, RunFolder(place), session)
    fit_baselines(run, task)
    if not frozen:
        run.train()
        run.folder.last.unlink()
    seconds = clock() - start
    saved = load_checkpoint(run.folder.best)
    rows = len(plan.splits.samples["train"])
    facts = {"seconds": seconds, "steps": run.state.step, "passes": run.state.step * config.train.batch_size / rows}
    facts |= {"side": config.model.image_size, "lr": config.train.lr, "epoch": run.state.epoch}
    return of_network(saved.model(), saved.preprocessing, facts, config.augment.views, True)


class CpuClock(Clock):
    """Seconds of CPU that training took, so that other work on the machine takes nothing from the plan's time."""

    def __init__(self) -> None:
        super().__init__(clock())

    def seconds(self) -> float:
        return clock() - self.began


def all_for_training() -> None:
    """Give the plan its minutes of CPU for training alone: what comes before and after is forecast as nothing."""
    from vitmed.training.plan import time as forecast

    def cpu_seconds_of(work: Callable[[], object], device: torch.device) -> float:
        start = clock()
        work()
        return clock() - start

    forecast.seconds_of = cpu_seconds_of

    forecast.STARTING = forecast.EACH_IMAGE = 0.0
    forecast.After.seconds = lambda self, step: 0.0  # type: ignore[method-assign]
    forecast.reading_seconds = lambda splits, config: 0.0
    Finetune.seconds_after = lambda self, run: 0.0  # type: ignore[method-assign]


def train_timm(options: argparse.Namespace, key: Key, place: Path) -> Trained:
    """timm's ViT from the file, by the recipe above, for the seconds of CPU that the plan took."""
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3
    from torchvision.transforms import v2

    seconds = 60 * (key.minutes or 0)
    plan = make_plan(plan_config(options, key._replace(minutes=None)), False)
    splits, how = plan.splits, replace(Preprocessing.of(plan.config), image_size=224)
    images = in_memory(Images(splits.root, splits.samples["train"], replace(how, image_size=STORED)))
    pixels, labels = torch.from_numpy(np.asarray(images.cache)).permute(0, 3, 1, 2), torch.as_tensor(images.labels)
    with seeded(key.seed):
        network = timm_network(options, len(splits.classes))
        change = v2.Compose([v2.RandomResizedCrop(224, (0.5, 1.0), antialias=True), v2.RandomHorizontalFlip()])
        optimiser = create_optimizer_v2(
            network, opt="adamw", lr=RATES[key.contender], weight_decay=0.05, layer_decay=0.75
        )
        peaks = [group["lr"] * group.get("lr_scale", 1.0) for group in optimiser.param_groups]
        for group in optimiser.param_groups:
            group["lr_scale"] = 1.0  # it is in `peaks`
        precision = pick_precision("auto", CPU)
        average = ModelEmaV3(network)
        start, steps, order = clock(), 0, list[int]()
        while (share := (clock() - start) / seconds) < 1:
            if len(order) < 32:
                order = torch.randperm(len(labels)).tolist() + order if len(labels) >= 32 else list(range(len(labels)))
            batch, order = order[-32:], order[:-32]
            x = how.normalise(torch.stack([change(pixels[i]) for i in batch]).permute(0, 2, 3, 1))
            rate = min(1.0, share / 0.1) * 0.5 * (1 + np.cos(np.pi * share))
            for group, peak in zip(optimiser.param_groups, peaks, strict=True):
                group["lr"] = peak * rate
            with torch.autocast("cpu", precision.dtype, enabled=precision.mixed):
                logits = network(x)
            loss = nn.functional.cross_entropy(logits.float(), labels[batch], label_smoothing=0.1)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            steps += 1
            per_step = (clock() - start) / steps
            average.decay = ema_decay(max(11, round(seconds / per_step)))
            average.update(network)
    network = average.module
    torch.save(network.state_dict(), place / "network.pt")
    passes = steps * 32 / len(labels)
    facts = {"seconds": clock() - start, "steps": steps, "passes": passes, "side": 224, "lr": RATES[key.contender]}
    return of_network(network, how, facts, "one", True)


def timm_network(options: argparse.Namespace, classes: int) -> nn.Module:
    """timm's ViT with the weights of the file and a new head."""
    import timm

    network = timm.create_model("vit_tiny_patch16_224", num_classes=classes, drop_path_rate=0.1)
    state = torch.load(options.weights, weights_only=True)
    kept = {name: numbers for name, numbers in state.items() if not name.startswith("head")}
    missing = network.load_state_dict(kept, strict=False)
    assert set(missing.missing_keys) == {"head.weight", "head.bias"} and not missing.unexpected_keys, missing
    return network


def train_resnet(options: argparse.Namespace, key: Key, place: Path) -> Trained:
    """ResNet-18 from random weights, as `medical.py` trains it."""
    seconds = 60 * (key.minutes or 0)
    ready = make_plan(plan_config(options, key._replace(contender="scratch", minutes=None)), True)
    with seeded(key.seed):
        network, side = medical.resnet18(ready, 64)
    how = replace(Preprocessing.of(ready.config), image_size=side)
    network, facts = medical.train_for(seconds, ready, network, how, key.seed)
    torch.save(network.state_dict(), place / "network.pt")
    return of_network(network, how, facts, ready.config.augment.views, True)


def thinned_out(options: argparse.Namespace, key: Key) -> set[str]:
    """The paths that `--long` leaves out of train and val."""
    if options.long is None:
        return set()
    rows = split_table(key.set, options.data, options.work)
    labels = sorted({row.label for row in rows})
    random = np.random.default_rng(0)
    order = random.permutation(len(labels))
    out = set[str]()
    for part in ("train", "val"):
        paths = [[row.path for row in rows if row.part == part and row.label == labels[i]] for i in order]
        most = len(paths[0])
        for n, of_class in enumerate(paths):
            kept = max(5, round(most * options.long ** (-n / (len(labels) - 1))))
            out |= {of_class[i] for i in random.permutation(len(of_class))[kept:]}
    return out


# ---- what is judged ----


def run(options: argparse.Namespace, key: Key) -> None:
    """Train and judge a contender once; one line of results."""
    place = medical.folder_of_run(options, key)
    shutil.rmtree(place, ignore_errors=True)  # of a run that was cut off
    place.mkdir(parents=True)
    name = key.contender.split()[0]
    train = train_timm if name in RATES else train_resnet if name == "resnet18" else train_plan
    trained = train(options, key, place)
    parts = judged(trained, options, key, PARTS)
    add_line(options.work, {**key._asdict(), **trained.facts, "parts": parts})
    reached = ", ".join(
        f"{part} AUROC {of['auroc'][0]:.4f}, balanced {of['balanced_accuracy'][0]:.3f}, "
        f"log loss {of['log_loss'][0]:.3f} ({of['log_loss_raw'][0]:.3f} raw)"
        for part, of in parts.items()
    )
    facts = ", ".join(
        f"{name} {value if isinstance(value, str) else round(value, 6)}" for name, value in trained.facts.items()
    )
    print(f"{' '.join(map(str, key))}: {reached}; {facts}", file=sys.stderr, flush=True)


def tell(lines: Mapping[Key, Line], part: str) -> None:
    """A table of a part: each contender on each set, and the mean difference to timm."""
    contenders = list(dict.fromkeys(key.contender for key in lines))
    for minutes in sorted({key.minutes for key in lines if key.minutes is not None}):
        here = {key: line["parts"][part] for key, line in lines.items() if key.minutes == minutes}
        sets = [name for name in SETS if any(key.set == name for key in here)]
        for metric in [*METRICS, "log_loss_raw"]:
            print(f"\n{part}, {minutes:g} minutes: {METRICS.get(metric, 'log loss, not calibrated')}\n")
            print(f"| contender | {' | '.join(sets)} | mean minus timm |" + "\n|---" + "|---" * (len(sets) + 1) + "|")
            means = {
                (name, who): [here[key][metric][0] for key in here if (key.set, key.contender) == (name, who)]
                for name in sets
                for who in contenders
            }
            for who in contenders:
                cells = [spread_text(means[name, who]) if means[name, who] else "" for name in sets]
                both = [name for name in sets if means[name, who] and means.get((name, "timm"))]
                gaps = [statistics.mean(means[name, who]) - statistics.mean(means[name, "timm"]) for name in both]
                cells.append(f"{statistics.mean(gaps):+.4f} of {len(gaps)}" if gaps else "")
                print(f"| {who} | {' | '.join(cells)} |")


def picture(lines: Mapping[Key, Line], file: Path) -> None:
    """AUROC of validation over the minutes, with 95 % intervals: a panel for each set, a line for each contender."""
    shown = {"plan": (BLUE, "o-"), "timm": (ORANGE, "s-"), "scratch": (GREY, "^--")}
    sets = [name for name in SETS if any(key.set == name and key.contender == "plan" for key in lines)]
    figure = Figure(figsize=(3.0 * min(4, len(sets)), 2.6 * -(-len(sets) // 4)), layout="constrained")
    panels = figure.subplots(-(-len(sets) // 4), min(4, len(sets)), squeeze=False).flat
    for panel in panels:
        panel.set_visible(False)
    for panel, name in zip(figure.axes, sets, strict=False):
        panel.set_visible(True)
        for place, (contender, (colour, style)) in enumerate(shown.items()):
            runs: dict[float, list[list[float]]] = {}
            for key, line in lines.items():
                if key.set == name and key.contender == contender and key.minutes is not None:
                    runs.setdefault(key.minutes, []).append(line["parts"]["val"]["auroc"])
            at = sorted(runs)
            means = [[statistics.mean(values) for values in zip(*runs[minutes], strict=True)] for minutes in at]
            x = [minutes * (0.94 + 0.06 * place) for minutes in at]
            gaps = [[mean[0] - mean[1] for mean in means], [mean[2] - mean[0] for mean in means]]
            if at:
                middle = [mean[0] for mean in means]
                panel.errorbar(x, middle, gaps, fmt=style, color=colour, capsize=2, lw=1.2, ms=4, label=contender)
        panel.set_xscale("log")
        ticks = sorted({key.minutes for key in lines if key.minutes})
        panel.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)
        panel.set_xticks(ticks, [f"{minutes:g}" for minutes in ticks])
        panel.minorticks_off()
        panel.set_title(name, fontsize=9)
        panel.set_xlabel("minutes of one core", fontsize=8)
        panel.set_ylabel("AUROC, validation", fontsize=8)
        panel.tick_params(labelsize=8)
        add_grid(panel)
    handles = {
        text: handle for panel in figure.axes for handle, text in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, fontsize=9, loc="outside lower center", ncols=len(shown))
    file.write_bytes(png(figure))


def main() -> None:
    """Read the options, make the runs that are missing, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path, help="one for each file of weights, and for each --long")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", type=Path, default=os.environ.get("VITMED_DATA"), help="default: VITMED_DATA")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=["plan", "timm", "scratch", "resnet18"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--minutes", type=float, nargs="+", default=[2, 5])
    parser.add_argument("--set", action="append", default=[], help="a change of the plan; it is named after it")
    parser.add_argument("--long", type=float, help="R: thin the training images to R:1")
    parser.add_argument("--tell", action="store_true", help="only the tables of what is finished")
    parser.add_argument("--plot", type=Path, help="with --tell: a picture of AUROC over minutes")
    options = parser.parse_args()
    if not options.tell and (options.data is None or options.weights is None):
        parser.error("name the folder of the sets with --data or VITMED_DATA, and the file of --weights")
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    options.work, options.data = options.work.resolve(), Path(options.data or "").resolve()
    medical.plan_config = plan_config  # `judged` takes labels and classes from it
    all_for_training()
    for minutes in [] if options.tell else options.minutes:
        for seed in options.seeds:
            for name in options.sets:
                for contender in options.contenders:
                    changed = " ".join([contender, *(options.set if contender in ("plan", "scratch") else ())])
                    key = Key(name, changed, seed, minutes)
                    if key not in finished_lines(options.work):
                        run(options, key)
    lines = finished_lines(options.work)
    for part in PARTS:
        tell(lines, part)
    if options.plot is not None:
        picture(lines, options.plot)


if __name__ == "__main__":
    main()
