"""The addresses that the server answers, the thread that owns the model and answers in batches, and the loop that runs
until a signal comes, behind a `Door` of socket and key."""

import asyncio
import errno
import functools
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from vitmed import __version__
from vitmed.core.errors import CheckpointError, UsageError, VitmedError, excluded
from vitmed.core.messages import warn
from vitmed.core.process import cores
from vitmed.core.text import NOTICE, first_line
from vitmed.deploy.http import content, limits
from vitmed.deploy.http.content import ImageAnswer, ImageProblem, ModelCard, ModelHash, Problem, Reply
from vitmed.deploy.http.limits import AGAIN, FIELD, Guard, Limits, Load, Refusal, Upload, read_uploads
from vitmed.deploy.http.scores import Counters, ScoreLog
from vitmed.imaging.decode import READERS, NotAnImageError
from vitmed.imaging.raw_image import TooLargeError
from vitmed.inference.load import Answer, Model, png_address

WAIT = 0.01  # s that a batch waits for images that are on their way
LEAST = 16  # images in a batch, at most, of a network that computes fewer at once: a batch has a cost of its own
PICTURE = 256  # px of a picture
DECODERS = 4  # images decoded at once, at most: a large one takes a gigabyte
CLOSE = 1e-3  # how far a probability, or the share of a number, may move between two answers to one image
FRESH = 2.0  # s that an answer of /health/ready counts
Found = tuple[Answer, str | None]  # and the id of its line in the log of scores
Answered = tuple[ImageAnswer | ImageProblem, int, Answer | None]
Result = TypeVar("Result")


