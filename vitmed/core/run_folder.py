"""The run folder: the names of its files, the lock that lets one process at a time write to it, and stored paths."""

import contextlib
import datetime
import json
import os
import platform
import posixpath
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Self

from platformdirs import user_cache_path

from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.files import claim, free_name, remove_abandoned, write_bytes, write_text
from vitmed.core.messages import warn

# File names in the folder of an evaluation.
PREDICTIONS, NUMBERS, REPORT, BASELINE = "predictions.csv", "metrics.json", "report.html", "baseline_"
METHODS_TEXT, ISSUES = "methods.md", "label_issues.csv"


class RunFolder:
    """The files of a run; no other module spells their names."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.environment = self.path / "environment.json"
        self.splits = self.path / "splits.csv"
        self.data_check = self.path / "data_check.json"
        self.plan = self.path / "plan.md"
        self.summary = self.path / "summary.txt"
        self.weights = self.path / "weights.json"
        self.metrics = self.path / "metrics.jsonl"
        self.trackers = self.path / "trackers.json"
        self.contact_sheet = self.path / "contact_sheet.png"
        self.training_curves = self.path / "training_curves.png"
        self.best = self.path / "best.pt"
        self.last = self.path / "last.pt"
        self.folds = self.path / "folds.json"
        self.tune = self.path / "tune.json"
        self.tuned = self.path / "tuned.yaml"
        self.auto = self.path / "auto.json"
        self.joined = self.path / "ensemble"
        self.ensemble = self.path / "ensemble.json"
        self.baseline = self.path / "baseline.pt"
        self.encoder = self.path / "encoder.pt"
        self.model_card = self.path / "model_card.md"
        self.ranking = self.path / "ranking.json"

    @property
    def group(self) -> Self | None:
        """The folder of the folds that this run is one of; None for a run on its own."""
        parent = type(self)(self.path.resolve().parent)
        return parent if parent.folds.is_file() else None

    @property
    def name(self) -> str:
        """The name of a run folder; "" for another folder, in which you may have put a checkpoint."""
        return self.path.resolve().name if any(f.is_file() for f in (self.config, self.folds, self.ensemble)) else ""

    def epoch(self, number: int) -> Path:
        """The checkpoint that `--save-every` keeps for an epoch (1-based)."""
        return self.path / f"epoch_{number:04d}.pt"

    @classmethod
    def weights_in(cls, path: str | Path) -> Path:
        """The best.pt of a run folder, or the encoder.pt of pretraining; anything else as it is."""
        run = cls(path)
        return next((file for file in (run.best, run.encoder) if file.is_file()), run.path)

    def evaluations(self, split: str) -> list[Path]:
        """The evaluation folders of a split, oldest first: `test`, `test-2`, `test-3` ..."""
        named = [(re.fullmatch(rf"{split}(?:-(\d+))?", path.name), path) for path in self.path.glob(f"{split}*")]
        return [path for _, path in sorted((int(match[1] or 1), path) for match, path in named if match)]

    @classmethod
    def create(cls, output: str | Path, name: str) -> Self:
        """Make `output/name`, or `name-2`, `-3`, ...: no run overwrites another, not even a parallel one."""
        parent = Path(output)
        try:
            parent.mkdir(parents=True, exist_ok=True)
            while True:
                path = free_name(parent / name)
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                    return cls(path)
        except OSError as error:
            raise UsageError(f"{parent / name}: cannot be made ({error.strerror})", "choose another --output") from None

    @classmethod
    def newest(cls, output: str | Path) -> Self:
        """The run with the most recent best.pt. Raises CheckpointError without any."""
        best = [path for path in Path(output).glob("*/best.pt") if path.is_file()]
        if not best:
            fix = "vitmed train DIR first, or name a place: --runs FOLDER, --checkpoint FILE"
            raise CheckpointError(f"{output}: no run with a best.pt is there", fix)
        return cls(max(best, key=lambda path: (path.stat().st_mtime_ns, path)).parent)

    @classmethod
    def newest_called(cls, output: str | Path, name: str) -> Self | None:
        """The run of this name, or `name-2`, `-3`, ..., with the most recent last.pt, or None."""
        pattern = re.compile(rf"{re.escape(name)}(-\d+)?")
        called = [path for path in Path(output).glob("*/last.pt") if pattern.fullmatch(path.parent.name)]
        return cls(max(called, key=lambda path: path.stat().st_mtime_ns).parent) if called else None

    @property
    def marks(self) -> tuple[Path, ...]:
        """Files of which one at least is in every run folder, also of a run that has just begun."""
        made = (self.metrics, self.best, self.last, self.encoder, self.baseline, self.ranking)
        return self.config, self.folds, self.ensemble, *made

    @property
    def is_run(self) -> bool:
        some = (self.best, self.last, self.encoder, self.baseline, self.folds, self.ensemble)
        return any(file.is_file() for file in some) or (self.config.is_file() and self.splits.is_file())

    @classmethod
    def owns(cls, file: Path) -> bool:
        """Whether a file is one of a run: named by this class, or there already in a folder inside the run."""
        run = cls(file.parent)
        named = file in vars(run).values() or re.fullmatch(r"epoch_\d{4,}\.pt", file.name) is not None
        return (named and run.is_run) or (cls(file.parent.parent).is_run and file.exists())


LOCK, HOLDER = ".lock", ".lock.holder"  # the lock, and who has it
ORPHANS = 10  # s that loader processes may hold the lock of a run that was killed; torch ends them after 5


@contextlib.contextmanager
def run_lock(run: RunFolder) -> Iterator[None]:
    """Let this process alone write to a run folder, and remove what a killed one left there.

    The lock ends with its process, however that ends; its file stays, because one that waits may have opened it. On a
    file system without locks there is a warning instead. Raises UsageError: another process writes to the folder; names
    it and its machine.
    """
    from filelock import FileLock, Timeout  # here, since `predict` locks nothing

    file, here = run.path / HOLDER, platform.node()
    holder = Holder.read(file)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(run.path / LOCK).acquire(0 if holder.is_alive else ORPHANS))
        except Timeout:
            who, kill = "another process writes", "kill PID"
            if holder.since:
                where = f" on {holder.host}" if holder.host else ""
                who = f"process {holder.number}{where} has been writing to this run since {holder.since}"
                kill = f"{'' if holder.host in ('', here) else f'on {holder.host}: '}kill {holder.number}"
            fix = f"wait until it ends or stop it ({kill}), then run this again"
            raise UsageError(f"{run.path}: {who}", fix) from None
        except (OSError, NotImplementedError) as error:
            warn(f"{run.path}: cannot be locked ({error}); make sure that no other process writes to this run")
        else:
            stack.callback(file.unlink, missing_ok=True)
            write_text(file, f"{os.getpid()} {datetime.datetime.now():%Y-%m-%d %H:%M:%S} {here}\n")
        remove_abandoned(run.path)
        yield


def is_running(run: RunFolder) -> bool:
    """Whether a process writes to a run folder now. Changes nothing there, and works in one that cannot be written."""
    free = None
    with contextlib.suppress(OSError), (run.path / LOCK).open("rb") as stream:
        free = claim(stream.fileno(), shared=True)
    return Holder.read(run.path / HOLDER).is_alive if free is None and (run.path / HOLDER).is_file() else free is False


class Holder(NamedTuple):
    """The process that has, or had, the lock, since when, and its machine; "" where it is not known."""

    number: str = ""
    since: str = ""
    host: str = ""

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the file beside the lock, if it can be read; the file of 0.2.0 names no machine."""
        known = list[str]()
        with contextlib.suppress(OSError, ValueError):
            known = file.read_text(encoding="utf-8").split()
        return cls(known[0], " ".join(known[1:3]), " ".join(known[3:])) if len(known) > 2 else cls()

    @property
    def is_alive(self) -> bool:
        """Whether there is such a process, as far as this one can see: not on another machine."""
        if os.name == "nt" or self.host not in ("", platform.node()):  # on Windows os.kill(number, 0) is Ctrl-C
            return True
        try:
            os.kill(int(self.number), 0)
        except (ValueError, OverflowError, OSError) as error:
            return isinstance(error, PermissionError)
        return True


