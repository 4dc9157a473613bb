"""`vitmed serve`: a model behind an address, for programs and for a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from vitmed.core.errors import UsageError, excluded
from vitmed.core.messages import listener, say, warn
from vitmed.core.options import HTTP, Argument, Option, Precision
from vitmed.core.process import stop_signals
from vitmed.inference.load import load
from vitmed.inference.open_model import RAW, open_model, preprocessing_of

FIX = "pip install 'vitmed[serve]'"


def serve(
    checkpoint: Annotated[Path | str, Argument("A run folder, a checkpoint, or an exported .onnx file.")],
    *,
    host: Annotated[
        str, Option("Address to listen at, this machine alone; default 127.0.0.1.", panel=HTTP)
    ] = "127.0.0.1",
    port: Annotated[int, Option("0 takes a free one; default 8000.", min=0, max=65535, panel=HTTP)] = 8000,
    api_key_file: Annotated[
        Path | str | None, Option("Holds the key of requests; default the variable VITMED_API_KEY.", panel=HTTP)
    ] = None,
    no_key: Annotated[bool, Option("Let other machines in without a key.", panel=HTTP)] = False,
    tls_cert: Annotated[Path | str | None, Option("Certificate (PEM), for https.", panel=HTTP)] = None,
    tls_key: Annotated[
        Path | str | None, Option("Its key (PEM), where the certificate's file does not hold it.", panel=HTTP)
    ] = None,
    max_megabytes: Annotated[float, Option("Of a request; default 32.", panel=HTTP)] = 32,
    max_images: Annotated[int, Option("Of a request; default 16.", min=1, panel=HTTP)] = 16,
    timeout: Annotated[
        float, Option("Seconds for a request to arrive, and to be answered; default 30.", panel=HTTP)
    ] = 30,
    queue: Annotated[int, Option("Images that may wait; default 256.", min=1, panel=HTTP)] = 256,
    batch: Annotated[int | None, Option("Computed at once; default as in predict.", min=1, max=64, panel=HTTP)] = None,
    scores: Annotated[
        Path | str | None,
        Option("Log what the model says, without names, for monitor.", metavar="FILE.csv", panel=HTTP),
    ] = None,
    precision: Precision = "auto",
    device: str = "auto",
    frame: int | None = None,
) -> None:
    """Answer images over HTTP until Ctrl-C or SIGTERM, then finish what has come, and return.

    Args:
        checkpoint: a run folder, a checkpoint, or an exported .onnx file, which needs no torch.
        timeout: s, for a request to arrive, and again to be answered.
        batch: default as many as `predict` computes; 1 answers one image soonest.

    Raises:
        UsageError: a value, key, certificate or address that cannot be used; a missing package. CheckpointError: not a
            model.
    """
    try:
        from starlette.formparsers import MultiPartParser

        from vitmed.deploy.http.app import Service, create_app
        from vitmed.deploy.http.limits import Limits
        from vitmed.deploy.http.listening import Certificate, listen, open_socket, read_key
        from vitmed.deploy.http.scores import ScoreLog
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("vitmed"):
            raise
        raise UsageError(f"vitmed serve needs the package {error.name}", FIX) from None
    if not hasattr(MultiPartParser, "spool_max_size"):  # others would write large uploads to a disk
        raise UsageError("vitmed serve keeps uploads in memory, which this version of starlette does not", FIX)
    if not (max_megabytes > 0 and timeout > 0 and 0 < max_images <= queue):
        raise UsageError(
            f"{max_megabytes:g} MB, {max_images} images, {timeout:g} s, a queue of {queue}: expected numbers above "
            "0, and a queue of at least one request",
            "leave --max-megabytes, --max-images, --timeout and --queue out",
        )
    if tls_key is not None and tls_cert is None:
        raise excluded("certificate")
    certificate = None if tls_cert is None else Certificate(Path(tls_cert), None if tls_key is None else Path(tls_key))
    if certificate is not None:
        certificate.check()
    key = read_key(None if api_key_file is None else Path(api_key_file))
    if key is not None and no_key:
        raise excluded("key")
    at, local = open_socket(host, port)
    with at:
        if not local and key is None and not no_key:
            raise UsageError(
                f"--host {host} lets other machines in, and there is no key",
                "--api-key-file FILE, or --no-key where a proxy asks for one",
            )
        if not local and certificate is None:
            warn("images and key travel unencrypted: --tls-cert, or a proxy in front that encrypts")
        saved = open_model(checkpoint)
        if saved.policy is None:
            warn(f"{saved.path}: {RAW}")
        model = load(replace(saved, preprocessing=preprocessing_of(saved, frame)), device=device, precision=precision)
        log = None if scores is None else ScoreLog(Path(scores), model, listener().say)
        service = Service(model, Limits(max_megabytes, max_images, timeout, queue), log, batch)
        hosts = ("127.0.0.1", "localhost", "[::1]") if local and key is None else ()
        app = create_app(service, key=key, hosts=hosts, log=listener().say)
        name = f"[{host}]" if ":" in host else host
        address = f"{'http' if certificate is None else 'https'}://{name}:{at.getsockname()[1]}"
        with stop_signals() as asked:
            listen(app, service, at, certificate, asked, lambda: say(f"{saved.path.name} answers at {address}"))
    say("stopped; every request was answered")
