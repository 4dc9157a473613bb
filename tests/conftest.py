"""What the tests share: tiny drawn images, one tiny trained run, the command line called in-process, two processes."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import shutil
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: a second thread only slows such small tensors
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

from vitmed.core import messages
from vitmed.core.messages import Advance, Ui, listening

if TYPE_CHECKING:
    from vitmed.studies.one_run import TrainResult

T = TypeVar("T")
PROCESSES = 4  # at most, of a run of all tests

COLOURS = {"amber": (230, 160, 30), "blue": (40, 60, 230), "green": (40, 200, 60)}
# A network that trains in a second; the recipe of nearly every run here.
TINY: dict[str, Any] = {
    "image_size": 16,
    "patch_size": 8,
    "epochs": 2,
    "batch_size": 8,
    "lr": 3e-3,
    "warmup_epochs": 0.5,
    "policy": "none",
    "workers": 0,
    "device": "cpu",
    "precision": "fp32",
}
# The same for a test that looks at weights and answers alone.
BARE: dict[str, Any] = TINY | {"report": False, "baseline": False, "resamples": 0, "map_images": 0}
TINY_NETWORK = ("model.width=16", "model.depth=1", "model.heads=2")
TINY_SETS = (*TINY_NETWORK, "train.choose=best")  # the plan would keep the last epoch of so few images
TINY_ARGS = [
    *(part for key, value in TINY.items() for part in (f"--{key.replace('_', '-')}", str(value))),
    *(part for text in TINY_SETS for part in ("--set", text)),
]


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """`pytest` alone runs in several processes; named tests, `-n 0`, `-p no:xdist` and `--pdb` in one.

    So does `--cov`, which has to know the number of processes earlier than this: `pytest -n 2 --cov=vitmed`.
    """
    options = config.option
    if not config.pluginmanager.hasplugin("xdist") or hasattr(config, "workerinput"):
        return
    all_tests = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    one = options.usepdb or getattr(options, "cov_source", None)
    if all_tests and options.numprocesses is None and not one:
        options.numprocesses = min(PROCESSES, os.cpu_count() or 1)
    if options.numprocesses and options.dist == "no":
        options.dist = "worksteal"  # neighbours, which share fixtures, stay together as long as there is work for all


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Looks for garbage neither while libraries and tests are imported nor, later, through these, and less often."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        gc.enable()


# Two processes that import the same libraries and tests at once would each compile all of them: one begins at the end,
# meets the other in the middle, and then reads what that has compiled.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report: Any = yield
    if WORKER[-1:] in set("13579") and isinstance(collector, pytest.Dir):
        report.result.reverse()
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the order of the files, which has to be that of all processes."""
    if WORKER:
        items.sort(key=lambda item: item.path)


def draw_image(rng: np.random.Generator, colour: Sequence[int], side: int = 20) -> np.ndarray:
    """A blob of one colour anywhere on grey noise, (side, side, 3) uint8: easy to learn, no two alike."""
    image = rng.integers(90, 130, (side, side, 3), dtype=np.uint8)
    size = side // 2
    y, x = rng.integers(0, side - size, 2)
    image[y : y + size, x : x + size] = np.clip(np.array(colour) + rng.integers(-20, 20, 3), 0, 255)
    return image


def draw_classes(
    folder: Path, count: int = 10, classes: Sequence[str] = ("amber", "blue"), seed: int = 0, side: int = 20
) -> Path:
    """folder/<class>/<class>_<i>.png, `count` each; other seeds give other images."""
    rng = np.random.default_rng(seed)
    for k, name in enumerate(classes):
        colour = COLOURS.get(name, list(COLOURS.values())[k % len(COLOURS)])
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.fromarray(draw_image(rng, colour, side)).save(folder / name / f"{name}_{i}.png")
    return folder


def draw_patients(folder: Path, first: int, seed: int) -> Path:
    """folder/<class>/P<patient>_<i>.png: six images a class, of three patients."""
    draw_classes(folder, 6, seed=seed)
    for file in sorted(folder.rglob("*.png")):
        i = int(file.stem.split("_")[1])
        file.rename(file.with_name(f"P{first + i % 3}_{i}.png"))
    return folder


def draw_splits(
    root: Path, train: int = 12, val: int = 4, test: int = 6, classes: Sequence[str] = ("amber", "blue"), seed: int = 0
) -> Path:
    """root/{train,val,test}/<class>/*.png; a split of 0 images is left out."""
    for k, (name, count) in enumerate({"train": train, "val": val, "test": test}.items()):
        if count:
            draw_classes(root / name, count, classes, seed=10 * seed + k)
    return root


