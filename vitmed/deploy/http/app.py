"""The addresses that the server answers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from vitmed import __version__
from vitmed.core.errors import CheckpointError, VitmedError
from vitmed.core.process import cores
from vitmed.core.text import NOTICE
from vitmed.deploy.http import guard, reports
from vitmed.deploy.http.content import (
    PICTURE,
    AttentionMap,
    ImageAnswer,
    ImageProblem,
    ModelCard,
    ModelHash,
    Problem,
    Reply,
    model_card,
    page_for_images,
    page_of_addresses,
)
from vitmed.deploy.http.limits import AGAIN, FIELD, Limits, Load, Refusal, Upload, gone, read_uploads
from vitmed.deploy.http.scores import Counters, ScoreLog
from vitmed.imaging.decode import READERS, NotAnImageError
from vitmed.imaging.raw_image import TooLargeError
from vitmed.inference.load import Answer, Model, png_address
from vitmed.metrics.predictions_files import unlabelled

DECODERS = 4  # images decoded at once, at most: a large one takes a gigabyte
CLOSE = 1e-3  # how far a probability, or the share of a number, may move between two answers to one image
FRESH = 2.0  # s that an answer of /health/ready counts
Found = tuple[Answer, AttentionMap | None, str | None]  # the last is the id of its line in the log of scores
Answered = tuple[ImageAnswer | ImageProblem, int, Answer | None]


class Service:
    """A model that answers uploads.

    Args:
        limits: what a request may cost; scores: gets what the model says of each image.
        batch: images computed at once; None: as many as `predict` computes.
    """

    def __init__(self, model: Model, limits: Limits, scores: ScoreLog | None = None, batch: int | None = None):
        self.model, self.limits, self.load, self.scores = model, limits, Load(limits), scores
        self.card, self.hash = model_card(model), ModelHash(weights_sha256=model.saved.weights_hash)
        self.counters = Counters(self.hash.weights_sha256, __version__, lambda: self.load.images)
        self.maps: Any = None
        if model.network.model is not None:
            from vitmed.deploy.http.content import Maps

            self.maps = Maps(model)
        size, began = batch or max(LEAST, model.network.batch), self.counters.batch.observe
        self.batcher = Batcher[Found](self._work, size, lambda: self.load.decoding, began)
        if batch is not None:
            model.network.batch = batch
        self.decoders = min(DECODERS, cores())
        self.pool = ThreadPoolExecutor(self.decoders, "decode")
        self.drawn = model.preprocessing.drawn()
        self.known = _stored(model, self.drawn)  # the answer to it; None: that at the start counts
        self.checked: tuple[float, str] = (-FRESH, "")  # when, and what was wrong
        self.checking = asyncio.Lock()

    def _work(self, squares: Sequence[np.ndarray], mapped: Sequence[bool]) -> list[Found]:
        """The answers of a batch; runs in the thread of the model."""
        predictions = self.model.predictions(squares, [""] * len(squares))
        sent = [i for i, square in enumerate(squares) if square is not self.drawn]
        lines = dict[int, str]()
        if self.scores is not None and sent:
            lines = dict(zip(sent, self.scores.add(predictions.take(np.array(sent))), strict=True))
        answers = list(self.model.answers(predictions, squares))
        rows = [i for i, wanted in enumerate(mapped) if wanted and self.maps is not None]
        maps = self.maps.of(np.stack([squares[i] for i in rows]), predictions, rows) if rows else []
        found = dict(zip(rows, maps, strict=True))
        return [(answer, found.get(i), lines.get(i)) for i, answer in enumerate(answers)]

    async def start(self) -> None:
        """Start the thread of the model, and try it. Raises as `Model.predict`."""
        self.batcher.start()
        answer, _, _ = await self.batcher.put(self.drawn)
        self.known = _numbers(answer) if self.known is None else self.known

    def stop(self) -> None:
        """Answer what waits, and end the threads."""
        self.load.stopping = True
        self.batcher.stop()
        if self.scores is not None:
            self.scores.close()
        self.pool.shutdown(cancel_futures=True)

    async def check_ready(self) -> None:
        """Raises Refusal 503 unless the drawn image gives, through the queue, the answer stored with the model."""
        self.load.check_open()
        async with self.checking:  # one for all who ask at once
            now = asyncio.get_running_loop().time()
            if now - self.checked[0] >= FRESH:
                self.checked = now, await self._what_is_wrong()
        if self.checked[1]:
            raise Refusal(503, self.checked[1], "start the server again", headers=AGAIN)

    async def _what_is_wrong(self) -> str:
        try:
            async with asyncio.timeout(self.limits.timeout):
                answer, _, _ = await self.batcher.put(self.drawn)
        except TimeoutError:
            return f"the model gave no answer in {self.limits.timeout:g} s"
        except Exception as error:
            return f"the model fails ({type(error).__name__})"
        found = _numbers(answer)
        if self.known is None or not np.isfinite(found).all():
            return "the answer of the model is not finite"
        same = np.allclose(found, self.known, rtol=CLOSE, atol=CLOSE)
        return "" if same else "the model gives another answer to a stored image than the one stored with it"

    async def predict(self, request: Request, pictures: bool) -> Reply | Response:
        """The answers to the images of a form; a Structured Report where the sender asks for it. Raises Refusal."""
        self.load.check_open()
        with self.load.held() as add:
            try:
                async with asyncio.timeout(self.limits.timeout):
                    uploads = await read_uploads(request, self.limits, add)
            except TimeoutError:
                fix = "send fewer images, or start the server with a longer --timeout"
                raise Refusal(408, f"the request did not arrive in {self.limits.timeout:g} s", fix) from None
            turn = asyncio.Semaphore(self.decoders)  # then comes the next image of another request
            in_pool = functools.partial(asyncio.get_running_loop().run_in_executor, self.pool)
            with self.load.waiting(len(uploads)):
                try:
                    async with asyncio.timeout(self.limits.timeout):
                        wanted = reports.is_wanted(request)
                        header = await in_pool(reports.read_head, self.model, uploads) if wanted else None
                        pictures = pictures and header is None
                        each = (self._answer(request, upload, pictures, turn) for upload in uploads)
                        found = await asyncio.gather(*each)
                        entries = [entry for entry, _, _ in found]
                        if not any(isinstance(entry, ImageAnswer) for entry in entries):
                            raise _unreadable(found)
                        entry, _, answer = found[0]
                        if header is not None and isinstance(entry, ImageAnswer) and answer is not None:
                            file = await in_pool(reports.write_report, self.model, header, answer, entry.note)
                            return Response(file, media_type=reports.DICOM)
                except TimeoutError:
                    problem = f"there was no answer in {self.limits.timeout:g} s"
                    raise Refusal(503, problem, "send it again later, or fewer images", headers=AGAIN) from None
        return Reply(images=entries, model=self.hash)

    async def _answer(self, request: Request, upload: Upload, pictures: bool, turn: asyncio.Semaphore) -> Answered:
        """The entry of an image, the status of HTTP that it would have alone, and what the model says."""
        self.load.decoding += 1
        loop = asyncio.get_running_loop()
        try:
            async with turn:
                if await request.is_disconnected():
                    raise gone()
                square, note = await loop.run_in_executor(self.pool, self.model.seen, upload.data)
            waiting = self.batcher.put(square, pictures)
        except VitmedError as error:
            self.counters.images.labels("unreadable").inc()
            return ImageProblem(image=upload.name, **_words(error)), _status(error), None
        except OSError as error:  # /dev/shm of a container may be small
            problem = f"the server has no memory for the image ({error.strerror})"
            raise Refusal(503, problem, "give its container a larger --shm-size", headers=AGAIN) from None
        finally:
            self.load.decoding -= 1
        answer, found, line = await waiting
        self.counters.count(answer)
        about = {"image": upload.name, "note": note, "id": line, "picture": None}
        entry = ImageAnswer(**{**vars(answer), **about})
        if pictures:
            entry.picture, entry.attention = png_address(square, PICTURE), found
        return entry, 200, answer


def _numbers(answer: Answer) -> np.ndarray:
    """The numbers of an answer, (K,) float64."""
    own = [answer.prediction, *(answer.interval or ())] if isinstance(answer.prediction, float) else []
    return np.array([*answer.probabilities.values(), *own], np.float64)


def _stored(model: Model, drawn: np.ndarray) -> np.ndarray | None:
    """The numbers of the answer to the drawn image by the logits that the model's file holds.

    None where it holds none, or where this process computes in reduced precision.
    """
    saved = model.saved
    if saved.policy is None or not saved.policy.known_logits or model.network.precision != "fp32":
        return None
    logits = np.array([saved.policy.known_logits], np.float32)  # (1, K)
    found = saved.policy.apply(unlabelled(saved.splits.target, saved.classes, ("",), logits, (), {}))
    return _numbers(next(model.answers(found, [drawn])))


def _status(error: VitmedError) -> int:
    return 415 if isinstance(error, NotAnImageError) else 413 if isinstance(error, TooLargeError) else 422


def _words(error: VitmedError) -> dict[str, str]:
    """Problem and fix for one who sent bytes, not a file."""
    if isinstance(error, NotAnImageError):
        kinds = ", ".join(sorted({suffix[1:].upper() for suffix in READERS}))
        return {"problem": "not an image that vitmed reads", "fix": f"send one of {kinds}"}
    return {"problem": error.problem.removeprefix("image: "), "fix": error.fix}


def _unreadable(found: Sequence[Answered]) -> Refusal:
    """No image can be read: the status that they share, else 422."""
    statuses = {status for _, status, _ in found}
    entries = [entry.model_dump() for entry, _, _ in found]
    first, status = entries[0], statuses.pop() if len(statuses) == 1 else 422
    problem = first["problem"] if len(found) == 1 else "no image can be read: see images"
    return Refusal(status, problem, first["fix"], {"images": entries})


def create_app(
    service: Service,
    *,
    key: str | None = None,
    hosts: Collection[str] = (),
    log: Callable[[str], None] = lambda line: None,
) -> ASGIApp:
    """The application.

    Args:
        service: the model, which has started; key, hosts, log: as in `Guard`.
    """

    app = FastAPI(
        title="vitmed", version=__version__, description=NOTICE, docs_url=None, redoc_url=None, openapi_url=guard.SCHEMA
    )
    app.state.service, app.state.needs_key = service, key is not None
    refusals: dict[Any, Any] = {status: {"model": Problem, "description": text} for status, text in STATUSES.items()}
    answers = {200: {"content": {reports.DICOM: {"schema": {"type": "string", "format": "binary"}}}}, **refusals}
    bearer: dict[str, Any] = {"security": [{"key": []}]} if key is not None else {}
    app.post(guard.PREDICT, response_model=Reply, responses=answers, openapi_extra=FORM | bearer)(predict)
    app.get(guard.CARD, responses={401: refusals[401]}, openapi_extra=bearer)(card)
    app.get(guard.LIVE)(live)
    app.get(guard.READY, responses={503: refusals[503]})(ready)
    app.get(guard.METRICS, response_class=Response, openapi_extra=bearer)(metrics)
    app.get(guard.PAGE, include_in_schema=False)(page)
    app.get(guard.DOCS, include_in_schema=False)(docs)

    def handler(refusal: Callable[[Any], Refusal]) -> Callable[[Request, Exception], JSONResponse]:
        return lambda request, error: guard.refused(refusal(error))

    for kind, refusal in REFUSALS.items():
        app.add_exception_handler(kind, handler(refusal))
    return guard.Guard(app, key, hosts, service.counters, log)


async def predict(request: Request, pictures: bool = False) -> Any:
    """Answer the images of a form. `pictures=true` adds what the network saw, and its attention map.

    With the header `Accept: application/dicom` one DICOM image gets a Structured Report.
    """
    return await request.app.state.service.predict(request, pictures)


async def card(request: Request) -> ModelCard:
    """What the model is: classes, policy, licence, first numbers of its test."""
    return request.app.state.service.card  # type: ignore[no-any-return]


async def live() -> dict[str, str]:
    """The server runs."""
    return {"status": "live"}


async def ready(request: Request) -> dict[str, str]:
    """A drawn image gives, through queue and model, the answer that the training stored with the model."""
    await request.app.state.service.check_ready()
    return {"status": "ready"}


async def metrics(request: Request) -> Response:
    """Numbers for Prometheus."""
    return Response(request.app.state.service.counters.text(), media_type=CONTENT_TYPE_LATEST)


async def page(request: Request) -> HTMLResponse:
    state = request.app.state
    return page_for_images(state.service.card, state.service.limits, state.needs_key)


async def docs(request: Request) -> HTMLResponse:
    return page_of_addresses(request.app.openapi())


FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [FIELD],
                    "properties": {FIELD: {"type": "array", "items": {"type": "string", "format": "binary"}}},
                }
            }
        },
    }
}
REFUSALS: dict[type[Exception], Callable[[Any], Refusal]] = {
    Exception: lambda error: guard.of_bug(),  # `Guard` logs it
    Refusal: lambda error: error,
    HTTPException: lambda error: Refusal(error.status_code, str(error.detail).lower(), f"see {guard.DOCS}"),
    RequestValidationError: lambda error: Refusal(422, "a parameter has a wrong value", f"see {guard.DOCS}"),
    CheckpointError: lambda error: Refusal(503, "the answer of the model is not finite", "start the server again"),
}
STATUSES = {
    401: "The key is missing or wrong.",
    406: "A Structured Report of several images, or by a server without highdicom.",
    408: "The request arrives too slowly.",
    413: "Too many bytes, images or pixels.",
    415: "Not a form, or no image of a known type.",
    422: "No image can be read.",
    429: "Too many images wait.",
    503: "Not ready, stopping, or no answer in time.",
}
