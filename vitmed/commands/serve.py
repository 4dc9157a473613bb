"""`vitmed serve`: a model behind an address, for programs and for a page."""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

from vitmed.core.errors import UsageError
from vitmed.core.messages import listener, say, warn
from vitmed.core.options import Argument, AskedWindow, HttpOption, Precision
from vitmed.core.process import stop_signals
from vitmed.inference.load import load
from vitmed.inference.open_model import RAW, open_model, preprocessing_of

FIX = "pip install 'vitmed[serve]'"


def serve(
    checkpoint: Annotated[Path | str, Argument("A run folder, a checkpoint, or an exported .onnx file.")],
    *,
    host: Annotated[str, HttpOption("Address to listen at, this machine alone; default 127.0.0.1.")] = "127.0.0.1",
    port: Annotated[int, HttpOption("0 takes a free one; default 8000.", min=0, max=65535)] = 8000,
    api_key_file: Annotated[
        Path | str | None, HttpOption("Holds the key of requests; default the variable VITMED_API_KEY.")
    ] = None,
    no_key: Annotated[bool, HttpOption("Let other machines in without a key.")] = False,
    max_megabytes: Annotated[float, HttpOption("Of a request; default 32.")] = 32,
    max_images: Annotated[int, HttpOption("Of a request; default 16.", min=1)] = 16,
    timeout: Annotated[float, HttpOption("Seconds for a request to arrive, and to be answered; default 30.")] = 30,
    queue: Annotated[int, HttpOption("Images that may wait; default 256.", min=1)] = 256,
    batch: Annotated[int | None, HttpOption("Images at once; default as predict, at least 16.", min=1, max=64)] = None,
    scores: Annotated[
        Path | str | None, HttpOption("Log what the model says, without names, for monitor.", metavar="FILE.csv")
    ] = None,
    precision: Precision = "auto",
    device: str = "auto",
    frame: int | None = None,
    window: AskedWindow = None,
) -> None:
    """Answer images over HTTP until Ctrl-C or SIGTERM, then finish what has come, and return.

    Args:
        checkpoint: a run folder, a checkpoint, or an exported .onnx file, which needs no torch.
        batch: default as many as `predict` computes, but at least 16; 1 answers one image soonest.

    Raises:
        UsageError: a value, key or address that cannot be used; a missing package. CheckpointError.
    """
    try:
        from vitmed.deploy.http.app import Service, listen, open_door
        from vitmed.deploy.http.limits import PREDICT, Limits
        from vitmed.deploy.http.scores import ScoreLog
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("vitmed"):
            raise
        raise UsageError(f"vitmed serve needs the package {error.name}", FIX) from None
    limits = Limits(max_megabytes, max_images, timeout, queue)
    with open_door(host, port, api_key_file, no_key) as door:
        saved = open_model(checkpoint)
        if saved.policy is None:
            warn(f"{saved.path}: {RAW}")
        saved = replace(saved, preprocessing=preprocessing_of(saved, frame, window))
        with ThreadPoolExecutor(1) as pool:  # its OpenMP helpers end with it, and leave their cores to the answers
            model = pool.submit(copy_context().run, partial(load, saved, device=device, precision=precision)).result()
        report = listener().say  # of this thread
        log = None if scores is None else ScoreLog(Path(scores), model, report)
        began = f"{saved.path.name} takes images at {PREDICT} (POST, see /docs) and answers at {door.address}"
        with stop_signals() as asked:
            listen(
                Service(model, limits, log, batch),
                door,
                asked,
                began=lambda: say(began),
                log=lambda line: report(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {line}"),
            )
    say("stopped; every request was answered")
