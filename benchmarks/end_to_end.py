"""The parts of speed.py that are whole programs: an epoch from files, and commands from their start to their end."""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from networks import timm_vit
from turns import SPAWN, LeftOut, Rows, say, take_turns

EPOCHS = 3
SIDE = 100  # of the drawn PNG files, px
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
VITMED = [sys.executable, "-m", "vitmed"]

ONE_IMAGE = """
import sys, torch
from PIL import Image
from timm.models import VisionTransformer
from torchvision import transforms as T
model = VisionTransformer(**eval(sys.argv[2])).eval()
model.load_state_dict(torch.load(sys.argv[3], weights_only=True))
side = int(sys.argv[4])
change = T.Compose([T.Resize((side, side)), T.ToTensor(), T.Normalize(0.5, 0.5)])
with torch.inference_mode():
    print(model(change(Image.open(sys.argv[1]).convert("RGB"))[None]).softmax(-1))
"""


def draw(root: Path, cells: int) -> list[Path]:
    """Draw blood cells in `root/{train,val,test}/{infected,uninfected}`; returns the training images."""
    from vitmed.data.synthetic import draw_cells

    say(f"  drawing {cells} files")
    draw_cells(root, cells=cells, patients=max(4, min(cells // 4, 50)), size=SIDE)
    return sorted(root.glob("train/*/*.png"))


def training_command(options: argparse.Namespace, data: Path, output: Path, epochs: int) -> list[str]:
    """`vitmed train` with the network; its run folder is `output/run`."""
    settings = [part for key, value in options.model.items() for part in ("--set", f"model.{key}={value}")]
    kind = [] if options.bf16 else ["--precision", "fp32"]
    return [
        *VITMED, "train", str(data), "--output", str(output), "--name", "run", "--epochs", str(epochs), "--policy",
        "light", "--batch-size", str(options.batch), "--device", options.device, *kind, *settings,
    ]  # fmt: skip


def vitmed_epochs(options: argparse.Namespace, data: Path) -> list[float]:
    """Seconds of every epoch of `vitmed train` with an empty cache; the first from the start of the command."""
    with tempfile.TemporaryDirectory() as folder:
        file, found = Path(folder, "run", "metrics.jsonl"), [time.perf_counter()]
        with Path(folder, "log").open("w+") as log:
            command = training_command(options, data, Path(folder), EPOCHS)
            process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"VITMED_CACHE": folder})
            while process.poll() is None:
                lines = file.read_text().count("\n") if file.exists() else 0
                if lines >= len(found):
                    found.append(time.perf_counter())
                time.sleep(0.01)
            log.seek(0)
            if process.returncode or len(found) != EPOCHS + 1:
                raise LeftOut(last_line(log.read()))
    return [end - start for start, end in itertools.pairwise(found)]


def timm_epochs(options: argparse.Namespace, data: Path) -> list[float]:
    """As `vitmed_epochs`, of the loop that people write."""
    found = [time.perf_counter()]
    ours, theirs = SPAWN.Pipe()
    child = SPAWN.Process(target=timm_loop, args=(theirs, options, data))
    child.start()
    theirs.close()
    try:
        for _ in range(EPOCHS):
            ours.recv()
            found.append(time.perf_counter())
    except EOFError:
        raise LeftOut("its process ended with the error above") from None
    finally:
        child.join()
    return [end - start for start, end in itertools.pairwise(found)]


def timm_loop(pipe: Connection, options: argparse.Namespace, data: Path) -> None:
    """timm's network, torchvision's ImageFolder, one loader process per core; says when an epoch ends."""
    import torch
    from torch.utils.data import DataLoader
    from torchvision import transforms as T
    from torchvision.datasets import ImageFolder

    side, device = options.model["image_size"], torch.device(options.device)
    last = [T.ToTensor(), T.Normalize(MEAN, STD)]
    change = {
        "train": [T.Resize((side, side)), T.RandomHorizontalFlip(), *last],
        "val": [T.Resize((side, side)), *last],
    }
    sets = {name: ImageFolder(str(data / name), T.Compose(steps)) for name, steps in change.items()}
    load: dict[str, Any] = {
        "num_workers": os.cpu_count(),
        "persistent_workers": True,
        "pin_memory": device.type == "cuda",
    }
    training = DataLoader(sets["train"], options.batch, shuffle=True, drop_last=True, **load)
    validation = DataLoader(sets["val"], options.batch, **load)
    model = timm_vit(options.model).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05, fused=True)
    for _ in range(EPOCHS):
        model.train()
        for x, y in training:
            optimiser.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=options.bf16):
                loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimiser.step()
        model.eval()
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=options.bf16):
            right = sum(int((model(x.to(device)).argmax(1).cpu() == y).sum()) for x, y in validation)
        pipe.send(right)


