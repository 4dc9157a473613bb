"""Trackers: MLflow and Weights & Biases show the numbers of a run beside those of other runs.

None of them stops a run: one that fails is left out with a warning. None is given a path, a host or a user. A tracker
names the `packages` that it needs and the environment `variables` of every call, unless the user has set them; it can
`start` a run or continue one by its id, which it returns, `log` the numbers of an epoch, and `finish` with files by
name. Where it is `offline` it opens no connection, whatever its own variables say.
"""

import contextlib
import importlib.util
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from vitmed.core.config import Config
from vitmed.core.downloads import is_offline
from vitmed.core.errors import Interrupted, UsageError, unknown_key
from vitmed.core.files import write_json
from vitmed.core.load_config import without_places
from vitmed.core.messages import warn
from vitmed.core.run_folder import REPORT, RunFolder
from vitmed.core.text import first_line
from vitmed.metrics.estimates import Estimate
from vitmed.training.train_state import Record

State = Literal["finished", "interrupted", "failed"]
POSITION = ("epoch", "step")  # of a record: no numbers to show


class MLflow:
    """A run in the experiment of the group; in a database beside the runs unless MLFLOW_TRACKING_URI names a store."""

    packages: ClassVar = ("mlflow", "sqlalchemy", "alembic")
    variables: ClassVar = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # the defaults wait for minutes for a server that is away
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    }
    states: ClassVar[dict[State, str]] = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}

    def start(self, run: RunFolder, offline: bool, known: str | None, settings: Mapping[str, str]) -> str:
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
        from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH, MAX_PARAMS_TAGS_PER_BATCH

        store, group = os.environ.get("MLFLOW_TRACKING_URI", ""), run.group
        shared = (group or run).path.resolve().parent
        local = not store or (offline and urlsplit(store).scheme not in ("", "file", "sqlite"))
        if local:
            store = f"sqlite:///{(shared / 'mlflow.db').resolve().as_posix()}"
        self.client = MlflowClient(tracking_uri=store)
        if known is not None:
            self.run = known
            self.client.update_run(known, status="RUNNING")
            return known
        files = (shared / "mlartifacts").resolve().as_uri() if local else None
        name, tags = ("vitmed", {}) if group is None else (group.name, {"group": group.name})
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or name
        entry = self.client.get_experiment_by_name(name)
        try:
            number = entry.experiment_id if entry else self.client.create_experiment(name, artifact_location=files)
        except MlflowException:
            if (entry := self.client.get_experiment_by_name(name)) is None:  # else another fold has just made it
                raise
            number = entry.experiment_id
        self.run = self.client.create_run(number, run_name=run.path.resolve().name, tags=tags).info.run_id
        params = [Param(key, value[:MAX_PARAM_VAL_LENGTH]) for key, value in settings.items()]
        for start in range(0, len(params), MAX_PARAMS_TAGS_PER_BATCH):
            self.client.log_batch(self.run, params=params[start : start + MAX_PARAMS_TAGS_PER_BATCH])
        return self.run

    def log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        self.client.log_batch(self.run, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def finish(self, files: Mapping[str, Path], state: State) -> None:
        for name, file in files.items():
            self.client.log_artifact(self.run, str(file), name.rpartition("/")[0])
        self.client.set_terminated(self.run, self.states[state])


class WeightsAndBiases:
    """A run of the project, in a folder inside the run: offline, unless WANDB_MODE says otherwise."""

    packages: ClassVar = ("wandb",)
    variables: ClassVar = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}

    def start(self, run: RunFolder, offline: bool, known: str | None, settings: Mapping[str, str]) -> str:
        import wandb

        private: dict[str, Any] = dict.fromkeys(("host", "username", "email", "program"), "")
        unread = ["disable_git", "disable_code", "disable_job_creation", "silent"]
        private |= dict.fromkeys([*unread, "x_disable_meta", "x_disable_stats", "x_disable_machine_info"], True)
        private |= {"save_code": False, "x_save_requirements": False, "console": "off"}
        waits = {"init_timeout": 30, "finish_timeout": 120}  # s
        mode: Any = "offline" if offline else os.environ.get("WANDB_MODE") or "offline"
        self.folder, hooks, group = run.path / "wandb", (sys.exit, sys.excepthook), run.group
        try:
            self.run = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or "vitmed",
                group=None if group is None else group.name,
                name=run.path.resolve().name,
                id=known or os.urandom(4).hex(),
                resume="allow",
                reinit="create_new",
                dir=str(run.path),
                mode=mode,
                settings=wandb.Settings(**private, **waits),
                config=None if known else dict(settings),
            )
        finally:
            sys.exit, sys.excepthook = hooks
        return str(self.run.id)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.step = step
        self.run.log(dict(values), step=step)

    def finish(self, files: Mapping[str, Path], state: State) -> None:
        import wandb

        kinds: dict[str, Any] = {".png": wandb.Image, ".html": lambda page: wandb.Html(page, inject=False)}
        try:
            if files:
                self.run.log({name: kinds[file.suffix](str(file)) for name, file in files.items()}, step=self.step)
        finally:
            self.run.finish(0 if state == "finished" else 1)
            for link in self.folder.glob("debug*.log"):
                link.unlink()
            for logs in self.folder.glob("*/logs"):  # they name folders of this machine
                shutil.rmtree(logs, ignore_errors=True)


