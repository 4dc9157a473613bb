"""`vitmed.load`: a model for use in a program or a notebook; `Answer`: what any model says of an image, as an object,
as cells of a table and as plain values."""

import io
import re
import tempfile
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from PIL import Image, ImageChops, ImageOps

from vitmed.core.base_models import NO_FINDING
from vitmed.core.errors import DataError, UsageError, VitmedError
from vitmed.core.messages import Silent, listening
from vitmed.core.text import NOTICE, format_number
from vitmed.imaging.decode import decode
from vitmed.imaging.dicom import has_magic
from vitmed.imaging.rasters import has_negative_ink
from vitmed.imaging.raw_image import RawImage
from vitmed.imaging.window import asked_window
from vitmed.inference.open_model import WINDOWED, open_model, open_network, with_window
from vitmed.inference.saved_model import SavedModel, check_precision
from vitmed.metrics.predictions import Predictions
from vitmed.metrics.predictions_csv import ANSWER, NO, OOD_SCORE, YES

ImageLike = str | Path | bytes | np.ndarray | Image.Image
MEMORY = Path("/dev/shm")  # files that are never written to a disk
FLAT = "has 8 bits and is not windowed; the window of the model is for deeper images"
TOP = 3  # classes or findings that predict shows


@dataclass(frozen=True)
class Answer:
    """What a model says of an image; `picture`, (S, S, C) uint8, is what the network saw."""

    image: str  # the name of the file; "" for an image in memory
    prediction: str | tuple[str, ...] | float  # the class or grade; the called findings; a number, in `unit`
    probability: float | None  # of the predicted class, calibrated; None for findings and numbers
    probabilities: dict[str, float]  # of every class or finding, calibrated; empty for a number
    prediction_set: tuple[str, ...] | None  # what cannot be excluded; None where the policy has no sets
    interval: tuple[float, float] | None  # of a number; None where the policy has no intervals
    answered: bool  # whether the model answers by its policy
    reason: str  # why not, else ""
    ood_score: float | None  # above 1 the image is unlike those of training; None where it is not known
    unit: str = ""
    note: str = ""  # what to know of the pixels: a window that was asked for, or one that an image of 8 bits has not
    picture: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8), repr=False, compare=False)

    @classmethod
    def of(cls, predictions: Predictions, row: int) -> "Answer":
        """What predictions, with their policy applied, say of one image."""
        cell = predictions.columns.get(ANSWER, (YES,) * len(predictions))[row]
        score, ends = predictions.columns.get(OOD_SCORE), predictions.intervals
        classes, probability, probabilities = predictions.classes, None, dict[str, float]()
        prediction: str | tuple[str, ...] | float
        if predictions.kind == "number":
            prediction = float(predictions.amounts[row, 0])
        else:
            probabilities = dict(zip(classes, predictions.probabilities[row].tolist(), strict=True))
            if predictions.kind == "findings":
                prediction = tuple(classes[f] for f in np.flatnonzero(predictions.predicted[row]))
            else:
                prediction, probability = classes[predictions.predicted[row]], float(predictions.confidence[row])
        return cls(
            predictions.paths[row],
            prediction,
            probability,
            probabilities,
            prediction_set=None if predictions.members is None else predictions.set_of(row),
            interval=None if ends is None else (float(ends[row, 0]), float(ends[row, 1])),
            answered=cell == YES,
            reason=cell.removeprefix(NO) if cell != YES else "",
            ood_score=None if score is None else float(score[row]),
            unit=predictions.target.unit,
        )

    @property
    def ranking(self) -> list[tuple[str, float]]:
        """The classes or findings with their probabilities, the likeliest first."""
        return sorted(self.probabilities.items(), key=lambda item: -item[1])

    def cells(self, top_k: int) -> list[str]:
        """The cells below `answer_columns`: class, probability, runners-up; findings and the next; number, interval."""
        if isinstance(self.prediction, float):
            ends = "" if self.interval is None else " to ".join(map(format_number, self.interval))
            return [format_number(self.prediction), ends]
        named = [(name, f"{name} {p:.3f}") for name, p in self.ranking]
        if isinstance(self.prediction, tuple):
            called = [text for name, text in named if name in self.prediction]
            others = [text for name, text in named if name not in self.prediction]
            return [", ".join(called) or NO_FINDING, ", ".join(others[:top_k])]
        others = [text for name, text in named[:top_k] if name != self.prediction]  # not always the likeliest
        return [self.prediction, f"{self.probability:.3f}", ", ".join(others)]

    def to_json(self, top_k: int = 0) -> dict[str, Any]:
        """The same as plain values: of findings those called and the likeliest others, or all for 0."""
        if isinstance(self.prediction, float):
            return {"prediction": self.prediction, "interval": None if self.interval is None else list(self.interval)}
        if isinstance(self.prediction, tuple):
            others = [name for name, _ in self.ranking if name not in self.prediction]
            left_out = others[top_k:] if top_k else []
            each = [(name, p) for name, p in self.probabilities.items() if name not in left_out]
            findings = [{"finding": name, "probability": p, "called": name in self.prediction} for name, p in each]
            return {"prediction": list(self.prediction), "findings": findings}
        top = [{"class": name, "probability": p} for name, p in self.ranking[:top_k]]
        return {"prediction": self.prediction, "confidence": self.probability, "top": top}