# --- paths of data and weights, stored in a run without the names of private folders
#
# Inside a project the relative path is stored, so run and data can move together. For anything elsewhere only the name
# and a random mark are stored; a note in this machine's cache folder, which is not shared, holds the path.

REMOTE = {"s3": "s3fs", "gs": "gcsfs"}  # scheme of an address -> the package by which fsspec reads it
UP = 3  # folders from a run up to its project: project/runs/folds/fold-1
PRIVATE = ("home", "users", "root")  # folders that hold folders named after a person
NOWHERE = f"elsewhere-{'0' * 12}/images"  # of a data folder that is not named: no note has this mark
_MARK = re.compile(r"elsewhere-([0-9a-f]{12})/.+")
NOTES = "VITMED_PLACES"  # the variable in which a command hands its notes to the processes of its jobs
_NOTES: dict[str, str] = json.loads(os.environ.get(NOTES) or "{}")  # mark -> path, of what this process stored or found


def cache_folder() -> Path:
    """The folder in VITMED_CACHE, or `vitmed` in the system's cache folder."""
    named = os.environ.get("VITMED_CACHE")
    try:
        return Path(named).expanduser() if named else user_cache_path("vitmed", appauthor=False)
    except RuntimeError:  # a user without a home
        raise UsageError("no home folder is known", "set VITMED_CACHE, or HOME, to a folder") from None


