"""Many runs with one purpose: what a study says of itself, and the one way to conduct it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from vitmed.core.config import Config
from vitmed.core.errors import CheckpointError, DataError, Interrupted
from vitmed.core.run_folder import RunFolder
from vitmed.data.splits import make_splits

Result = TypeVar("Result")
File = TypeVar("File", bound=BaseModel)
LOOK = 0.5  # s between two looks at whether the next run can begin


class Study(ABC, Generic[Result]):
    """Runs in the folders of a folder, which are the record of what is done: which there are, and what they show.

    Attributes:
        command: that continues it, as `vitmed COMMAND --resume FOLDER`.
        parallel, devices, logged: of its runs, as in `local`.
    """

    folder: RunFolder
    command: str
    parallel = 1
    devices: int | None = None
    logged = False

    @abstractmethod
    def jobs(self) -> Iterator[Job | None]:
        """Yield the runs, each when one can begin; None where the next one needs what another has yet to do."""

    @abstractmethod
    def finish(self) -> Result:
        """Join what the runs show, once all have ended."""

    def watch(self, job: Job) -> AbstractContextManager[OnEpoch | None]:
        """Give what follows each epoch of a run, around its submission; see `Executor.submit`."""
        return nullcontext()

    def ended(self, job: Job, run: Future[RunFolder | None]) -> None:
        """Note how a run ended; by default its error ends the study."""
        run.result()

    def interrupted(self) -> None:
        """Note that the study stops before its end."""


def conduct(study: Study[Result]) -> Result:
    """Train the runs of a study that are not done, and finish it.

    Raises:
        Interrupted: says how to continue. VitmedError: as `Study.ended`.
    """
    jobs, running = study.jobs(), dict[Future[RunFolder | None], Job]()
    try:
        with local(study.folder, study.parallel, devices=study.devices, logged=study.logged) as executor:
            while True:
                while len(running) < study.parallel and (job := next(jobs, None)) is not None:
                    with study.watch(job) as on_epoch:
                        running[executor.submit(job, on_epoch)] = job
                if not running:
                    break
                wait(running, LOOK, FIRST_COMPLETED)
                for run in [run for run in running if run.done()]:
                    study.ended(running.pop(run), run)
        return study.finish()
    except (Interrupted, KeyboardInterrupt) as error:
        study.interrupted()
        problem = error.problem if isinstance(error, Interrupted) else "stopped; what is trained is saved"
        raise Interrupted(problem, f"vitmed {study.command} --resume {study.folder.path}") from None


def read_study(file: Path, form: type[File], fix: str) -> File:
    """Read the file that says what a study was asked for. Raises CheckpointError if it is damaged."""
    try:
        return form.model_validate_json(file.read_bytes())
    except (OSError, ValueError):
        raise CheckpointError(f"{file}: cannot be read", fix) from None


def check_same_data(settings: Config, digest: str, folder: RunFolder) -> None:
    """Raise DataError unless the images, labels and splits are those that a study began with."""
    if make_splits(settings.data, ordinal=settings.evaluate.ordinal).digest != digest:
        problem = f"{settings.data.root}: other images, labels or splits than those that {folder.path} began with"
        raise DataError(problem, "restore them, or start a new study")
