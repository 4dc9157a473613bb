"""What corruptions cost: the numbers of `vitmed stress`, from predictions of the same images, clean and corrupted.

A corruption, an entry of `CORRUPTIONS`, is how image quality differs between microscopes, scanners and archives: a
function of a Pillow image, a strength and a random generator, built from Pillow, OpenCV and NumPy. The kinds follow
Hendrycks & Dietterich 2019 (ImageNet-C, arXiv 1903.12261); the milder strengths are those of Di Salvo et al. 2024 for
medical images of 224 px (MedMNIST-C, arXiv 2406.17536).

The error is 1 - balanced accuracy; of grades 1 - quadratic kappa; of findings 1 - mean AUROC; of a number the mean
absolute error: 1 minus the first of `TargetKind.stress`, or that number itself where lower is better. Mean corruption
error is its plain mean over all corruptions and strengths (Hendrycks & Dietterich 2019, section 4.2, without the
division by AlexNet's errors, of which there are none on your images); `relative` is the mean of error - clean error:
what the corruptions add. The interval of a difference is paired: a patient, or image, is left out of the clean and
of all corrupted predictions alike.

Letters: S images, G patients.
"""

import contextlib
import io
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from vitmed.checks.evaluation_images import EvaluationImages
from vitmed.core.base_models import Target
from vitmed.core.errors import DataError, UsageError, unknown_key
from vitmed.core.messages import bar, say, warn
from vitmed.core.text import counted, listed
from vitmed.data.folders import SPLITS
from vitmed.data.samples import labelled_by
from vitmed.data.thread_batches import in_threads
from vitmed.decisions.targets import ALL_METRICS, TARGETS, TargetKind
from vitmed.explanation.results import CorruptionCost, Robustness, Strength, turns
from vitmed.imaging.decode import read_image
from vitmed.imaging.preprocessing import RESAMPLING, Preprocessing
from vitmed.inference.open_model import open_network
from vitmed.inference.saved_model import SavedModel
from vitmed.metrics.estimates import FEW_GROUPS, Estimate, difference, estimate, value_text
from vitmed.metrics.intervals import NONE, jackknife_interval, quantile
from vitmed.metrics.predictions import Predictions, known_labels, target_of

SIDE = 224  # px: the image side for the lengths in the table, which scale with the image
HED = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])  # Ruifrok & Johnston 2001: rows H, E, DAB

Change = Callable[[Image.Image, float, np.random.Generator], Image.Image]


@dataclass(frozen=True)
class Corruption:
    """A kind of corruption."""

    title: str  # name in the report
    change: Change  # (L or RGB image, value of the strength, generator) -> image of the same mode and size
    values: tuple[float, float, float, float, float]  # for strengths 1 to 5, the weakest first
    text: str  # meaning of the values
    source: str  # origin of the values
    colour: bool = False  # whether it applies only to colour images


def corrupt(image: Image.Image, name: str, strength: int, seed: tuple[int, ...]) -> Image.Image:
    """Corrupt an image of mode L, LA, RGB or RGBA, at strength 1 to 5; 0 leaves it unchanged, and alpha always. The
    result depends only on the arguments: all strengths of a corruption use the same random draw of the seed, such as
    (seed of the run, index of the image), so a stronger one is the same change taken further. Grey stays grey."""
    if strength == 0:
        return image
    if name not in CORRUPTIONS:
        raise unknown_key("corruption", name, CORRUPTIONS)
    alpha = image.getchannel("A") if image.mode in ("LA", "RGBA") else None
    mode, how = image.mode.removesuffix("A"), CORRUPTIONS[name]
    grey = is_grey(image)
    if grey and how.colour:  # it has neither hue nor stain
        return image
    rng = np.random.default_rng([*seed, zlib.crc32(name.encode())])
    worse = how.change(image.convert("L" if grey else mode), how.values[strength - 1], rng).convert(mode)
    if alpha is not None:
        worse.putalpha(alpha)
    return worse