def copies() -> Path:
    """Where copies of s3:// and gs:// addresses lie: SCHEME/BUCKET/KEY."""
    return cache_folder().absolute() / "remote"


def is_remote(name: str | Path) -> bool:
    """Whether a name is an address that `local_path` reads; a `Path` of one has a single slash, as a folder may."""
    match = re.match(f"({'|'.join(REMOTE)}):(/+)[^/.]", f"{name}")
    return match is not None and (match[2] != "/" or not Path(name).exists())


def place_of(address: str | Path) -> Path:
    """Where the copy of an address lies, or will."""
    scheme, _, key = f"{address}".partition(":")
    return copies() / scheme / posixpath.normpath(f"/{key.lstrip('/')}").strip("/")


def address_of(place: Path) -> str | None:
    """The address of which a path is the copy; None of a path elsewhere."""
    if not (place := Path(os.path.normpath(place.absolute()))).is_relative_to(copies()):
        return None
    scheme, *key = place.relative_to(copies()).parts or ("",)
    return f"{scheme}://{'/'.join(key)}" if scheme in REMOTE else None


def store_path(path: str | Path, folder: str | Path) -> str:
    """How a file in `folder` names `path`: relative within a project, else `elsewhere-<mark>/<name>`. An address, and
    the copy of one, is named by the address."""
    if address := address_of(place_of(path) if is_remote(path) else Path(path)):
        return address
    for way in (Path.absolute, Path.resolve):  # unresolved first: a link in the project belongs to the project
        place = way(Path(path))
        if (near := project_path(os.path.normpath(place), os.path.normpath(way(Path(folder))))) is not None:
            return near
    notes, known = cache_folder() / "places", dict(_NOTES)
    with contextlib.suppress(OSError):
        whole = (file for file in notes.iterdir() if not file.name.startswith("."))  # not what another process writes
        known |= {file.name: os.fsdecode(file.read_bytes()) for file in whole}
    mark = next((mark for mark, noted in known.items() if noted == str(place)), None) or secrets.token_hex(6)
    _NOTES[mark] = str(place)
    with contextlib.suppress(OSError, UsageError):
        notes.mkdir(parents=True, exist_ok=True)
        write_bytes(notes / mark, os.fsencode(place))
    return f"elsewhere-{mark}/{place.name}"


def find_path(stored: str, folder: Path) -> Path:
    """The path that `store_path` named, from a file in `folder`; it may not exist. Without a note on this machine for a
    path elsewhere, a path below `folder` that does not exist."""
    if is_remote(stored):
        return place_of(stored)
    if mark := _MARK.fullmatch(stored):
        with contextlib.suppress(OSError):
            _NOTES[mark[1]] = os.fsdecode((cache_folder() / "places" / mark[1]).read_bytes())
        return Path(_NOTES.get(mark[1]) or folder / stored)
    here, there = (Path(os.path.normpath(base / stored)) for base in (folder, folder.resolve()))
    return there if there.exists() and not here.exists() else here


def notes() -> dict[str, str]:
    """The variable for the process of a job, whose cache folder may be another: it then stores the same marks."""
    return {NOTES: json.dumps(_NOTES)}


def is_elsewhere(path: Path) -> bool:
    """Whether `find_path` found no note for a stored path."""
    return _MARK.fullmatch("/".join(path.parts[-2:])) is not None


def project_path(path: str, folder: str, home: str | None = None, paths: ModuleType = os.path) -> str | None:
    """`path` relative to `folder`, with forward slashes, or None if that would name private folders.

    A path with no named part but its own name may be any number of folders up. A longer path must lie in the project:
    at most `UP` folders up, not in or above the user's home itself, and without the user's name. From the root of the
    file system, as in a container, it may be /data/name, but not /home/name. All are absolute and normalised; `home`
    may be empty, None is that of the user; `paths` is `os.path`, or `ntpath` or `posixpath` for another system.
    """
    home = os.path.expanduser("~") if home is None else home  # noqa: PTH111  (where it is unknown it stays "~")
    try:
        parts = paths.relpath(path, folder).split(paths.sep)
    except ValueError:  # on another drive
        return None
    up = parts.count("..")
    named = [paths.normcase(part) for part in parts[up:]]
    if len(named) > 1:
        common, own = (paths.normcase(name) for name in (paths.commonpath([path, folder]), home))
        if up > UP or paths.basename(own) in named[:-1]:
            return None
        if common == paths.dirname(common):
            if len(named) > 2 or named[0].lower() in PRIVATE:
                return None
        elif own and paths.commonprefix([own + paths.sep, common + paths.sep]) == common + paths.sep:
            return None
    return "/".join(parts)
