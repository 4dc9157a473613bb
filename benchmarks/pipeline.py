"""From files to normalised batches on one core: vitmed beside torchvision's ImageFolder and timm's loader.

    python benchmarks/pipeline.py                         three sets, two kinds of work
    python benchmarks/pipeline.py --only jpeg-1000 --rounds 15 --json pipeline.json

Sets, drawn here: `jpeg-1000`, photographs of noise with the spectrum of natural images,
1000 x 1000 px, quality 90; `png-100` and `png-50`, the blood cells of `vitmed demo`. All are square, so that padding,
squashing and cropping come to the same square of 224 px.

Every contender is a process of its own on the same core; they take turns, one pass over the files each, in an order
that turns round every round. A ratio is taken within each round; its median and quartiles are told. The seconds are
those of the process on the CPU, as nothing here waits: what else the machine does then hardly counts.

The quality of what each makes of a JPEG is told as its PSNR against Pillow's full decoding and antialiased bilinear
resize: infinite where it is the same.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from turns import Contender, Rows, Step, compete, in_child, machine, say, tell_rates, tell_ratio

SIDE = 224
SETS = {"jpeg-1000": 1000, "png-100": 100, "png-50": 50}  # name -> side of the files, px
COUNT = {"jpeg-1000": 64, "png-100": 320, "png-50": 320}  # files
SLOPE = 1.4  # amplitude falls as 1 / frequency^SLOPE
JITTER = 0.1  # brightness, contrast and saturation
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


# What is read.


def draw_photographs(root: Path, count: int, side: int) -> None:
    """JPEGs in two classes: noise of a natural spectrum in three correlated channels, some edges, sensor noise."""
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :])
    frequency[0, 0] = 1
    frequency **= SLOPE
    y, x = np.mgrid[:side, :side]
    for i in range(count):
        rng = np.random.default_rng(i)
        grey, *tints = (np.fft.irfft2(np.fft.rfft2(rng.normal(size=(side, side))) / frequency) for _ in range(4))
        image = np.stack([grey + 0.3 * tint for tint in tints], axis=2)
        image *= 45 / image.std()
        for _ in range(12):  # things with an outline
            (cx, cy), radius = rng.uniform(0, side, 2), rng.uniform(0.03, 0.15) * side
            image[(x - cx) ** 2 + (y - cy) ** 2 < radius**2] += rng.normal(0, 40, 3)
        image += 120 + rng.normal(0, 1, image.shape)
        folder = root / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).save(folder / f"{i:04d}.jpg", quality=90)


def draw(root: Path, name: str) -> None:
    """The files of one set, in two class folders."""
    from vitmed.data.synthetic import draw_cells

    if name.startswith("jpeg"):
        draw_photographs(root, COUNT[name], SETS[name])
        return
    with tempfile.TemporaryDirectory() as folder:
        draw_cells(Path(folder, "cells"), cells=COUNT[name], patients=20, size=SETS[name])
        for i, path in enumerate(sorted(Path(folder, "cells").glob("*/*/*.png"))):
            (root / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
            (root / "ab"[i % 2] / f"{i:04d}.png").write_bytes(path.read_bytes())


def files_of(root: str | Path) -> list[Path]:
    """The images in the order of their names."""
    return sorted(Path(root).glob("[ab]/*"))


# Who reads. One step is one pass over the files.


def load_vitmed(options: argparse.Namespace, policy: str, cached: bool) -> Step:
    """vitmed's loader without worker processes; `cached`: out of the file that an earlier run has written."""
    from vitmed.data.image_cache import ImageCache, digests_of, hash_files
    from vitmed.data.loading import EpochBatches, Images, TrainImages, train_loader
    from vitmed.data.samples import Sample
    from vitmed.imaging.augmentation import POLICIES, Augmenter, Change, Changes, Policy

    Changes.jitter = jitter  # type: ignore[attr-defined]
    both = Change("mirror"), Change("jitter")
    POLICIES["flip, jitter"] = Policy(True, "What the others do here, by the library of vitmed.", both)
    paths = files_of(options.files)
    samples = [Sample(str(path), int(path.parent.name == "b"), None) for path in paths]
    images = Images(Path(), samples, preprocessing())
    if cached:
        files = [str(path) for path in paths]
        digests = digests_of(hash_files(files), files)
        cache = ImageCache(how=images.preprocessing, keep=False, limit=2**40)
        with cache.alone(digests, lambda: None):
            images.cache = cache.squares(digests) or cache.add(digests, (images.read(i) for i in range(len(images))))
    batches = EpochBatches(images.labels, options.batch, 0, False)
    loader = train_loader(TrainImages(images, Augmenter(policy, SIDE, 3), 0), batches, 0, False)

    def epoch() -> None:
        for x, _, _ in loader:
            images.preprocessing.normalise(x)
        batches.epoch += 1

    return epoch