class Batcher(Generic[Result]):
    """Collects images and works on them in one thread."""

    def __init__(
        self,
        work: Callable[[Sequence[np.ndarray]], Sequence[Result]],  # squares -> one result each; runs in the thread
        size: int,  # images in a batch, at most
        on_the_way: Callable[[], int] = lambda: 0,  # how many images will come soon; a batch waits for them
        began: Callable[[int], None] = lambda count: None,  # gets the number of images in each batch
        wait: float = WAIT,  # s, at most
    ):
        self.work, self.size, self.on_the_way, self.began, self.wait = work, size, on_the_way, began, wait
        self._jobs: queue.SimpleQueue[tuple[np.ndarray, Future[Result]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Work on what is in the queue, then end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def put(self, square: np.ndarray) -> asyncio.Future[Result]:
        """The result for an image, to await. It raises what `work` raised for its batch."""
        future = Future[Result]()
        self._jobs.put((square, future))
        return asyncio.wrap_future(future)

    def _run(self) -> None:
        going = True
        while going:
            batch, until = [self._jobs.get()], time.monotonic() + self.wait
            while batch[-1] is not None and len(batch) < self.size:
                coming, left = self.on_the_way() > 0, until - time.monotonic()
                try:
                    batch.append(self._jobs.get(timeout=left) if coming and left > 0 else self._jobs.get_nowait())
                except queue.Empty:
                    break
            going = batch[-1] is not None  # `stop` puts None
            jobs = [job for job in batch if job is not None]
            jobs = [job for job in jobs if job[1].set_running_or_notify_cancel()]  # others have run out of time
            if not jobs:
                continue
            self.began(len(jobs))
            try:
                for (_, future), result in zip(jobs, self.work([square for square, _ in jobs]), strict=True):
                    future.set_result(result)
            except Exception as error:
                for _, future in jobs:
                    if not future.done():
                        future.set_exception(error)


class Service:
    """A model that answers uploads.

    Args:
        limits: what a request may cost; scores: gets what the model says of each image.
        batch: images computed at once; None: as many as `predict` computes.
    """

    def __init__(self, model: Model, limits: Limits, scores: ScoreLog | None = None, batch: int | None = None):
        names = "".join(model.saved.classes)
        if names.encode(errors="ignore").decode() != names:
            problem = f"{model.saved.path}: a class has a name that is not UTF-8, which no answer in JSON can hold"
            raise UsageError(problem, "rename the folder of its images, and train again")
        self.model, self.limits, self.load, self.scores = model, limits, Load(limits), scores
        self.about, self.hash = content.model_card(model), ModelHash(weights_sha256=model.saved.weights_hash)
        self.counters = Counters(self.hash.weights_sha256, __version__, lambda: self.load.images)
        size, began = batch or max(LEAST, model.network.batch), self.counters.batch.observe
        if scores is not None:
            self.counters.unlogged.set_function(lambda: scores.lost)
        self.batcher = Batcher[Found](self._work, size, lambda: self.load.decoding, began)
        if batch is not None:
            model.network.batch = batch
        self.decoders = min(DECODERS, cores())
        self.pool = ThreadPoolExecutor(self.decoders, "decode")
        self.drawn = model.preprocessing.drawn()
        self.known: np.ndarray | None = None  # the numbers of the answer to it; None: those at the start count
        policy = model.saved.policy
        if policy is not None and policy.known_logits and model.network.precision == "fp32":  # from the model's file
            logits = np.array([policy.known_logits], np.float32)
            known = policy.apply(model.saved.predictions(("",), logits, {}))
            self.known = _numbers(next(model.answers(known, [self.drawn])))
        self.checked: tuple[float, str] = (-FRESH, "")  # when, and what was wrong
        self.checking = asyncio.Lock()

    def _work(self, squares: Sequence[np.ndarray]) -> list[Found]:
        """The answers of a batch; runs in the thread of the model."""
        predictions = self.model.predictions(squares, [""] * len(squares))
        sent = [i for i, square in enumerate(squares) if square is not self.drawn]
        lines = dict[int, str | None]()
        if self.scores is not None and sent:
            lines = dict(zip(sent, self.scores.add(predictions.take(np.array(sent))), strict=True))
        return [(answer, lines.get(i)) for i, answer in enumerate(self.model.answers(predictions, squares))]

    async def start(self) -> None:
        """Start the thread of the model, and try it. Raises as `Model.predict`."""
        self.batcher.start()
        answer, _ = await self.batcher.put(self.drawn)
        self.known = _numbers(answer) if self.known is None else self.known

    def stop(self) -> None:
        """Answer what waits, and end the threads."""
        self.load.stopping = True
        self.batcher.stop()
        if self.scores is not None:
            self.scores.stream.close()
        self.pool.shutdown(cancel_futures=True)

    async def ready(self) -> dict[str, str]:
        """A drawn image gives, through queue and model, the answer that the training stored with the model."""
        self.load.check_open()
        async with self.checking:  # one for all who ask at once
            now, wrong = asyncio.get_running_loop().time(), ""
            if now - self.checked[0] >= FRESH:
                try:
                    async with asyncio.timeout(self.limits.timeout):
                        answer, _ = await self.batcher.put(self.drawn)
                except TimeoutError:
                    wrong = f"the model gave no answer in {self.limits.timeout:g} s"
                except Exception as error:
                    wrong = f"the model fails ({type(error).__name__})"
                else:
                    found = _numbers(answer)
                    if self.known is None or not np.isfinite(found).all():
                        wrong = "the answer of the model is not finite"
                    elif not np.allclose(found, self.known, rtol=CLOSE, atol=CLOSE):
                        wrong = "the model gives another answer to a stored image than the one stored with it"
                self.checked = now, wrong
        if self.checked[1]:
            raise Refusal(503, self.checked[1], "start the server again", headers=AGAIN)
        return {"status": "ready"}

    async def predict(self, request: Request, pictures: bool = False) -> Reply | Response:
        """Answer the images of a form. `pictures=true` adds what the network saw.

        With the header `Accept: application/dicom` one DICOM image gets a Structured Report.
        """
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
                        kinds = request.headers.get("accept", "").lower().split(",")
                        wanted = any(kind.partition(";")[0].strip() == content.DICOM for kind in kinds)
                        header = await in_pool(content.read_head, self.model, uploads) if wanted else None
                        pictures = pictures and header is None
                        each = (self._answer(request, upload, pictures, turn) for upload in uploads)
                        answers = await asyncio.gather(*each)
                        entries = [entry for entry, _, _ in answers]
                        entry, _, answer = answers[0]
                        if header is not None and isinstance(entry, ImageAnswer) and answer is not None:
                            file = await in_pool(content.write_report, self.model, header, answer, entry.note)
                            return Response(file, media_type=content.DICOM)
                except TimeoutError:
                    problem = f"there was no answer in {self.limits.timeout:g} s"
                    raise Refusal(503, problem, "send it again later, or fewer images", headers=AGAIN) from None
        if not any(isinstance(entry, ImageAnswer) for entry in entries):
            statuses, unread = {status for _, status, _ in answers}, [entry.model_dump() for entry in entries]
            status = statuses.pop() if len(statuses) == 1 else 422
            problem = unread[0]["problem"] if len(unread) == 1 else "no image can be read: see images"
            raise Refusal(status, problem, unread[0]["fix"], {"images": unread})
        return Reply(images=entries, model=self.hash)

    async def card(self) -> ModelCard:
        """What the model is: classes, policy, licence."""
        return self.about

    async def metrics(self) -> Response:
        """Numbers for Prometheus."""
        return Response(generate_latest(self.counters.registry), media_type=CONTENT_TYPE_LATEST)

    async def _answer(self, request: Request, upload: Upload, pictures: bool, turn: asyncio.Semaphore) -> Answered:
        """The entry of an image, the status of HTTP that it would have alone, and what the model says."""
        self.load.decoding += 1
        loop = asyncio.get_running_loop()
        try:
            async with turn:
                if await request.is_disconnected():
                    raise Refusal(*limits.GONE)
                square, note = await loop.run_in_executor(self.pool, self.model.seen, upload.data)
            waiting = self.batcher.put(square)
        except VitmedError as error:
            self.counters.images.labels("unreadable").inc()
            status = 415 if isinstance(error, NotAnImageError) else 413 if isinstance(error, TooLargeError) else 422
            problem, fix = error.problem.removeprefix("image: "), error.fix
            if isinstance(error, NotAnImageError):  # for one who sent bytes, not a file
                kinds = ", ".join(sorted({suffix[1:].upper() for suffix in READERS}))
                problem, fix = "not an image that vitmed reads", f"send one of {kinds}"
            return ImageProblem(image=upload.name, problem=problem, fix=fix), status, None
        except OSError as error:  # /dev/shm of a container may be small
            problem = f"the server has no memory for the image ({error.strerror})"
            raise Refusal(503, problem, "give its container a larger --shm-size", headers=AGAIN) from None
        finally:
            self.load.decoding -= 1
        answer, line = await waiting
        self.counters.count(answer)
        picture = png_address(answer.picture, PICTURE) if pictures else None
        about = {"image": upload.name, "note": note, "id": line, "picture": picture}
        return ImageAnswer(**{**vars(answer), **about}), 200, answer


def _numbers(answer: Answer) -> np.ndarray:
    quantities = [answer.prediction, *(answer.interval or ())] if isinstance(answer.prediction, float) else []
    return np.array([*answer.probabilities.values(), *quantities], np.float64)


def create_app(service: Service, door: "Door", log: Callable[[str], None]) -> ASGIApp:
    """The application around a service that has started; `log` gets a line for each request."""
    about: dict[str, Any] = {"title": "vitmed", "version": __version__, "description": NOTICE}
    app = FastAPI(**about, docs_url=None, redoc_url=None, openapi_url=limits.SCHEMA, redirect_slashes=False)
    refusals: dict[Any, Any] = {status: {"model": Problem, "description": text} for status, text in STATUSES.items()}
    answers = {200: {"content": {content.DICOM: {"schema": FILE}}}, **refusals}
    bearer: dict[str, Any] = {} if door.key is None else {"security": [{"key": []}]}
    app.post(limits.PREDICT, response_model=Reply, responses=answers, openapi_extra=FORM | bearer)(service.predict)
    app.get(limits.CARD, responses={401: refusals[401]}, openapi_extra=bearer)(service.card)
    app.get(limits.LIVE)(live)
    app.get(limits.READY, responses={503: refusals[503]})(service.ready)
    for place, answer in ((limits.LIVE, live), (limits.READY, service.ready)):  # some load balancers ask by HEAD
        app.head(place, include_in_schema=False)(answer)
    app.get(limits.METRICS, response_class=Response, openapi_extra=bearer)(service.metrics)

    @app.get(limits.PAGE, include_in_schema=False)
    async def page() -> HTMLResponse:  # with a key it says nothing of the model, since anyone may open it
        shown, needs_key = None if door.key else service.about, door.key is not None
        return content.page("page.html.j2", "page.js", card=shown, limits=service.limits, needs_key=needs_key)

    @app.get(limits.DOCS, include_in_schema=False)
    async def docs() -> HTMLResponse:
        return content.page("addresses.html.j2", schema=app.openapi())

    for kind, refusal in REFUSALS.items():
        app.add_exception_handler(kind, lambda request, error, refusal=refusal: limits.refused(refusal(error)))
    return Guard(app, door.key, door.hosts, service.counters, log)


async def live() -> dict[str, str]:
    """The server runs."""
    return {"status": "live"}


FILE = {"type": "string", "format": "binary"}
FIELDS = {"type": "object", "required": [FIELD], "properties": {FIELD: {"type": "array", "items": FILE}}}
FORM = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FIELDS}}}}
REFUSALS: dict[type[Exception], Callable[[Any], Refusal]] = {
    Exception: lambda error: Refusal(*limits.BUG),  # `Guard` logs it
    Refusal: lambda error: error,
    HTTPException: lambda error: Refusal(error.status_code, str(error.detail).lower(), f"see {limits.DOCS}"),
    RequestValidationError: lambda error: Refusal(422, "a parameter has a wrong value", f"see {limits.DOCS}"),
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


# --- the key, the socket, and the loop that runs until a signal comes

KEY = "VITMED_API_KEY"  # the environment variable
SHORTEST = 16  # characters of a key
TICK = 0.1  # s between two looks at signals and connections
SETTINGS: dict[str, Any] = {
    "http": "h11",
    "ws": "none",
    "loop": "asyncio",
    "lifespan": "off",
    "log_config": None,
    "log_level": "critical",
    "access_log": False,
    "server_header": False,
    "proxy_headers": False,
}


def read_key(file: Path | None) -> str | None:
    """The key that requests must bring: the content of a file, else of the environment. Raises UsageError."""
    source, new = (KEY, "set it to") if file is None else (str(file), f"fill {file} with")
    new += " what `openssl rand -hex 32` prints"
    try:
        key = os.environ.get(KEY) if file is None else file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read as a key ({first_line(error)})", new) from None
    if key is not None and (len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key):
        raise UsageError(f"{source}: expected a key of at least {SHORTEST} letters and digits in one line", new)
    return key


class Door(NamedTuple):
    """Where the server listens, and who may come in."""

    at: socket.socket  # bound
    address: str  # in words, for a browser
    key: str | None = None  # that requests must bring; None: none
    hosts: tuple[str, ...] = ()  # names by which they may call the server; empty: any


@contextmanager
def open_door(host: str, port: int, key_file: str | Path | None, no_key: bool) -> Iterator[Door]:
    """Open the door that the options of `vitmed serve` ask for. Raises UsageError for what cannot be opened, or should
    not be opened without a key; warns of what travels unencrypted."""
    key = read_key(None if key_file is None else Path(key_file))
    if key is not None and no_key:
        raise excluded("key")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise UsageError(f"--host {host}: no such address", "--host 127.0.0.1, or --host 0.0.0.0 for all") from None
    with socket.socket(family, kind, protocol) as at:
        at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            at.bind(address)
        except OSError as error:
            another = f"choose another: --port {port + 1 if 1023 < port < 65535 else 8001}"
            fix = "--host 127.0.0.1" if error.errno == errno.EADDRNOTAVAIL else another
            raise UsageError(f"{host}, port {port}: cannot be used ({error.strerror})", fix) from None
        local = str(address[0]) == "::1" or str(address[0]).startswith("127.")  # only this machine can reach it
        if not local and key is None and not no_key:
            problem = f"--host {host} lets other machines in, and there is no key"
            raise UsageError(problem, "--api-key-file FILE, or --no-key where a proxy asks for one")
        if not local:
            warn("images and key travel unencrypted: let a proxy in front encrypt them (docs/serving.md)")
        name = f"[{host}]" if ":" in host else host
        hosts = tuple(dict.fromkeys((name, "127.0.0.1", "localhost", "[::1]"))) if local and key is None else ()
        yield Door(at, f"http://{name}:{at.getsockname()[1]}", key, hosts)


def listen(
    service: Service, door: Door, asked: Callable[[], bool], began: Callable[[], None], log: Callable[[str], None]
) -> None:
    """Answer requests until `asked` is true; then finish those that have come. `began` is called once, when requests
    are answered; `log` gets a line for each."""
    wait = math.ceil(2 * service.limits.timeout) + 1
    server = uvicorn.Server(uvicorn.Config(create_app(service, door, log), **SETTINGS, timeout_graceful_shutdown=wait))
    # Signals are left to `serve`, whose exit code is 0.
    server.capture_signals = nullcontext  # type: ignore[assignment, method-assign]

    async def run() -> None:
        seen: Seen = {}
        try:
            await service.start()
            running = asyncio.create_task(server.serve(sockets=[door.at]))
            said = False
            while not running.done():
                await asyncio.wait({running}, timeout=TICK)
                if server.started and not said:
                    said = True
                    began()
                if asked():
                    service.load.stopping = server.should_exit = True
                seen = close_stale(server.server_state.connections, seen, time.monotonic(), service.limits.timeout)
            await running
        finally:
            await asyncio.to_thread(service.stop)

    asyncio.run(run())


Seen = dict[Any, tuple[object, bool, float]]  # connection -> its request, whether that is answered, since when


def close_stale(connections: Iterable[Any], seen: Seen, now: float, timeout: float) -> Seen:
    """Close connections of uvicorn that send no request for too long, or do not fetch its answer. `seen` is what the
    call before returned; `now` and `timeout` in s."""
    left: Seen = {}
    for connection in list(connections):
        idle = connection.cycle is None or connection.cycle.response_complete
        cycle, was_idle, since = seen.get(connection, (connection.cycle, idle, now))
        if (cycle, was_idle) != (connection.cycle, idle):
            since = now
        if now - since > (timeout if idle else 3 * timeout):  # a request has one for its way and one for its answer
            connection.transport.abort()
        else:
            left[connection] = connection.cycle, idle, since
    return left
