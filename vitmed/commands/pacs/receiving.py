"""Where images come from: C-ECHO and C-STORE of other nodes (pynetdicom), and a watched folder."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vitmed.commands.pacs.incoming import FAILED, NO_ROOM, SUCCESS, UNREADABLE, Refused, sha256, short_hash
from vitmed.commands.pacs.settings import NodeSettings
from vitmed.commands.pacs.spool import Spool
from vitmed.core.errors import UsageError
from vitmed.core.files import why_unreadable
from vitmed.imaging.raw_image import BYTES

Take = Callable[[bytes], None]  # answers the bytes of a DICOM file; raises Refused
Log = Callable[[str, bool], None]
IDLE = 60  # s without a message, after which an association ends
CALLERS = 16  # associations at once
COMMENT = 64  # characters of Error Comment (VR LO)
LOOK = 2.0  # s between two looks at the watched folder: a file that has not changed in between is complete
SYNTAXES = (
    "ExplicitVRLittleEndian", "ImplicitVRLittleEndian", "DeflatedExplicitVRLittleEndian", "ExplicitVRBigEndian",
    "JPEGBaseline8Bit", "JPEGExtended12Bit", "JPEGLossless", "JPEGLosslessSV1", "JPEGLSLossless", "JPEGLSNearLossless",
    "JPEG2000Lossless", "JPEG2000", "RLELossless",
)  # fmt: skip


def image_classes() -> list[str]:
    """The UIDs of the storage classes of images."""
    from pynetdicom.sop_class import _STORAGE_CLASSES

    ends = ("Storage", "ForProcessing", "ForPresentation")
    return [uid for name, uid in _STORAGE_CLASSES.items() if "Image" in name and name.endswith(ends)]


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """No line of pynetdicom and highdicom: it might hold what stands in an image."""
    levels = {name: logging.getLogger(name).level for name in ("pynetdicom", "highdicom")}
    try:
        for name in levels:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def start_listening(settings: NodeSettings, take: Take, log: Log) -> tuple[Any, int]:
    """The server (`shutdown` ends it), and its port.

    Raises:
        UsageError: the port is in use, or the host has no such address.
    """
    import pydicom.uid
    from pydicom.dataset import Dataset
    from pynetdicom import AE, evt
    from pynetdicom.sop_class import Verification  # type: ignore[attr-defined]

    def store(event: Any) -> Dataset:
        answer = Dataset()
        answer.Status = SUCCESS
        try:
            take(event.encoded_dataset())
        except Refused as refused:
            answer.Status, answer.ErrorComment = refused.status, _comment(refused.reason)
        except Exception as error:
            log(f"an image was not answered: {type(error).__name__}", True)
            answer.Status, answer.ErrorComment = FAILED, "an unexpected error of vitmed"
        return answer

    def rejected(event: Any) -> None:
        asked = event.assoc.requestor.primitive
        caller, called = asked.calling_ae_title, asked.called_ae_title
        if called != settings.ae:
            why = f"it calls {called!r}, and this node is {settings.ae}"
        elif settings.allow and caller not in settings.allow:
            why = "it is not in --allow"
        else:
            why = f"no more than {CALLERS} at once"
        log(f"association of AE {caller!r} refused: {why}", True)

    def limit(event: Any) -> None:
        if event.event is evt.EVT_DIMSE_RECV:
            received.pop(event.assoc, None)
            return
        received[event.assoc] = received.get(event.assoc, 0) + len(event.data)
        if received[event.assoc] > BYTES:
            log(f"association ended: an object of more than {BYTES:,} bytes", True)
            received.pop(event.assoc)
            event.assoc.abort()

    received: dict[Any, int] = {}
    entity = AE(settings.ae)
    entity.require_called_aet, entity.require_calling_aet = True, list(settings.allow)
    entity.maximum_associations, entity.network_timeout, entity.acse_timeout = CALLERS, IDLE, IDLE
    entity.dimse_timeout = IDLE
    entity.add_supported_context(Verification)
    for uid in image_classes():
        entity.add_supported_context(uid, [getattr(pydicom.uid, name) for name in SYNTAXES])
    handlers: list[Any] = [
        (evt.EVT_C_ECHO, lambda event: SUCCESS), (evt.EVT_C_STORE, store), (evt.EVT_REJECTED, rejected),
        (evt.EVT_DATA_RECV, limit), (evt.EVT_DIMSE_RECV, limit),
        (evt.EVT_CONN_CLOSE, lambda event: received.pop(event.assoc, None)),
    ]  # fmt: skip
    try:
        server = entity.start_server((settings.host, settings.port or 0), block=False, evt_handlers=handlers)
    except OSError as error:
        problem = f"{settings.host}:{settings.port}: cannot listen there ({error.strerror})"
        fix = "name a free port and an address of this machine: --dicom-port 11113, --dicom-host 127.0.0.1"
        raise UsageError(problem, fix) from None
    assert server is not None and server.socket is not None
    return server, server.socket.getsockname()[1]


def _comment(reason: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() and c != "\\" else "?" for c in reason)[:COMMENT]


class Watcher:
    """A thread that answers each new file of a folder once; it changes nothing there."""

    def __init__(self, folder: Path, spool: Spool, take: Take, log: Log):
        self.folder, self.spool, self.take, self.log = folder, spool, take, log
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vitmed watcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        before: set[str] = set()
        while not self._stop.is_set():
            found: dict[str, Path] = {}
            try:
                found = dict(self._new_files())
                for key in found.keys() & before:
                    if self._stop.is_set():
                        return
                    self._answer(key, found[key])
            except Exception as error:
                self.log(f"the watched folder cannot be read: {type(error).__name__}", True)
            before = set(found)
            self._stop.wait(LOOK)

    def _new_files(self) -> Iterator[tuple[str, Path]]:
        """What identifies each file that was not answered yet (name, size, time), and its path."""
        for folder, _, names in os.walk(self.folder):
            for name in names:
                file = Path(folder) / name
                with contextlib.suppress(OSError):
                    told = file.stat()
                    key = sha256(f"{file.relative_to(self.folder)} {told.st_size} {told.st_mtime_ns}")
                    if not name.startswith(".") and not self.spool.was_seen(key):
                        yield key, file

    def _answer(self, key: str, file: Path) -> None:
        name = short_hash(str(file.relative_to(self.folder)))
        try:
            if why := why_unreadable(file):
                raise Refused(UNREADABLE, why[0])
            if file.stat().st_size > BYTES:
                raise Refused(UNREADABLE, f"more than {BYTES:,} bytes")
            self.take(file.read_bytes())
        except Refused as refused:
            if refused.status == NO_ROOM:
                return  # tried again at the next look
            self.log(f"file {name} gets no report: {refused.reason}", True)
        except OSError as error:
            self.log(f"file {name} cannot be read: {type(error).__name__}", True)
            return
        self.spool.seen(key)