def answer_columns(predictions: Predictions) -> list[str]:
    """The headings of `Answer.cells`; ">" stands before a column of numbers."""
    if predictions.kind == "number":
        unit = predictions.target.unit
        return [f">{predictions.classes[0]}{f' ({unit})' if unit else ''}", ">interval"]
    return [*(["findings"] if predictions.kind == "findings" else ["class", ">probability"]), "next"]


def predictions_json(predictions: Predictions, top_k: int | None = None) -> dict[str, Any]:
    """One plain object: classes, one entry per image with its answer, and the unreadable with their problem. `top_k`
    are the classes of an answer, default `TOP`, or the findings beside those called, default all."""
    top_k = top_k or (0 if predictions.kind == "findings" else TOP)
    images = []
    for row, path in enumerate(predictions.paths):
        answer = Answer.of(predictions, row)
        images.append({"path": path, **answer.to_json(top_k)})
        images[-1] |= {name: cells[row] for name, cells in predictions.columns.items()}
        if answer.ood_score is not None:
            images[-1][OOD_SCORE] = answer.ood_score
    deciding = {name: getattr(predictions, name) for name in predictions.DECIDING if name != "costs"}
    errors = [{"path": path, "error": problem} for path, problem in predictions.errors]
    return {"classes": list(predictions.classes), **deciding, "images": images, "errors": errors, "notice": NOTICE}


def png_address(pixels: np.ndarray, side: int) -> str:
    """A picture (S, S, C) uint8 as a PNG of `side` px, in an address that holds it; without its opacity."""
    stream = io.BytesIO()
    colours = pixels[..., 0] if pixels.shape[2] < 3 else pixels[..., :3]
    Image.fromarray(colours).resize((side, side)).save(stream, "PNG")
    return f"data:image/png;base64,{b64encode(stream.getvalue()).decode()}"


