"""How far other batches, threads, processors and bf16 move what vitmed answers in fp32.

    python benchmarks/agreement.py --images FOLDER CHECKPOINT [CHECKPOINT ...] [--count 10000]

Every way is a process of its own: one thread, batches of 8 is the reference; then batches of 1, 3 and 64, two threads,
the kernels of AVX2 alone, the ONNX file of the checkpoint, and `--precision auto`, which must change no decision. The
table has the largest move of a probability (of a number: of its value, in units of the spread of the reference), how
many decisions differ, and how many of those lie further than `CLOSE` from every border (in log odds), which must be
none.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from speed import ISA

CLOSE = 1e-4
AUTO = "--precision auto"
WAYS: dict[str, tuple[int, int, dict[str, str]]] = {  # threads, images in a batch, environment
    "1 thread, batches of 8": (1, 8, {}),
    "batches of 1": (1, 1, {}),
    "batches of 3": (1, 3, {}),
    "batches of 64": (1, 64, {}),
    "2 threads": (2, 8, {}),
    "AVX2": (1, 8, ISA["avx2"]),
    "ONNX": (1, 8, {}),
    AUTO: (2, 16, {}),
}


def answer(checkpoint: str, images: list[str], size: int, precision: str, to: str) -> None:
    """Write `probabilities` (N, K), or the value (N, 1) of a number, and `decisions` (N, ...) of images to a file."""
    import vitmed
    from vitmed.inference import predict
    from vitmed.inference.checkpoint import load_checkpoint
    from vitmed.metrics.kinds.number import NumberPredictions

    predict.batch_size = lambda *args: size
    found = vitmed.predict(images, checkpoint=checkpoint, precision=precision)
    number = isinstance(found, NumberPredictions)
    values = found.amounts[:, :1] if number else found.probabilities
    decisions = np.zeros(len(values)) if number else found.predicted
    columns = {name: np.array(found.columns.get(name, [""] * len(values))) for name in ("set", "answer")}
    policy = load_checkpoint(Path(checkpoint)).policy if checkpoint.endswith(".pt") else None
    border = np.abs(policy.borders(found)).min(axis=1, initial=np.inf) if policy else np.zeros(0)
    np.savez(to, values=values, decisions=decisions, set=columns["set"], answer=columns["answer"], border=border)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoints", nargs="*", type=Path)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS, help="default: all")
    parser.add_argument("--answer", nargs=3, metavar=("SIZE", "PRECISION", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    images = sorted(str(file) for file in options.images.rglob("*") if file.suffix in (".png", ".jpg"))
    chosen = [images[i] for i in np.linspace(0, len(images) - 1, min(len(images), options.count)).astype(int)]
    if options.answer:
        size, precision, to = options.answer
        return answer(str(options.checkpoints[0]), chosen, int(size), precision, to)
    print(f"{len(chosen):,} images\n")
    print("| checkpoint | way | largest move | decisions, sets, answers that differ | far from a border |")
    print("|---" * 5 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for checkpoint in options.checkpoints:
            first: dict[str, np.ndarray] = {}
            for name in dict.fromkeys([next(iter(WAYS)), *options.ways]):
                threads, size, given = WAYS[name]
                file, source = f"{folder}/found.npz", str(checkpoint)
                if name == "ONNX":
                    source = f"{folder}/{checkpoint.parent.name}.onnx"
                    export = [sys.executable, "-m", "vitmed", "export", str(checkpoint), "--to", source]
                    subprocess.run(export, check=True)
                command = [sys.executable, __file__, source, "--images", str(options.images)]
                command += ["--count", str(options.count)]
                environment = os.environ | {"OMP_NUM_THREADS": str(threads), **given}
                precision = "auto" if name == AUTO else "fp32"
                subprocess.run([*command, "--answer", str(size), precision, file], check=True, env=environment)
                with np.load(file) as stored:
                    found = dict(stored)
                first = first or found
                move = np.abs(found["values"] - first["values"]).max() / (
                    first["values"].std() if found["values"].shape[1] == 1 else 1
                )
                other = {key: found[key] != first[key] for key in ("decisions", "set", "answer")}
                rows = np.any([each.reshape(len(each), -1).any(axis=1) for each in other.values()], axis=0)
                differ = ", ".join(str(int(each.sum())) for each in other.values())
                far = int((rows & (first["border"] > CLOSE)).sum())
                print(f"| {checkpoint.parent.name} | {name} | {move:.1e} | {differ} | {far} |", flush=True)


if __name__ == "__main__":
    main()