def preprocessing() -> Any:
    """vitmed's defaults: padded to 224 px, bilinear, ImageNet's mean and standard deviation."""
    from vitmed.core.load_config import build_config
    from vitmed.imaging.preprocessing import Preprocessing

    return Preprocessing.of(build_config({}))


def jitter(do: Any) -> Any:
    """The jitter of torchvision, as one of vitmed's `Changes`."""
    around = (1 - JITTER, 1 + JITTER)
    return do.A.ColorJitter(around, around, around, (0, 0), p=1)


def load_torchvision(options: argparse.Namespace, kind: str, tensors: bool) -> Step:
    """ImageFolder in a DataLoader; `tensors`: torchvision's own decoder and transforms v2; else Pillow and v1."""
    from torch.utils.data import DataLoader
    from torchvision import datasets

    first, last, reader = torchvision_parts(tensors)
    if tensors:
        from torchvision.transforms import v2 as T
    else:
        from torchvision import transforms as T
    affine = T.RandomAffine(10, (0.05, 0.05), (0.9, 1.1), interpolation=T.InterpolationMode.BILINEAR)
    change = {
        "none": [],
        "flip, jitter": [T.RandomHorizontalFlip(), T.ColorJitter(JITTER, JITTER, JITTER)],
        "as medical": [T.RandomApply([affine], 0.7), T.RandomApply([T.ColorJitter(0.1, 0.1)], 0.5)],
    }[kind]
    folder = datasets.ImageFolder(options.files, T.Compose([*first, *change, *last]), loader=reader)
    loader = DataLoader(folder, options.batch, shuffle=True, drop_last=True)
    return lambda: [None for _ in loader] and None


def torchvision_parts(tensors: bool) -> tuple[list[Any], list[Any], Callable[[str], Any]]:
    """What comes before and after the random changes, and what reads a file."""
    import torch
    from torchvision import transforms as T
    from torchvision.datasets.folder import pil_loader
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2

    if not tensors:
        return [T.Resize(SIDE), T.CenterCrop(SIDE)], [T.ToTensor(), T.Normalize(MEAN, STD)], pil_loader
    before = [v2.Resize(SIDE, antialias=True), v2.CenterCrop(SIDE)]
    after = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return before, after, lambda path: decode_image(path, ImageReadMode.RGB)


def load_timm(options: argparse.Namespace, kind: str) -> Step:
    """timm's dataset and loader with its prefetcher, which normalises whole batches; in this process, no workers."""
    import torch
    from timm.data import create_dataset, create_loader

    augmented: dict[str, dict[str, Any]] = {
        "none": {"no_aug": True},
        "flip, jitter": {"scale": (1, 1), "ratio": (1, 1), "hflip": 0.5, "color_jitter": JITTER},
        "as it comes": {},
    }
    loader = create_loader(
        create_dataset("", root=options.files),
        (3, SIDE, SIDE),
        options.batch,
        is_training=True,
        num_workers=0,
        persistent_workers=False,
        device=torch.device("cpu"),
        **augmented[kind],
    )
    return lambda: [None for _ in loader] and None


# What they make of a picture.


