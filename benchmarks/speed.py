"""vitmed beside timm and others: training, inference, an epoch from files, one image, and start-up.

    python benchmarks/speed.py --json speed.json --plot speed.png       all of it, tens of minutes
    python benchmarks/speed.py --only train --rounds 3 --batch 8
    python benchmarks/speed.py --network small-plan --load 2 --only train

From files to batches: pipeline.py. How the contenders take turns: turns.py.

"tuned timm" is timm in a process with the settings that the command `vitmed` makes for itself: the ratio to it is what
the model and the loop are worth, the ratio to timm as it comes is what a user sees.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

from end_to_end import commands, files, percentile_95
from networks import NETWORKS, contenders
from turns import LeftOut, busy, compete, in_child, machine, quartiles, ran, say, tell_rates, tell_ratio

Part = dict[str, Any]  # "unit" of its figures, "images" of a step or None, "rows"
ISA = {  # PyTorch's own kernels and compiler, oneDNN, MKL: each reads its own variable
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}


def train(options: argparse.Namespace) -> Part:
    """One batch forward and backward, and AdamW."""
    return contest(options, training=True)


def inference(options: argparse.Namespace) -> Part:
    """One batch forward."""
    return contest(options, training=False)


def contest(options: argparse.Namespace, training: bool) -> Part:
    """Training or inference, in turns."""
    rows = compete(chosen(options, training), options)
    usual = f"timm {'bf16' if options.bf16 else 'fp32'}"
    tell_rates(rows, options.batch, usual if usual in rows else next(iter(rows)))
    for ours in [name for name in rows if name.startswith("vitmed")]:
        for theirs in ("timm", "tuned timm", ("accelerate", "Hugging Face", "torchvision", "plain")):
            tell_ratio(rows, ours, theirs)
    return {"unit": "images/s", "images": options.batch, "rows": rows}


def chosen(options: argparse.Namespace, training: bool) -> Any:
    """The contenders whose name contains one of --rows."""
    table = contenders(options, training)
    return {name: one for name, one in table.items() if not options.rows or any(text in name for text in options.rows)}


def from_files(options: argparse.Namespace) -> Part:
    """A training epoch and its validation, from a folder of files."""
    rows, images = files(options)
    return told({"unit": "images/s", "images": images, "rows": rows})


def latency(options: argparse.Namespace) -> Part:
    """One image in a process that is ready, ten times as many rounds."""
    one = argparse.Namespace(**{**vars(options), "batch": 1, "turn": 0.0, "rounds": 10 * options.rounds})
    return told({"unit": "ms", "images": 1, "rows": compete(chosen(one, training=False), one)})


def startup(options: argparse.Namespace) -> Part:
    """Commands from start to end."""
    return told({"unit": "s", "images": None, "rows": commands(options)})


PARTS = {"train": train, "inference": inference, "files": from_files, "latency": latency, "commands": startup}


def figures(part: Part, name: str) -> list[float]:
    """The figures of a row in the unit of the part, one for each round."""
    seconds = part["rows"][name]["seconds"]
    if part["unit"] == "images/s":
        return [part["images"] / s for s in seconds]
    return [s * (1000 if part["unit"] == "ms" else 1) for s in seconds]


def told(part: Part) -> Part:
    """Print the table of a part: median, quartiles, and of times the 95th percentile."""
    print(f"\n| setting | {part['unit']}, median | quartiles | 95th percentile |\n|---|---|---|---|")
    for name, row in part["rows"].items():
        if "left_out" in row:
            print(f"| {name} | left out | {row['left_out']} | |")
            continue
        low, middle, high = (f"{value:.4g}" for value in quartiles(figures(part, name)))
        most = "" if part["unit"] == "images/s" else f"{percentile_95(figures(part, name)):.4g}"
        print(f"| {name} | {middle} | {low}-{high} | {most} |")
    return part


def draw_plot(report: dict[str, Any], file: Path) -> None:
    """All parts in one picture: bars of the medians with the quartiles, the best on top, vitmed in blue."""
    from matplotlib.figure import Figure

    parts = {name: part for name, part in report["parts"].items() if ran(part["rows"])}
    heights = [len(ran(part["rows"])) + 1.5 for part in parts.values()]
    figure = Figure(figsize=(9, 0.27 * sum(heights) + 0.7), layout="constrained")
    about = report["machine"]
    what = [about["device"], about["cpu"], f"{about['threads']} threads", f"network {about['network']}", about["date"]]
    figure.suptitle(", ".join(dict.fromkeys(what)), fontsize=10)
    axes = figure.subplots(len(parts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (title, part) in zip(axes, parts.items(), strict=True):
        high_is_good = part["unit"] == "images/s"
        names = sorted(ran(part["rows"]), key=lambda name: statistics.median(figures(part, name)), reverse=high_is_good)
        spans = [quartiles(figures(part, name)) for name in names]
        middles = [middle for _, middle, _ in spans]
        errors = [[middle - low for low, middle, _ in spans], [high - middle for _, middle, high in spans]]
        ax.barh(
            names, middles, xerr=errors, color=["#0072B2" if "vitmed" in name else "#B8B8B8" for name in names],
            error_kw={"elinewidth": 1, "capsize": 2},
        )  # fmt: skip
        for place, (_, middle, high) in enumerate(spans):
            ax.annotate(f"{middle:.3g}", (high, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
        better = "more is better" if high_is_good else "less is better"
        ax.set_title(f"{title}, {part['unit']} ({better})", loc="left", fontsize=9)
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.margins(x=0.1)
        ax.tick_params(labelsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=120)


def main() -> None:
    """Read the options, run the parts, print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="some parts; default: all")
    parser.add_argument("--network", choices=NETWORKS, default="tiny", help="its size (default tiny)")
    parser.add_argument("--rows", nargs="+", default=[], help="of train, inference, latency: those with such a name")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contender (default 9)")
    parser.add_argument("--batch", type=int, default=32, help="images of a batch (default 32)")
    parser.add_argument("--images", type=int, default=1000, help="files to draw for the part files (default 1000)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, help="threads of every contender (default: torch's own choice)")
    parser.add_argument("--isa", choices=ISA, help="use no newer instructions of the CPU, and no bf16")
    parser.add_argument("--load", type=int, default=0, metavar="N", help="keep N other processes computing meanwhile")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--plot", type=Path, help="draw everything measured into this PNG file")
    options = parser.parse_args()
    options.core, options.cpu_time, options.turn, options.model = None, False, 0.3, NETWORKS[options.network]
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
    os.environ.update(ISA[options.isa] if options.isa else {})  # of every process that starts below
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    about = in_child(machine, options.device)
    if options.isa and about["instructions"] != options.isa.upper():
        parser.error(f"--isa {options.isa}: PyTorch still uses {about['instructions']}")
    options.bf16 = about["bf16"] = about["bf16"] and not options.isa
    about |= {key: getattr(options, key) for key in ("network", "batch", "rounds", "load")}
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    report: dict[str, Any] = {"machine": about, "parts": {}}
    with busy(options.load):
        for name in options.only:
            say(name)
            print(f"\n## {name}", flush=True)
            try:
                report["parts"][name] = PARTS[name](options)
            except LeftOut as error:
                print(f"left out: {error}")
            about["load average at the end"] = round(os.getloadavg()[0], 2)
            if options.json:  # after every part: the next one may fail
                options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.plot:
        draw_plot(report, options.plot)


if __name__ == "__main__":
    main()