def listing(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of change of everything below a folder."""
    return [(str(p.relative_to(folder)), p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.rglob("*"))]


def python(*args: str, cwd: Path | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Another Python process, where one must be new."""
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, cwd=cwd, timeout=timeout)


def exit_code(work: Callable[..., None], *args: object) -> int | None:
    """The exit code of a process that does this work, or minus the number of the signal that ended it.

    A fork has torch loaded already; beside a GPU torch cannot train in one.
    """
    import torch

    forks = sys.platform == "linux" and not torch.cuda.is_available()
    process = multiprocessing.get_context("fork" if forks else "spawn").Process(target=work, args=args)
    process.start()
    process.join(120)
    return process.exitcode


def draw_pairs(root: Path, images: int) -> Path:
    """So many images of amber cells and of blue ones, two of each patient and class: `amber/p0_1.png`."""
    rng = np.random.default_rng(0)
    for name, colour in (("amber", (230, 160, 30)), ("blue", (40, 60, 230))):
        (root / name).mkdir(parents=True)
        for i in range(images):
            Image.fromarray(draw_image(rng, colour)).save(root / name / f"p{i // 2}_{i}.png")
    return root


class Recorder(Ui):
    """Keeps what is said, details too; calls `on_batch(batches done)` during a training."""

    verbose = True

    def __init__(self, on_batch: Callable[[int], None] | None = None):
        self.said: list[str] = []
        self.warned: list[str] = []
        self.on_batch = on_batch

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.warned.append(text)

    @contextmanager
    def bar(self, title: str, unit: str = "images") -> Iterator[Advance]:
        def advance(done: int, total: int, text: str = "") -> None:
            if title == "training" and self.on_batch is not None:
                self.on_batch(done)

        yield advance


def recording() -> Recorder:
    """A recorder of what is said from now on in this test."""
    recorder = Recorder()
    messages._listener.set(recorder)
    return recorder


def interrupt_at(*batches: int) -> Recorder:
    """A user who presses Ctrl-C after so many batches."""

    def press(done: int) -> None:
        if done in batches:
            os.kill(os.getpid(), signal.SIGINT)

    return Recorder(press)


@dataclass(frozen=True)
class Answer:
    """What a command line gave."""

    code: int
    out: str
    err: str


@pytest.fixture
def vitmed(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Runs `vitmed ARGS` in this process."""
    from vitmed.cli.entry import main

    def run(*args: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(arg) for arg in args])
        told = capsys.readouterr()
        assert isinstance(stopped.value.code, int)
        return Answer(stopped.value.code, told.out, told.err)

    return run


@pytest.fixture(autouse=True)
def nobody_listens() -> Iterator[None]:
    """What a test records ends with it."""
    with listening(Ui()):
        yield


@pytest.fixture
def ui(nobody_listens: None) -> Recorder:
    return recording()


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine tenths of a tiny run's time is drawing; most tests look at something else."""
    draw_nothing(monkeypatch)


def draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`no_figures`, for a fixture of a wider scope."""
    from vitmed.commands import pretrain, stress
    from vitmed.report import write
    from vitmed.report.plots.drawing import Drawn
    from vitmed.studies import one_run

    monkeypatch.setattr(write, "plots", dict)
    nothing = Drawn(b"a figure", b"a figure", b"a figure", "image/png", "")
    monkeypatch.setattr(write, "drawn", lambda figure, pictures=False, pdf=False: nothing)
    for module in (one_run, pretrain, stress):
        monkeypatch.setattr(module, "png", lambda figure: b"a figure")
    for module in (write, one_run):
        monkeypatch.setattr(module, "drawn_curves", lambda records, pdf=False: nothing)
    monkeypatch.setattr(pretrain, "training_curves", lambda records, loss: None)
    monkeypatch.setattr(one_run, "contact_sheet", lambda images, classes, title: None)


def draw_only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Reports draw these figures of `plots` alone."""
    from vitmed.report import write

    every = write.plots()
    monkeypatch.setattr(write, "plots", lambda: {name: every[name] for name in names})


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], T]) -> T:
    """What `make` makes in a new folder: made by one process of this test run, read by all. Change nothing in it."""
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    place = (factory.getbasetemp() if alone else factory.getbasetemp().parent) / f"once-{name}"
    with FileLock(f"{place}.lock"):
        if not (place / "made").is_file():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            with pytest.MonkeyPatch.context() as patch:
                draw_nothing(patch)
                (place / "made").write_bytes(pickle.dumps(make(place)))
        return pickle.loads((place / "made").read_bytes())