def quality(root: Path) -> dict[str, float]:
    """Name -> PSNR, dB, of the resized images of all files together, against Pillow's full decoding and resize."""
    from timm.data import create_transform

    pil, tensor = torchvision_parts(False), torchvision_parts(True)
    timm_transform = create_transform((3, SIDE, SIDE), is_training=True, no_aug=True, interpolation="bilinear")
    shape = preprocessing()

    def through(steps: list[Any], image: Any) -> np.ndarray:
        for step in steps:
            image = step(image)
        return np.asarray(image) if isinstance(image, Image.Image) else image.permute(1, 2, 0).numpy()

    makers: dict[str, Callable[[Path], np.ndarray]] = {
        "vitmed": shape.read,
        "torchvision, Pillow": lambda path: through(pil[0], pil[2](str(path))),
        "torchvision, tensors": lambda path: through(tensor[0], tensor[2](str(path))),
        "timm": lambda path: through(timm_transform.transforms[:-2], Image.open(path).convert("RGB")),
    }
    errors = dict.fromkeys(makers, 0.0)
    files = files_of(root)[:96]
    for path in files:
        with Image.open(path) as image:
            expected = np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR), dtype=float)
        for name, make in makers.items():
            errors[name] += float(np.square(make(path) - expected).mean()) / len(files)
    return {name: 10 * math.log10(255**2 / error) if error else math.inf for name, error in errors.items()}


def part(kind: str, options: argparse.Namespace) -> Rows:
    """One set, one kind of work."""
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    one = argparse.Namespace(**{**vars(options), "core": core, "cpu_time": True, "turn": 0.0, "device": "cpu"})
    contenders = KINDS[kind]
    results = compete(contenders, one)
    images = len(files_of(options.files)) // options.batch * options.batch
    tell_rates(results, images, "torchvision, Pillow")
    for ours in (row for row in results if row.startswith("vitmed")):
        tell_ratio(results, ours, ("torchvision", "timm"))
    return results


def main() -> None:
    """Read the options, draw, run, print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=SETS, help="one set; default: all")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contender (default 9)")
    parser.add_argument("--batch", type=int, default=32, help="images of a batch (default 32)")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that are started
    about = in_child(machine)
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    report: dict[str, Any] = {"machine": about}
    for name in [options.only] if options.only else SETS:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["VITMED_CACHE"] = f"{folder}/cache"  # of the processes that are started
            options.files = f"{folder}/files"
            say(f"{name}: drawing")
            draw(Path(options.files), name)
            report[name] = {"quality": quality(Path(options.files))}
            size = np.mean([path.stat().st_size for path in files_of(options.files)])
            print(f"\n## {name}: {len(files_of(options.files))} files of {size / 1000:.1f} kB")
            print("\n| pipeline | PSNR, dB |\n|---|---|")
            for maker, decibels in report[name]["quality"].items():
                print(f"| {maker} | {decibels:.1f} |")
            for kind in KINDS:
                say(f"{name}: {kind}")
                print(f"\n{name}, {kind}")
                report[name][kind] = part(kind, options)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def _ours(policy: str) -> dict[str, Contender]:
    return {
        "decoding every time": Contender(partial(load_vitmed, policy=policy, cached=False), tuned="train"),
        "from the disk cache": Contender(partial(load_vitmed, policy=policy, cached=True), tuned="train"),
    }


KINDS: dict[str, dict[str, Contender]] = {
    "resized alone": {
        **{f"vitmed, {how}": row for how, row in _ours("none").items()},
        "torchvision, Pillow": Contender(partial(load_torchvision, kind="none", tensors=False)),
        "torchvision, tensors": Contender(partial(load_torchvision, kind="none", tensors=True)),
        "timm": Contender(partial(load_timm, kind="none")),
    },
    "augmented": {
        **{f"vitmed, flip and jitter, {how}": row for how, row in _ours("flip, jitter").items()},
        **{f"vitmed, policy medical, {how}": row for how, row in _ours("medical").items()},
        "torchvision, Pillow": Contender(partial(load_torchvision, kind="flip, jitter", tensors=False)),
        "torchvision, tensors": Contender(partial(load_torchvision, kind="flip, jitter", tensors=True)),
        "torchvision, Pillow, the changes of medical": Contender(
            partial(load_torchvision, kind="as medical", tensors=False)
        ),
        "timm, flip and jitter": Contender(partial(load_timm, kind="flip, jitter")),
        "timm, as it comes": Contender(partial(load_timm, kind="as it comes")),
    },
}

if __name__ == "__main__":
    main()