TRACKERS: dict[str, type[Any]] = {"mlflow": MLflow, "wandb": WeightsAndBiases}


def check_trackers(names: Sequence[str]) -> None:
    """Raise UsageError, before any work, for an unknown tracker and for one whose package is missing."""
    for name in names:
        if name not in TRACKERS:
            raise unknown_key("tracker", name, TRACKERS)
        for package in TRACKERS[name].packages:
            spec = importlib.util.find_spec(package)
            if spec is None or spec.origin is None:  # without one it is a folder of that name, such as ./wandb
                raise UsageError(f"--track {name} needs one more package: {package}", f"pip install 'vitmed[{name}]'")


class Tracking(contextlib.AbstractContextManager["Tracking"]):
    """The trackers of a run, which they follow until the block ends, in whatever state. trackers.json keeps their ids,
    and how many epochs each has."""

    def __init__(self, names: Sequence[str], folder: RunFolder):
        self._names, self._folder, self._offline = names, folder, is_offline()
        self._trackers: dict[str, Any] = {}
        self._files: dict[str, Path] = {}
        self._known: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # damaged: they begin anew
            runs = json.loads(folder.trackers.read_text(encoding="utf-8"))
            self._known = {name: {"id": str(run["id"]), "epochs": int(run["epochs"])} for name, run in runs.items()}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Attach the files and end."""
        interrupted = isinstance(error, Interrupted | KeyboardInterrupt)
        state: State = "finished" if error is None else "interrupted" if interrupted else "failed"
        for name, tracker in [*self._trackers.items()]:
            with self._calling(name):
                tracker.finish(self._files, state)

    def start(self, config: Config) -> None:
        """Begin, or go on with what trackers.json names. Trackers get every setting as "train.lr": "0.0005", of the
        data folder the name alone, and no other place."""
        sections = without_places(config).model_dump()
        sections["data"]["root"] = Path(config.data.root or "").resolve().name
        settings = {
            f"{section}.{field}": value if isinstance(value, str) else json.dumps(value)
            for section, fields in sections.items()
            for field, value in fields.items()
        }
        for name in self._names:
            with self._calling(name):
                tracker = TRACKERS[name]()
                run = tracker.start(self._folder, self._offline, self._known.get(name, {}).get("id"), settings)
                self._known.setdefault(name, {"id": run, "epochs": 0})
                self._trackers[name] = tracker
        if self._trackers:
            write_json(self._folder.trackers, self._known)

    def epochs(self, history: Sequence[Record]) -> None:
        """Log the epochs that a tracker does not have yet."""
        for name, tracker in [*self._trackers.items()]:
            with self._calling(name):
                for record in history[self._known[name]["epochs"] :]:
                    numbers = {key: x for key, x in record.items() if isinstance(x, int | float) and math.isfinite(x)}
                    shown = {k: float(x) for k, x in numbers.items() if not isinstance(x, bool) and k not in POSITION}
                    tracker.log(shown, record["epoch"])
                    self._known[name]["epochs"] = record["epoch"]
        if self._trackers:
            write_json(self._folder.trackers, self._known)

    def result(self, split: str, numbers: Mapping[str, Estimate], folder: Path, step: int, pages: bool) -> None:
        """Log the final metrics of a split with the ends of their intervals at `step`, the last epoch; keep the figures
        in the folder of its evaluation, and with `pages` its report, for the end."""
        values = {
            f"final/{split}_{name}{end}": number
            for name, estimate in numbers.items()
            for end, number in (("", estimate.value), ("_low", estimate.low), ("_high", estimate.high))
            if number is not None
        }
        for name, tracker in [*self._trackers.items()]:
            with self._calling(name):
                tracker.log(values, step)
        files = [*sorted(folder.glob("*.png")), *[page for page in [folder / REPORT] if pages and page.is_file()]]
        self._files |= {f"{split}/{file.name}": file for file in files}

    @contextlib.contextmanager
    def _calling(self, name: str) -> Iterator[None]:
        """With the environment variables that the user has not set; a tracker that fails is left out from then on."""
        before = dict(os.environ)
        os.environ.update({key: value for key, value in TRACKERS[name].variables.items() if key not in before})
        try:
            yield
        except (Exception, SystemExit) as error:
            self._trackers.pop(name, None)
            warn(f"--track {name} fails ({first_line(error)}); the run goes on without it")
        finally:
            for key in set(os.environ) - set(before):  # wandb leaves one of its own
                del os.environ[key]
