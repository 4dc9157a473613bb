"""The run folder: the names of its files."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from vitmed.core.errors import UsageError
from vitmed.core.files import free_name, make_folder

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
        self.reconstructions = self.path / "reconstructions.png"
        self.ranking = self.path / "ranking.json"

    @property
    def group(self) -> RunFolder | None:
        """The folder of the folds that this run is one of; None for a run on its own."""
        parent = RunFolder(self.path.resolve().parent)
        return parent if parent.folds.is_file() else None

    @property
    def name(self) -> str:
        """The name of a run folder; "" where the folder is none, such as that of a checkpoint that was sent to you."""
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
        found = [(re.fullmatch(rf"{split}(?:-(\d+))?", path.name), path) for path in self.path.glob(f"{split}*")]
        return [path for _, path in sorted((int(match[1] or 1), path) for match, path in found if match)]

    @classmethod
    def create(cls, output: str | Path, name: str) -> RunFolder:
        """Make `output/name`, or `name-2`, `-3`, ...: no run overwrites another, not even a parallel one."""
        parent = Path(output)
        cls.refuse_run(parent)
        try:
            parent.mkdir(parents=True, exist_ok=True)
            while True:
                path = free_name(parent / name)
                try:
                    path.mkdir()
                except FileExistsError:
                    continue
                return cls(path)
        except OSError as error:
            raise UsageError(f"{parent / name}: cannot be made ({error.strerror})", "choose another --output") from None

    @classmethod
    def refuse_run(cls, output: str | Path) -> None:
        """Raise UsageError if a folder for runs is itself that of a run."""
        parent = Path(output)
        if cls(parent).config.exists() or cls(parent).last.exists():
            raise UsageError(
                f"{parent}: holds a run, expected a folder for runs",
                f"--output {parent.parent}, or vitmed train --resume {parent}",
            )

    @staticmethod
    def probe(output: str | Path) -> None:
        """Check, before the long work, that run folders can be made. Raises UsageError."""
        make_folder(output)
        try:
            with tempfile.TemporaryDirectory(dir=output):
                pass
        except OSError as error:
            raise UsageError(f"{output}: cannot be written ({error.strerror})", "choose another --output") from None

    @classmethod
    def newest(cls, output: str | Path) -> RunFolder | None:
        """The run with the most recent best.pt, or None."""
        best = [path for path in Path(output).glob("*/best.pt") if path.is_file()]
        return cls(max(best, key=lambda path: (path.stat().st_mtime_ns, path)).parent) if best else None

    @classmethod
    def newest_called(cls, output: str | Path, name: str) -> RunFolder | None:
        """The run of this name, or `name-2`, `-3`, ..., with the most recent last.pt, or None."""
        called = [
            path
            for path in Path(output).glob("*/last.pt")
            if re.fullmatch(rf"{re.escape(name)}(-\d+)?", path.parent.name)
        ]
        return cls(max(called, key=lambda path: path.stat().st_mtime_ns).parent) if called else None

    @property
    def marks(self) -> tuple[Path, ...]:
        """Files of which one at least is in every run folder, also of a run that has just begun."""
        made = (self.metrics, self.best, self.last, self.encoder, self.baseline, self.ranking)
        return self.config, self.folds, self.ensemble, *made

    @property
    def is_run(self) -> bool:
        """Whether the folder is that of a run."""
        some = (self.best, self.last, self.encoder, self.baseline, self.folds, self.ensemble)
        return any(file.is_file() for file in some) or (self.config.is_file() and self.splits.is_file())

    @classmethod
    def owns(cls, file: Path) -> bool:
        """Whether a file is one of a run: named by this class, or there already in a folder inside the run."""
        run = cls(file.parent)
        named = file in vars(run).values() or re.fullmatch(r"epoch_\d{4,}\.pt", file.name) is not None
        return (named and run.is_run) or (cls(file.parent.parent).is_run and file.exists())
