"""The shape of the package: who may import whom, and which library is let in where. Read with `ast`, so that an
import inside a function counts too."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "vitmed"
LAYERS = [  # low to high; a module imports from lower lines only
    ["errors", "tuning", "ui", "cache", "words"],
    ["world", "catalogue", "sources"],
    ["config", "cards", "maps", "spreadsheets"],
    ["model", "health", "layouts", "rules", "resampling", "lr_range", "npz"],
    ["images", "augment", "predictions", "synthetic", "mae", "weight_files"],
    ["splits", "weights", "pixel_cache"],
    ["data", "optim", "inference", "run", "attention", "corruption", "lora", "survey", "personal"],
    ["checkpoint", "downloads", "metrics", "calibration", "faithfulness", "index"],
    ["patient_level", "per_patient", "subgroups", "mistakes", "label_errors"],
    ["bootstrap", "flow"],
    ["reliability", "operating", "utility", "conformal", "abstention", "familiarity", "agreement"],
    ["external"],
    ["judgement"],
    ["loop", "plots", "robustness"],
    ["baselines", "archives", "originals", "inspection", "duplicates", "shortcuts", "findings"],
    ["diagnosis"],
    ["pretraining", "report", "data_report"],
    ["commands"],
    ["cli"],
]
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}
EXEMPT = {"__init__", "__main__"}  # the face of the package, and the door to the command line
ALLOWED = {"albumentations": {"augment"}, "typer": {"cli"}, "rich": {"cli"}, "matplotlib.pyplot": set()}


def sources() -> dict[str, list[Path]]:
    """Module name -> its files; a folder of that name counts as one module."""
    found: dict[str, list[Path]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        found.setdefault(file.relative_to(PACKAGE).with_suffix("").parts[0], []).append(file)
    return found


def imports(text: str, package: str = "vitmed") -> Iterator[str]:
    """Dotted names that a source imports; of `from a import b` both a and a.b. Relative ones are made absolute."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def modules_used(text: str, package: str = "vitmed") -> set[str]:
    """The modules of vitmed that a source imports. A public name of `vitmed` itself is `commands` in disguise."""
    used = set()
    for name in imports(text, package):
        parts = name.split(".")
        if parts[0] == "vitmed" and len(parts) > 1 and parts[1] != "__version__":
            used.add(parts[1] if parts[1] in LEVEL or (PACKAGE / f"{parts[1]}.py").exists() else "commands")
    return used


def breaches(module: str, text: str, package: str = "vitmed") -> list[str]:
    """Imports that the table forbids to `module`."""
    used = modules_used(text, package) - {module}
    return sorted(name for name in used if LEVEL.get(name, len(LAYERS)) >= LEVEL[module])


def uses(name: str, text: str) -> bool:
    return any(found == name or found.startswith(f"{name}.") for found in imports(text))


@pytest.mark.parametrize("module", [name for name in sources() if name not in EXEMPT])
def test_a_module_imports_from_lower_lines_only(module: str) -> None:
    assert module in LEVEL, f"{module}: give it a line in LAYERS"
    for file in sources()[module]:
        package = ".".join(file.relative_to(PACKAGE.parent).parent.parts)
        assert breaches(module, file.read_text(encoding="utf-8"), package) == [], file


@pytest.mark.parametrize("library", ALLOWED)
def test_a_confined_library_stays_in_its_module(library: str) -> None:
    users = {module for module, files in sources().items() if any(uses(library, f.read_text()) for f in files)}
    assert users <= ALLOWED[library]


def test_torchinfo_is_used_in_one_place() -> None:
    assert sum(uses("torchinfo", f.read_text()) for files in sources().values() for f in files) <= 1


def test_the_command_line_and_the_package_import_no_heavy_library() -> None:
    heavy = {"torch", "torchvision", "albumentations", "sklearn", "scipy", "matplotlib", "torchinfo"}
    code = f"import vitmed, vitmed.cli, sys; print(*sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == ""


@pytest.mark.parametrize(
    ("module", "text", "found"),
    [
        ("images", "from vitmed.errors import DataError", []),
        ("images", "from vitmed.cli import main", ["cli"]),
        ("images", "def f():\n    from vitmed import augment", ["augment"]),
        ("config", "import vitmed.model", ["model"]),
        ("errors", "from . import world", ["world"]),
        ("errors", "from .loop import fit", ["loop"]),
        ("run", "from vitmed import __version__", []),
        ("run", "from vitmed import train", ["commands"]),
        ("run", "from vitmed.run import RunFolder", []),
    ],
)
def test_the_guard_sees(module: str, text: str, found: list[str]) -> None:
    assert breaches(module, text) == found


def test_the_guard_sees_pyplot_however_it_is_imported() -> None:
    for text in (
        "import matplotlib.pyplot as plt",
        "from matplotlib import pyplot",
        "from matplotlib.pyplot import plot",
    ):
        assert uses("matplotlib.pyplot", text)
    assert not uses("matplotlib.pyplot", "from matplotlib.figure import Figure")