def files(options: argparse.Namespace) -> tuple[Rows, int]:
    """The rows of an epoch, validation included, and its training images; a third of the rounds, each a whole run."""
    kind = "bf16" if options.bf16 else "fp32"
    runs = {"vitmed train": vitmed_epochs, f"timm {kind}, ImageFolder": timm_epochs}
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as folder:
        images = len(draw(Path(folder, "cells"), options.images)) // options.batch * options.batch
        for number in range(max(1, options.rounds // 3)):
            for name, run in list(runs.items())[:: 1 if number % 2 == 0 else -1]:
                say(f"  {name}")
                try:
                    first, *later = run(options, Path(folder, "cells"))
                    rows.setdefault(f"{name}, first epoch", {"seconds": []})["seconds"].append(first)
                    rows.setdefault(f"{name}, later epochs", {"seconds": []})["seconds"].extend(later)
                except LeftOut as error:
                    rows[f"{name}, first epoch"] = {"left_out": str(error)}
    return rows, images


def commands(options: argparse.Namespace) -> Rows:
    """The rows of commands, from start to end: start-up, and one image predicted."""
    python = [sys.executable, "-c"]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        image = str(draw(Path(folder, "cells"), 40)[0])
        one = argparse.Namespace(**{**vars(options), "batch": 8})
        run(training_command(one, Path(folder, "cells"), Path(folder), 1), cache)
        weights, fields = f"{folder}/timm.pt", timm_weights(options, f"{folder}/timm.pt")
        checkpoint = ["--checkpoint", f"{folder}/run/best.pt", "--device", options.device]
        lines = {
            "python, nothing": [*python, ""],
            "vitmed --help": [*VITMED, "--help"],
            "import torch": [*python, "import torch"],
            "import timm": [*python, "import timm"],
            "import transformers' ViT": [*python, "from transformers import ViTForImageClassification"],
            "vitmed predict IMAGE": [*VITMED, "predict", image, *checkpoint],
            "script with timm, one image": [
                *python,
                ONE_IMAGE,
                image,
                fields,
                weights,
                str(options.model["image_size"]),
            ],
        }
        rows: Rows = {}
        for name, line in lines.items():
            try:
                run(line, cache)  # not counted: afterwards the files are in memory
                rows[name] = {"seconds": []}
            except LeftOut as error:
                rows[name] = {"left_out": str(error)}
        here = [name for name, row in rows.items() if "seconds" in row]
        for name, seconds in take_turns(here, lambda name: run(lines[name], cache), options.rounds).items():
            rows[name]["seconds"] = seconds
    return rows


def timm_weights(options: argparse.Namespace, file: str) -> str:
    """Save random weights of timm's network; returns the arguments that make it, as Python source."""
    model = options.model
    fields = {
        "img_size": model["image_size"], "patch_size": model["patch_size"], "embed_dim": model["width"],
        "depth": model["depth"], "num_heads": model["heads"], "num_classes": 2,
    }  # fmt: skip
    code = "import sys, torch, timm; m = timm.models.VisionTransformer(**eval(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", f"{code}; torch.save(m.state_dict(), sys.argv[2])", repr(fields), file])
    return repr(fields)


def run(command: list[str], cache: str) -> float:
    """Seconds from the start of a command to its end. Raises LeftOut with the last line of a failed one."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"VITMED_CACHE": cache})
    seconds = time.perf_counter() - start
    if done.returncode:
        raise LeftOut(last_line(done.stdout + done.stderr))
    return seconds


def last_line(text: str) -> str:
    """What a program said last."""
    return (text.strip().splitlines() or ["it said nothing"])[-1][:200]


def percentile_95(values: list[float]) -> float:
    """95 %."""
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]