class Model:
    """A model with its preprocessing and its decision policy; several threads may use it at once.

    Attributes:
        classes_: (K,) names, in the order of `predict_proba`, as in scikit-learn.
        kind: "classes", "grades", "findings" or "number"; unit: of a number.
        saved: what its file holds: configuration, policy, weights_hash; network: what runs it.
        notice: what it may be used for.
    """

    notice = NOTICE

    def __init__(self, saved: SavedModel, device: str = "auto", precision: str = "auto"):
        check_precision(precision)
        self.saved, self.preprocessing = saved, saved.preprocessing
        self.kind, self.unit = saved.splits.target.kind, saved.splits.target.unit
        self.classes_ = np.array(saved.classes)
        with listening(Silent()):
            self.network = open_network(saved, saved.policy, device, precision)

    def __repr__(self) -> str:
        return f"Model({self.saved.path.name!r}, {self.kind}: {', '.join(self.saved.classes[:6])})"

    @overload
    def predict(self, images: ImageLike) -> Answer: ...  # type: ignore[overload-overlap]  # a str is a sequence
    @overload
    def predict(self, images: Sequence[ImageLike]) -> list[Answer]: ...
    def predict(self, images: ImageLike | Sequence[ImageLike]) -> Answer | list[Answer]:
        """What the model says of an image, or of several.

        Args:
            images: a file, its bytes, a Pillow image, or an array (H, W) or (H, W, C), of 8 bits or, for a model of
                deeper images, raw values; or a list of them.

        Raises:
            DataError: an image cannot be read.
        """
        alone, given = _listed(images)
        squares, notes = zip(*map(self.seen, given), strict=True) if given else ((), ())
        names = [str(image) if isinstance(image, str | Path) else "" for image in given]
        found = self.answers(self.predictions(squares, names), squares)
        answers = [replace(answer, note=note) for answer, note in zip(found, notes, strict=True)]
        return answers[0] if alone else answers

    def predict_proba(self, images: ImageLike | Sequence[ImageLike]) -> np.ndarray:
        """(S, K) float64: calibrated probabilities of classes, grades or findings, (1, K) for an image alone. Raises
        UsageError for a number."""
        predictions = self.predictions([self.square(image) for image in _listed(images)[1]])
        if predictions.kind == "number":
            raise UsageError("a number has no probabilities", "use predict")
        return predictions.probabilities

    def square(self, image: ImageLike) -> np.ndarray:
        """What the network sees of an image: (S, S, C) uint8. Raises as `seen`."""
        return self.seen(image)[0]

    def seen(self, image: ImageLike) -> tuple[np.ndarray, str]:
        """What the network sees of an image, (S, S, C) uint8, and what to know of that.

        Raises DataError; UsageError for DICOM without pydicom.
        """
        how, path = self.preprocessing, Path("image")  # a name for messages
        pixels: RawImage | Image.Image  # as `decode` returns them
        if isinstance(image, str | Path):
            path, pixels = Path(image), decode(image, how.frame)
        elif isinstance(image, bytes):
            with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
                file = Path(folder) / ("image.dcm" if has_magic(image[:132]) else "image.png")  # any name of an image
                file.write_bytes(image)
                try:
                    pixels = decode(file, how.frame)
                except VitmedError as error:
                    problem = error.problem.replace(str(file), "image").removesuffix(", despite its name")
                    fix = "give a whole image" if "remove it" in error.fix else error.fix
                    raise type(error)(problem, fix) from None
        elif isinstance(image, np.ndarray):
            path, pixels = Path("array"), _raw(image)
        elif isinstance(image, Image.Image):
            lost = re.search(";16[BLN]", str(getattr(image, "tile", "")))  # of a file that is not decoded yet
            if lost and not image.mode.startswith("I"):
                problem = "image: 16 bits per channel, of which Pillow keeps 8"
                raise DataError(problem, "name the file, or give its bytes")
            try:
                pixels = ImageOps.exif_transpose(image.copy())
            except OSError as error:  # Pillow decodes only now
                raise DataError(f"image: cannot be decoded ({error})", "give a whole image") from None
            pixels = ImageChops.invert(pixels) if has_negative_ink(image) else pixels
            if image.mode.startswith("I") or image.mode == "F":  # more than 8 bits
                # of a TIFF: low values are white, which Pillow leaves so
                white = getattr(image, "tag_v2", {}).get(262) == 0
                pixels = _raw(np.asarray(pixels), white)
        else:
            fix = "name a file, or give its bytes, a Pillow image or a NumPy array (H, W, C)"
            raise DataError(f"an image of the type {type(image).__name__}", fix)
        window, deep = how.window, isinstance(pixels, RawImage)
        windowed = asked_window(window) is not None
        note = "" if window is None or deep != windowed else f"is {WINDOWED.format(window)}" if windowed else FLAT
        return how.square(path, pixels), note

    def predictions(self, squares: Sequence[np.ndarray], names: Sequence[str] = ()) -> Predictions:
        """The predictions of images as `square` returns them, with the policy applied."""
        outputs = self.network.outputs(lambda i: squares[i], len(squares))
        named = tuple(names) or tuple(str(i) for i in range(len(squares)))
        return self.saved.decided(self.saved.predictions(named, outputs.logits, outputs.columns))

    def answers(self, predictions: Predictions, squares: Sequence[np.ndarray]) -> Iterator[Answer]:
        """The answer for each image, from what `predictions` returned for its square."""
        shown = self.preprocessing.shown
        return (replace(Answer.of(predictions, row), picture=shown(square)) for row, square in enumerate(squares))


def _listed(images: ImageLike | Sequence[ImageLike]) -> tuple[bool, list[ImageLike]]:
    """Whether it is an image alone, and the images."""
    alone = isinstance(images, ImageLike | bytearray | io.IOBase) or not isinstance(images, Iterable)
    return alone, [images] if alone else list(images)  # type: ignore[list-item, arg-type]


def _raw(image: np.ndarray, inverted: bool = False) -> RawImage | Image.Image:
    """An array as `decode` would return it. Raises DataError for another shape."""
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[..., 0]
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (2, 3, 4)) or not image.size:
        first = image.ndim == 3 and image.shape[0] in (1, 3)
        fix = "put the channels last: image.transpose(1, 2, 0)" if first else "give a list of arrays, one an image"
        raise DataError(f"an array of shape {image.shape}, expected (H, W) or (H, W, C)", fix)
    if image.dtype == np.uint8:
        return Image.fromarray(image)
    if image.dtype.kind not in "uif" or (image.ndim == 3 and image.shape[2] != 3):
        fix = "give real numbers, grey (H, W) or in three colours (H, W, 3)"
        fix = "255 * image.astype(np.uint8)" if image.dtype == bool else fix
        raise DataError(f"an array of {image.dtype} and the shape {image.shape}", fix)
    if not np.isfinite(image).all():
        raise DataError("an array with values that are not finite", "leave them out")
    return RawImage(image, 8 * image.dtype.itemsize, inverted=inverted)


def load(
    model: str | Path | SavedModel, *, device: str = "auto", precision: str = "auto", window: str | None = None
) -> Model:
    """Open a model for use in a program.

    Args:
        model: a run folder, a checkpoint, or an exported .onnx file, which needs no torch.
        device: "auto", "cpu", "cuda" or "mps"; precision: "auto", "fp32" or "bf16", as in `predict`.
        window: centre and width, such as "40/400", of deep images for a model of 8-bit images, as in `predict`.

    Raises:
        CheckpointError: not a model of vitmed. UsageError: another device or precision, or a window that cannot be.
    """
    return Model(with_window(model if isinstance(model, SavedModel) else open_model(model), window), device, precision)