def reduced(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
    """The decoded image reduced to the network's input size, before any padding; this is the image to corrupt.

    A smaller image stays unchanged. Noise or a blur of a few pixels would vanish when a large image is reduced later.
    `Preprocessing.fit` gives the same result for the reduced as for the original image, to the bit.
    """
    side = preprocessing.image_size
    if max(image.size) <= side:
        return image
    if preprocessing.resize == "pad":
        return ImageOps.contain(image, (side, side), RESAMPLING[preprocessing.interpolation])
    square = preprocessing.fit(image)
    return Image.fromarray(square[..., 0] if square.shape[2] == 1 else square)


def is_grey(image: Image.Image) -> bool:
    """Whether red, green and blue are equal in every pixel."""
    if not image.mode.startswith("RGB"):
        return True
    red, green, blue = (np.asarray(image)[..., i] for i in range(3))
    return bool((red == green).all() and (green == blue).all())


def _image(values: np.ndarray) -> Image.Image:
    """An image from values in 0..1."""
    return Image.fromarray((values * 255).round().clip(0, 255).astype(np.uint8))


def _values(image: Image.Image) -> np.ndarray:
    """(H, W) or (H, W, 3) float32 in 0..1."""
    return np.asarray(image, dtype=np.float32) / 255


def _defocus(image: Image.Image, radius: float, rng: np.random.Generator) -> Image.Image:
    """Blur with a disc of this radius, px at 224 px; its soft rim allows radii below a pixel."""
    radius *= max(image.size) / SIDE
    reach = int(np.ceil(radius))
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disc = np.clip(radius + 0.5 - np.hypot(x, y), 0, 1).astype(np.float32)
    return _image(cv2.filter2D(_values(image), -1, disc / disc.sum(), borderType=cv2.BORDER_REFLECT))


def _gaussian_noise(image: Image.Image, deviation: float, rng: np.random.Generator) -> Image.Image:
    values = _values(image)
    return _image(values + rng.standard_normal(values.shape, dtype=np.float32) * deviation)


def _jpeg(image: Image.Image, quality: float, rng: np.random.Generator) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, format="JPEG", quality=int(quality))
    return Image.open(stream).convert(image.mode)


def _stain(image: Image.Image, share: float, rng: np.random.Generator) -> Image.Image:
    """Strengthen or weaken each stain by this share, by colour deconvolution (Ruifrok & Johnston 2001)."""
    density = -np.log10((np.asarray(image, dtype=np.float64) + 1) / 256)  # + 1: black has a finite density
    stains = density @ np.linalg.inv(HED) * (1 + share * rng.choice([-1.0, 1.0], 3))
    return _image((256 * 10 ** -(stains @ HED) - 1) / 255)


def _hue(image: Image.Image, degrees: float, rng: np.random.Generator) -> Image.Image:
    hsv = cv2.cvtColor(_values(image), cv2.COLOR_RGB2HSV)  # hue in degrees
    hsv[..., 0] = (hsv[..., 0] + degrees * rng.choice([-1, 1])) % 360
    return _image(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB))