def images_of(trained: Trained, split: str = "test") -> list[Path]:
    """The images of a split of a shared run."""
    return sorted((trained.data / split).rglob("*.png"))


@dataclass(frozen=True)
class Trained:
    """A finished run: three classes, learned; `before` and `after` list the data folder. Change nothing in it."""

    data: Path
    folder: Path
    result: TrainResult
    ui: Recorder
    before: list[tuple[str, int, int]]
    after: list[tuple[str, int, int]]

    @property
    def best(self) -> Path:
        return self.folder / "best.pt"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    from vitmed import train

    def make(place: Path) -> Trained:
        data = draw_splits(place / "data", classes=tuple(COLOURS))
        before, ui = listing(data), recording()
        settings = TINY | {"epochs": 6, "save_every": 2}
        result = train(data, output=place / "runs", name="tiny", sets=TINY_SETS, **settings)
        return Trained(data, result.folder, result, ui, before, listing(data))

    return once(tmp_path_factory, "trained", make)


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny run that timm and transformers can hold, with vector scaling.

    Names of the data folder, the run and the patients stand for what must not leave the machine.
    """
    from vitmed import train
    from vitmed.decisions.calibration import Calibration
    from vitmed.inference.checkpoint import add_policy, load_checkpoint

    def make(place: Path) -> Path:
        data = draw_splits(place / "SECRET-clinic", classes=tuple(COLOURS))
        for file in data.rglob("*.png"):
            file.rename(file.with_name(f"PATIENT_{file.name}"))
        sets = (*TINY_NETWORK, "model.stem=patch", "model.pool=cls")
        folder = train(data, output=place / "runs", name="SECRET-run", sets=sets, **TINY).folder
        policy = load_checkpoint(folder).chosen_policy()
        scaled = Calibration(method="vector", scale=(2.0, 1.5, 0.25), bias=(0.5, 0.0, -1.0))
        add_policy(folder / "best.pt", policy.model_copy(update={"calibration": scaled}))
        return folder

    return once(tmp_path_factory, "plain", make)


@pytest.fixture(scope="session")
def exported(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`trained` as an ONNX file."""
    from vitmed import export

    def make(place: Path) -> Path:
        return export(trained.folder, to=place / "model.onnx").file

    return once(tmp_path_factory, "exported", make)


