"""`DicomNode`: receives images, answers each with a Structured Report, and sends the reports on."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from vitmed.commands.pacs.destinations import destination
from vitmed.commands.pacs.incoming import (
    FAILED,
    NO_ROOM,
    UNREADABLE,
    Refused,
    check_kind,
    code,
    read_head,
    short_hash,
)
from vitmed.commands.pacs.receiving import Watcher, quiet_libraries, start_listening
from vitmed.commands.pacs.sending import Sender
from vitmed.commands.pacs.settings import NodeSettings
from vitmed.commands.pacs.spool import Spool
from vitmed.commands.pacs.structured_report import report_uid, structured_report
from vitmed.core.errors import DataError, UsageError, VitmedError
from vitmed.core.process import SharedContext
from vitmed.core.text import NOTICE, counted, now
from vitmed.core.ui import Ui
from vitmed.imaging.dicom import QUIET

if TYPE_CHECKING:
    from vitmed.commands.load import Model
    from vitmed.commands.serving.scores import ScoreLog

QUIET_LIBRARIES = SharedContext(quiet_libraries)


class DicomNode:
    """A node at work, as a context manager: `with DicomNode(model, settings, ui): ...` listens, watches and sends.

    Several threads may call `take`. `scores` gets what the model says of each image that has a report.

    Attributes:
        port: on which it listens, 0 without; address: in words.

    Raises:
        UsageError: a setting that cannot be used, or a port, a folder or a destination.
    """

    def __init__(self, model: Model, settings: NodeSettings, ui: Ui, scores: ScoreLog | None = None):
        self.model, self.settings, self.ui, self.port = model, settings.beside(model.saved.path), ui, 0
        self.scores = scores
        assert self.settings.spool is not None
        self.folder, self.to = Path(self.settings.spool), destination(settings)
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        import highdicom.sr  # noqa: F401  (takes half a second, which the first image need not wait for)

        with contextlib.ExitStack() as stack:
            stack.enter_context(QUIET)
            stack.enter_context(QUIET_LIBRARIES)
            self.spool = Spool(self.folder, self.to.name)
            stack.callback(self.spool.close)
            self.sender = Sender(self.spool, self.to, self.log)
            stack.callback(self.sender.stop)
            if self.settings.port is not None:
                server, self.port = start_listening(self.settings, self.take, self.log)
                stack.callback(server.shutdown)
            if self.settings.watch is not None:
                watcher = Watcher(Path(self.settings.watch), self.spool, self.take, self.log)
                stack.callback(watcher.stop)
                watcher.start()
            self._say_what_it_does()
            self.sender.start()
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()
        if left := len(list(self.folder.glob("unsent/*.dcm"))):
            self.ui.warn(f"{counted(left, 'report')} not sent yet, kept in {self.folder}")

    def take(self, data: bytes) -> None:
        """Answer an image; returns when its report is on disk, from where it is sent.

        Args:
            data: a DICOM file.

        Raises:
            Refused: it gets no report, with the status of C-STORE and the reason.
        """
        began, modality, image = time.monotonic(), "?", "?"
        try:
            header = read_head(data)
            modality, image = code(header, "Modality") or "?", short_hash(str(header.SOPInstanceUID))
            uid = report_uid(self.model, str(header.SOPInstanceUID))
            new = not self.spool.has(uid) and self._report(data, header, uid)
        except Refused as refused:
            told = f"refused 0x{refused.status:04X} ({refused.reason.partition(' (')[0]})"
            self.log(f"{modality} {told}, {_ms(began)}, image {image}", True)
            raise
        told = f"answered, {_ms(began)}" if new else f"answered before, {_ms(began)}"
        self.log(f"{modality} {told}, image {image}, report {short_hash(uid)}", False)
        self.sender.wake()

    def _report(self, data: bytes, header: Any, uid: str) -> bool:
        """Predict, and put the report into the spool; False if another thread did so meanwhile. Raises Refused."""
        check_kind(header, self.settings)
        try:
            square, note = self.model.seen(data)
            predictions = self.model.predictions([square])
            (answer,) = self.model.answers(predictions, [square])
            report = structured_report(answer, self.model, header, uid, note)
        except VitmedError as error:
            status = UNREADABLE if isinstance(error, DataError) else FAILED
            raise Refused(status, error.problem.removeprefix("image: ")) from None
        except Exception as error:  # the words of a library may hold what stands in the image
            raise Refused(FAILED, f"no report could be made: {type(error).__name__}") from None
        try:
            new = self.spool.add(uid, report)
        except UsageError:
            raise Refused(NO_ROOM, "the spool cannot be written; is its disk full?") from None
        if new and self.scores is not None:
            self.scores.add(predictions)
        return new

    def log(self, text: str, problem: bool) -> None:
        """A line with the time. It holds no name, no ID and no file name."""
        (self.ui.warn if problem else self.ui.say)(f"{now()} {text}")

    def _say_what_it_does(self) -> None:
        settings, say = self.settings, self.ui.say
        if settings.port is not None:
            who = ", ".join(settings.allow) or "any AE"
            say(f"AE {settings.ae} listens on {settings.host}:{self.port} for {who}")
        if settings.watch is not None:
            say(f"watching {settings.watch}")
        say(f"reports go to {self.to.name}; until they are sent, they are kept in {self.folder}. {NOTICE}")
        checks = {"--modality": settings.modality, "--body-part": settings.body_part, "--view": settings.view}
        if open_ := [flag for flag, allowed in checks.items() if not allowed]:
            self.ui.warn(
                f"{', '.join(open_)} not given: the node takes any there, since a model does not know which images it "
                "was made for"
            )
        if self.model.preprocessing.window is None:
            self.ui.warn(
                "the model was trained on 8-bit images, so the node refuses grey DICOM images, which need a window; "
                "train on DICOM images to answer them"
            )
        if waiting := len(self.spool.waiting()):
            say(f"{counted(waiting, 'report')} from before to send")
        for uid in self.spool.unclear:
            self.log(f"report {short_hash(uid)} may have been sent before the node was ended; it is sent again", True)


def _ms(began: float) -> str:
    return f"{1000 * (time.monotonic() - began):.0f} ms"