def _resolution(image: Image.Image, factor: float, rng: np.random.Generator) -> Image.Image:
    width, height = (max(1, round(side * factor)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BOX).resize(image.size, Image.Resampling.BILINEAR)


BLOOD, DERMA = "MedMNIST-C, blood cells", "MedMNIST-C, skin and chest X-ray"
STAINS = "Tellez et al. 2019 (arXiv 1902.06543) call 0.05 light and 0.2 strong; further by us"
_brightness: Change = lambda image, factor, rng: ImageEnhance.Brightness(image).enhance(factor)  # noqa: E731
_contrast: Change = lambda image, factor, rng: ImageEnhance.Contrast(image).enhance(factor)  # noqa: E731
_shot_noise: Change = lambda image, photons, rng: _image(rng.poisson(_values(image) * photons) / photons)  # noqa: E731
CORRUPTIONS: dict[str, Corruption] = {
    "defocus": Corruption("Defocus blur", _defocus, (2, 3, 4, 5, 6), "radius, px at 224 px", BLOOD),
    "gaussian_noise": Corruption(
        "Gaussian noise", _gaussian_noise, (0.04, 0.08, 0.12, 0.18, 0.26), "standard deviation, white = 1", DERMA
    ),
    "shot_noise": Corruption("Shot noise", _shot_noise, (60, 25, 18, 10, 5), "photons in a white pixel", DERMA),
    "jpeg": Corruption("JPEG", _jpeg, (50, 30, 15, 10, 7), "quality, of 100", BLOOD),
    "brighter": Corruption("Brighter", _brightness, (1.1, 1.2, 1.3, 1.4, 1.5), "factor", DERMA),
    "darker": Corruption("Darker", _brightness, (0.9, 0.8, 0.7, 0.6, 0.5), "factor", DERMA),
    "contrast": Corruption("Less contrast", _contrast, (0.9, 0.8, 0.7, 0.6, 0.4), "factor", "MedMNIST-C, chest X-ray"),
    "stain": Corruption(
        "Stain", _stain, (0.05, 0.1, 0.2, 0.3, 0.4), "share by which each of three stains changes", STAINS, colour=True
    ),
    "hue": Corruption("Hue", _hue, (5, 10, 15, 20, 30), "turn, degrees", "ours", colour=True),
    "resolution": Corruption(
        "Resolution", _resolution, (0.6, 0.5, 0.4, 0.3, 0.25), "side that is left, then enlarged again", BLOOD
    ),
}


FOLDER, NUMBERS = "stress", "stress.json"  # beside the checkpoint


def measure_robustness(
    clean: Predictions,
    corrupted: Mapping[str, Sequence[Predictions]],
    target: Target | None = None,
) -> Robustness:
    """Compare clean images with the same at strengths 1 to 5, by key in `CORRUPTIONS`. `target` says what the labels
    are; None: what the predictions say, not grades. Raises DataError for predictions without labels."""
    target = target_of(clean) if target is None else target
    kind = TARGETS[target.kind]
    number, guess, numbers = kind.stress[0], kind.guess(clean), kind.numbers.evaluate(clean)
    same = ("n", "n_groups", "resampling", "level", "classes", "positive_class")
    names = [name for name in kind.stress if name in numbers.overall]
    costs, errors, shown = {}, dict[str, np.ndarray](), {name: numbers.overall[name] for name in names}
    before = _error(kind, clean, shown[number])
    for key, part in corrupted.items():
        evaluated = [kind.numbers.evaluate(p).overall for p in part]
        own = [{name: overall[name] for name in names} for overall in evaluated]
        errors[key] = np.array([_error(kind, p, of[number]) for p, of in zip(part, own, strict=True)])  # (5, 3 + G)
        what, rows, mean = CORRUPTIONS[key], list[Strength](), errors[key].mean(axis=0)
        for i, (value, of, error) in enumerate(zip(what.values, own, errors[key], strict=True), 1):
            rows.append(Strength(strength=i, value=value, **of, lost=_estimate(error, before)))
        about = {"title": what.title, "text": what.text, "source": what.source}
        costs[key] = CorruptionCost(**about, strengths=rows, error=_estimate(mean), lost=_estimate(mean, before))
    error = np.concatenate([*errors.values()]).mean(axis=0) if errors else np.full(3, np.nan)
    result = Robustness(
        **{name: getattr(numbers, name) for name in same},
        target=target,
        number=number,
        guess=guess if np.isfinite(guess) else None,
        clean=shown,
        corruptions=costs,
        mean_corruption_error=_estimate(error),
        relative=_estimate(error, before if errors else None),
    )
    clear = {k for k, of in errors.items() if (_estimate(of.mean(axis=0), before, len(errors)).low or 0) > 0}
    (worst, sentence), reasons, notes = _verdict(result, clear), dict[str, str](), list[str]()
    for name, entry in result.clean.items():
        if entry.value is None:
            one = clean.kind == "classes" and len(np.unique(known_labels(clean))) < 2
            alike = "all images are of one class" if one else "it is undefined without corruption"
            reasons[name] = alike if result.n else "there are no images"
    if (result.n if result.n_groups is None else result.n_groups) < 2:
        reasons["intervals"] = f"they need two {'images' if result.n_groups is None else 'patients'} or more"
    higher, reached = ALL_METRICS[number].higher_is_better, result.clean[number]
    end, least = reached.low if higher else reached.high, result.guess  # the end that is nearer to guessing
    if end is not None and least is not None and (end <= least < 1 if higher else end >= least):
        notes.append("On the clean images the model is not shown to be better than guessing: there is little to lose.")
    if result.n_groups is None:
        notes.append("Patients are unknown: if they have several images each, the intervals are too narrow.")
    elif result.n_groups < FEW_GROUPS:
        notes.append(f"There are only {counted(result.n_groups, 'patient')}: the intervals themselves are unreliable.")
    return result.model_copy(update={"undefined": reasons, "worst": worst, "verdict": sentence, "notes": notes})


def _error(kind: TargetKind, predictions: Predictions, number: Estimate) -> np.ndarray:
    """(3 + G,): lower is better; the error of all images, its interval from that of the `number`, NaN where it has
    none, and the error without each patient."""
    prepared, name = kind.numbers(predictions), kind.stress[0]
    higher = ALL_METRICS[name].higher_is_better
    ends = (number.high, number.low) if higher else (number.low, number.high)
    values = np.array([prepared.point[name], *ends, *prepared.without(prepared.units)[name]], dtype=float)
    return 1 - values if higher else values


def _estimate(error: np.ndarray, before: np.ndarray | None = None, tests: int = 1) -> Estimate:
    """An error of `_error`, or what it is above that of `before`, with its interval by the jackknife; if no patient
    changes it, by MOVER from those of the errors. A loss of 0 has none then: no patient shows if others would lose."""
    start = np.zeros_like(error) if before is None else before
    value, *without = np.round(np.delete(error - start, [1, 2]), 12) + 0.0  # + 0.0: never -0
    if len(without) > 1 and set(without) == {value}:
        lost = difference(estimate(error[0], error[1], error[2], ""), estimate(start[0], start[1], start[2], ""))
        arms = np.array([lost.low, lost.high], dtype=float) - value
        low, high = value + arms * quantile(tests=tests) / quantile() if value else NONE
        return estimate(value, low, high, "mover")
    low, high = jackknife_interval(value, np.array(without), skewed=False, tests=tests)
    return estimate(value, max(low, 0) if before is None else low, high, "jackknife")


def _verdict(found: Robustness, clear: Collection[str]) -> tuple[str | None, str]:
    """What hurts most, and is it shown: `clear` are the corruptions with a loss above 0 as one of all (Bonferroni)."""
    parts = {key: part for key, part in found.corruptions.items() if part.lost.low is not None or part.lost.value == 0}
    if all(part.lost.low is None for part in parts.values()):
        return None, "No corruption is shown to hurt: the loss has no interval."
    losses = {key: parts[key].lost for key in sorted(parts, key=lambda key: -(parts[key].lost.value or 0.0))}
    shown = [key for key in losses if key in clear]  # the largest first
    rises = not ALL_METRICS[found.number].higher_is_better
    name = TARGETS[found.target.kind].metrics[found.number].phrase
    unit = f" {found.target.unit}" if found.target.unit else ""
    change = {key: value_text(of).replace(" (", f"{unit} (", 1) for key, of in losses.items()}
    alone = {key for key, lost in losses.items() if key not in clear and lost.low is not None and lost.low > 0}
    change |= {key: f"{change[key][:-1]}; not above 0 as one of {len(found.corruptions)})" for key in alone}
    if not shown:
        verb, noun = ("raise", "rise") if rises else ("lower", "fall")
        first, lost = next(iter(losses.items()))
        largest = f"the largest {noun} is {change[first]}, by {parts[first].title}"
        if lost.value is not None and lost.value < 0:
            largest = f"on the mean of the five strengths each corruption {'lowers' if rises else 'raises'} it"
        return None, f"No corruption is shown to {verb} {name}; {largest}."
    worst, *others = shown
    clean, last = found.clean[found.number].value, parts[worst].strengths[-1][found.number].value
    larger = {*list(losses)[: list(losses).index(worst)], *alone}
    text = (
        f"{parts[worst].title} {'is shown to hurt' if larger else 'hurts'} most: {name} "
        f"{'rises' if rises else 'falls'} by {change[worst]} on the mean of the five strengths, "
        f"and from {clean:.3f} to {last:.3f} at the strongest."
    )
    text += f" Next: {', '.join(f'{parts[key].title} by {change[key]}' for key in others)}." * bool(others)
    spared = [part.title + f" (by {change[key]})" * (key in larger) for key, part in parts.items() if key not in shown]
    return worst, text + (f" No loss is shown for: {', '.join(spared)}." if spared else "")


def known_stress(run: Path, weights_hash: str, what: str) -> Robustness | None:
    """The newest stress test of these weights in a run folder, of the same images where there is one: `what`, such as
    "test of cells". None where there is none."""
    found = list[Robustness]()
    for file in sorted(run.glob(f"{FOLDER}*/{NUMBERS}"), key=lambda file: -file.stat().st_mtime_ns):
        with contextlib.suppress(OSError, ValueError):  # a file that vitmed did not write
            found.append(Robustness.model_validate_json(file.read_text(encoding="utf-8")))
    return min((s for s in found if s.weights_sha256 == weights_hash), key=lambda s: s.what != what, default=None)


@dataclass(frozen=True)
class StressRequest:
    """What a stress test does: with which corruptions (none: all), and the most `images` of the split.

    Raises UsageError for an unknown corruption or split.
    """

    corruptions: Sequence[str]
    split: str
    images: int
    seed: int
    device: str

    def __post_init__(self) -> None:
        for name in self.corruptions:
            if name not in CORRUPTIONS:
                raise unknown_key("corruption", name, CORRUPTIONS)
        if self.split not in SPLITS:
            raise unknown_key("split", self.split, SPLITS)


def stress_images(saved: SavedModel, chosen: EvaluationImages, what: str, request: StressRequest) -> Robustness:
    """Predict a sample of images, clean and corrupted. Returns the content of stress.json. Raises DataError: no image
    can be read; UsageError: no corruption."""
    picked = pick_images([sample.label for sample in chosen.samples], request.images, request.seed)
    decoded = _decode(saved.preprocessing, chosen, picked)
    unreadable = len(picked) - len(decoded)
    names, grey = list(request.corruptions or CORRUPTIONS), "the network sees grey" * (saved.preprocessing.channels < 3)
    grey = grey or "the images are grey" * all(map(is_grey, decoded.values()))
    skipped = {name: f"needs colour, and {grey}" for name in names if grey and CORRUPTIONS[name].colour}
    names = [name for name in dict.fromkeys(names) if name not in skipped]
    if not names:
        raise UsageError(f"{listed([*skipped])}: needs colour, and {grey}", "name others with --corruption, or none")
    say(
        f"{what}: {len(decoded):,} of {counted(len(chosen.samples), 'image')}, "
        f"{counted(len(names), 'corruption')} of 5 strengths, {(1 + 5 * len(names)) * len(decoded):,} passes"
        + (f"; {grey}: without {listed([*skipped])}" if skipped else "")
    )
    clean, corrupted = _predict_all(saved, chosen, decoded, replace(request, corruptions=names))
    robustness = measure_robustness(clean, corrupted, saved.splits.target)
    unread = [f"{counted(unreadable, 'image')} could not be read; the others are counted."] if unreadable else []
    about = {
        "what": what,
        "checkpoint": saved.path.name,
        "weights_sha256": saved.weights_hash,
        "images_of": len(chosen.samples),
        "unreadable": unreadable,
        "seed": request.seed,
        "skipped": skipped,
        "image_size": saved.preprocessing.image_size,
        "notes": [*chosen.notes, *robustness.notes, *unread],
    }
    return robustness.model_copy(update=about)


def _predict_all(
    saved: SavedModel, chosen: EvaluationImages, decoded: Mapping[int, Image.Image], request: StressRequest
) -> tuple[Predictions, dict[str, list[Predictions]]]:
    names = request.corruptions
    network = open_network(saved, None, request.device, saved.exact)
    rows, samples = list(decoded), [chosen.samples[row] for row in decoded]
    passes = [("", 0), *((name, strength) for name in names for strength in range(1, 6))]  # first the clean images
    target, positive = saved.splits.target, saved.config.data.positive
    predictions, start = list[Predictions](), time.perf_counter()
    with bar("evaluating corrupted images") as advance:
        for number, (name, strength) in enumerate(passes):

            def read(i: int, name: str = name, strength: int = strength) -> np.ndarray:
                return saved.preprocessing.fit(corrupt(decoded[rows[i]], name, strength, (request.seed, rows[i])))

            progress = lambda done, _: advance(number * len(rows) + done, len(passes) * len(rows))  # noqa: B023, E731
            logits = network.outputs(read, len(rows), progress).logits
            labelled = labelled_by(target, saved.classes, samples, logits, positive, chosen.columns)
            predictions.append(saved.decided(labelled))
            if not name and rows and names:
                minutes = max(1, round((time.perf_counter() - start) * (len(passes) - 1) / 60))
                say(f"about {counted(minutes, 'minute')} (--images takes fewer)")
    return predictions[0], {name: predictions[5 * k + 1 : 5 * k + 6] for k, name in enumerate(names)}


def pick_images(labels: Sequence[int], most: int, seed: int) -> list[int]:
    """Which images, in their order: all, or `most` drawn at random, each stratum in proportion and at least once."""
    strata = np.asarray(labels, dtype=np.int64)
    if len(strata) <= most:
        return list(range(len(strata)))
    order = np.random.default_rng([seed, 3]).permutation(len(strata))
    turn = turns(strata[order]) / np.bincount(strata)[strata[order]]  # 0 for the first, so every stratum has one
    return sorted(order[np.argsort(turn, kind="stable")][:most].tolist())


def _decode(how: Preprocessing, chosen: EvaluationImages, rows: Sequence[int]) -> dict[int, Image.Image]:
    """Row -> its image, no larger than the network sees it. Raises DataError where none can be read."""

    def read(row: int) -> Image.Image | str:
        path = chosen.root / chosen.samples[row].path
        try:
            image = read_image(path, how.channels, frame=how.frame, window=how.window)
            how.refuse_thin(path, image)
            return reduced(image, how)
        except DataError as error:
            return error.line

    decoded, problems = dict[int, Image.Image](), list[str]()
    with bar("reading images") as advance:
        for done, image in enumerate(in_threads(read, rows)):
            if isinstance(image, str):
                problems.append(image)
            else:
                decoded[rows[done]] = image
            advance(done + 1, len(rows))
    if problems and not decoded:
        raise DataError("\n".join(sorted(problems)[:10]), "restore these files, or name others with --data")
    if problems:
        warn(f"{len(problems):,} of {counted(len(rows), 'image')} cannot be read and are left out, such as:")
        warn(problems[0])
    return decoded