@pytest.fixture(scope="session")
def findings(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A run of the findings amber, blue and rare, some of them unknown; labels.csv in its data folder."""
    from label_sets import draw_findings

    from vitmed import train

    def make(place: Path) -> TrainResult:
        root = draw_findings(place / "data")
        settings = TINY | {"epochs": 6, "labels": root / "labels.csv", "name": "findings", "sets": TINY_SETS}
        return train(root, output=place / "runs", **settings)

    return once(tmp_path_factory, "findings", make)


def quantity_run(factory: pytest.TempPathFactory, name: str, sets: Sequence[str] = (), **settings: Any) -> TrainResult:
    from label_sets import draw_quantities

    from vitmed import train

    root = once(factory, "quantities", lambda place: draw_quantities(place / "data"))
    settings |= {"labels": root / f"{name}.csv", "sets": (*TINY_SETS, "data.normalize=half", *sets), "epochs": 8}
    made = TINY | settings | {"name": name}
    return once(factory, name, lambda place: train(root, output=place / "runs", **made))


@pytest.fixture(scope="session")
def ages(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A run of an age in years, which is the brightness; ages.csv in its data folder."""
    return quantity_run(tmp_path_factory, "ages", target="number", unit="years")


@pytest.fixture(scope="session")
def graded(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A run of the grades none, mild and severe, which are the brightness; grades.csv in its data folder."""
    return quantity_run(tmp_path_factory, "grades", target="grades", ordinal="none,mild,severe")


def remembered(held_out: Callable[..., T]) -> Callable[..., T]:
    """`held_out` of `checks/shortcuts.py`, which fits a regression once: most tests draw the same few images."""
    known: dict[object, T] = {}

    def look(x: np.ndarray, y: np.ndarray, divided: Sequence[tuple[np.ndarray, np.ndarray]]) -> T:
        key = (x.shape, x.tobytes(), y.tobytes(), *(rows.tobytes() for fold in divided for rows in fold))
        if key not in known:
            known[key] = held_out(x, y, divided)
        return known[key]

    return look


def remembered_race(autotune: Callable[..., T]) -> Callable[..., T]:
    """`autotune`, which tries three steps to say that so short a run measures nothing: once for each network."""
    from vitmed.training.plan.autotune import SETTINGS, Race

    known: dict[object, T] = {}

    def look(model: Any, objective: Any, config: Any, steps: int, targets: Any) -> T:
        part = config.model.model_dump_json(), config.train.model_dump_json(include=SETTINGS)
        key = (type(config), *part, str(getattr(config, "mae", "")), steps, Race.run, Race._step)
        if key in known:
            return known[key]
        found = autotune(model, objective, config, steps, targets)
        if "too short to measure" in getattr(found, "note", ""):
            known[key] = found
        return found

    return look


def remembered_summary(summarise: Callable[[Any, Any], str]) -> Callable[[Any, Any], str]:
    """`summarise`, which runs the network for its table: once for each network."""
    known: dict[object, str] = {}

    def look(model: Any, config: Any) -> str:
        key = str(model), config.model_dump_json(), str(next(model.parameters()).device)
        if key not in known:
            known[key] = summarise(model, config)
        return known[key]

    return look


def copied(tree: Any) -> Any:
    """The same dicts, lists, tuples, tensors and plain values once more; TypeError for anything else."""
    if isinstance(tree, str | int | float | bool | bytes | None):
        return tree
    if type(tree) is dict:
        return {name: copied(part) for name, part in tree.items()}
    if type(tree) is list or type(tree) is tuple:
        return type(tree)(map(copied, tree))
    if type(tree).__name__ != "Tensor":
        raise TypeError(type(tree))
    return tree.clone()


def remembered_file(safe_load: Callable[[Path], T]) -> Callable[[Path], T]:
    """`safe_load`, which checks a whole file: once for each content of the last few."""
    known: dict[bytes, Any] = {}

    def look(path: Path) -> Any:
        if not path.is_file() or path.stat().st_size > 1_000_000:
            return safe_load(path)
        content = hashlib.sha256(path.read_bytes()).digest()
        if content in known:
            return copied(known[content])
        found = safe_load(path)
        with suppress(TypeError):
            known[content] = copied(found)
        if len(known) > 50:
            del known[next(iter(known))]
        return found

    return look


@pytest.fixture(scope="session", autouse=True)
def quick() -> Iterator[None]:
    """Figures with few pictures at a low resolution, and no waiting for the disk: the same code in less time.

    And bf16 is never faster than fp32, on whatever machine the tests run, and the seconds of a step, the fastest
    engine, the table of a network and the shortcuts of the same images are found once; a checkpoint is read once.
    """
    from vitmed.checks import shortcuts
    from vitmed.explanation import faithfulness
    from vitmed.explanation.faithfulness import FEW
    from vitmed.inference import checkpoint
    from vitmed.report.plots import drawing, pictures
    from vitmed.training import finetune, run
    from vitmed.training.plan import autotune
    from vitmed.training.plan import time as plan_time

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetune, "speedup", lambda *args: 1.0)
        patch.setattr(finetune, "summarise", remembered_summary(finetune.summarise))
        patch.setattr(run, "autotune", remembered_race(run.autotune))
        patch.setattr(shortcuts, "held_out", remembered(shortcuts.held_out))
        patch.setattr(checkpoint, "safe_load", remembered_file(checkpoint.safe_load))
        for module in (plan_time, autotune):  # what is measured on a busy machine would not be kept
            patch.setattr(module, "busy", lambda: None)
        patch.setattr(faithfulness, "affordable", lambda model: FEW)
        patch.setattr(drawing, "DPI", 30)
        patch.setattr(pictures, "PICTURES", 4)
        patch.setattr(pictures, "WIDE", 2)
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder that goes with the tests, and no connection; the own weights of the user are left alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)  # xdist sets it; tests of narrow terminals set their own
        patch.setenv("VITMED_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("VITMED_OFFLINE", "1")  # no test opens a connection for weights that it does not name
        patch.delenv("VITMED_WEIGHTS", raising=False)
        for name in ("HF_HOME", "TORCH_HOME"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name)))
        yield


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real images: VITMED_DATA, else ../shared/data beside the repository."""
    named = os.environ.get("VITMED_DATA")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no real images: set VITMED_DATA to a folder that holds malaria/, or put them in ../shared/data")
    return folder
