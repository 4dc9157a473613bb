"""The command line: quick, complete, and quiet on stdout."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY_ARGS, Answer, Trained, python
from typer.main import get_command

import vitmed as package
from vitmed.cli.commands import APPS
from vitmed.core.config import EVALUATE_FLAGS, FLAGS, Config
from vitmed.core.load_config import load_config
from vitmed.core.options import PRETRAIN_FLAGS

RUN = Callable[..., Answer]


def test_help_loads_nothing_heavy() -> None:
    """That of the top not even the configuration; that of every command, `data list` and `weights list`, no torch."""
    code = f"""
import contextlib, io, sys
from vitmed.cli import main
def run(args):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main(args)
        except SystemExit as end:
            assert end.code in ((0, 2) if not args else (0,)), (args, end.code, err.getvalue())
    assert out.getvalue() or err.getvalue(), args
    return out.getvalue()
def lacks(*heavy):
    found = [module for module in heavy if module in sys.modules]
    assert not found, f"loaded {{found}}"
assert "pretrain" in run(["--help"])
lacks("pydantic", "yaml", "rich", "torch", "numpy", "vitmed.core.config", "vitmed.cli.commands")
for args in [["--version"], [], *([name, "--help"] for name in {[*APPS]!r})]:
    run(args)
lacks("torch", "numpy", "PIL", "torchvision", "albumentations", "sklearn", "scipy", "matplotlib", "yaml")
run(["data", "list"])
run(["weights", "list"])
lacks("torch")
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [name for name in APPS if name not in ("data", "weights")])
def test_every_keyword_of_the_python_function_is_an_option(vitmed: RUN, name: str) -> None:
    """In --help, under its name; and every option reaches the function or the output of the command."""
    shown = vitmed(name, "--help").out
    options: dict[str, Any] = {str(param.name): param for param in get_command(APPS[name]).params}
    keywords = set(inspect.signature(getattr(package, name.replace("-", "_"))).parameters)
    fields = {"summary": {"image_size", "patch_size", "channels"}, "evaluate": set(EVALUATE_FLAGS)}
    own = {"check": {"no_index"}, "train": {"devices"}}
    own["predict"] = {
        "top_k",
        "csv",
        "plot",
        "force",
        *(["shard", "output", "features", "on", "strict"]),
    }  # of `predict_shard`
    printed = own.get(name, set()) | {"as_json", "quiet", "verbose"}
    offered = set(options) - printed - fields.get(name, set())
    if "flags" in keywords and name != "evaluate":
        flags = set(PRETRAIN_FLAGS if name == "pretrain" else FLAGS)
        offered, keywords = offered - flags, keywords - flags
    assert offered == keywords - {"ui", "flags", "fields", "index", "baselines", "each_epoch"}
    assert len(options) > 1
    for param in options.values():
        assert param.param_type_name == "argument" or all(word in shown for word in param.opts), param.name


@pytest.mark.parametrize("name", [name for name in APPS if name not in ("data", "weights")])
def test_the_help_states_the_default_of_the_python_function(name: str) -> None:
    defaults = inspect.signature(getattr(package, name.replace("-", "_"))).parameters
    options: dict[str, Any] = {str(param.name): param for param in get_command(APPS[name]).params}
    for keyword in set(options) & set(defaults) - {"device"}:  # a field of the configuration
        default = defaults[keyword].default
        if isinstance(default, int | float | str) and not isinstance(default, bool):
            shown = default if isinstance(default, str) else f"{default:g}"
            assert f"default {shown}." in options[keyword].help, keyword


def test_flags_go_over_set_over_the_file(vitmed: RUN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitmed.studies.one_run import OneRun

    seen: list[Config] = []
    monkeypatch.setattr(OneRun, "new", lambda self, config, *_: seen.append(config) or 1 / 0)
    file = tmp_path / "c.yaml"
    file.write_text("train: {lr: 0.1, epochs: 11, seed: 3}\n")
    vitmed("train", tmp_path, "-c", file, "--set", "train.lr=0.2", "--set", "train.epochs=12", "--lr", 0.3)
    assert (seen[0].train.lr, seen[0].train.epochs, seen[0].train.seed) == (0.3, 12, 3)


@pytest.mark.usefixtures("no_figures")
def test_train_with_json_and_gates(trained: Trained, vitmed: RUN, tmp_path: Path) -> None:
    args = ["train", trained.data, "-o", tmp_path / "runs", "--name", "a", *TINY_ARGS, "--json"]
    answer = vitmed(*args, "--fail-under", "accuracy=0")
    assert answer.code == 0, answer.err
    given = json.loads(answer.out)
    assert given["run"] == str(tmp_path / "runs" / "a") and answer.out.count("\n") == 1
    assert given["test"]["overall"]["auroc"]["value"] is not None and given["val"]["n"] == 12
    for text in (
        "research use only",
        "classes: 0 amber, 1 blue, 2 green",
        "not evaluated until training ends",
        "epoch   1/2",
        "report:",
    ):
        assert text in answer.err
    before = (tmp_path / "runs" / "a" / "best.pt").read_bytes()
    answer = vitmed(*args, "--no-report", "--no-baseline", "--fail-under", "log_loss=0")
    assert answer.code == 6 and json.loads(answer.out)["run"].endswith("a-2")
    assert (tmp_path / "runs" / "a" / "best.pt").read_bytes() == before  # another run of that name stays as it is
    assert (tmp_path / "runs" / "a-2" / "best.pt").is_file()


@pytest.mark.usefixtures("no_figures")
def test_a_written_config_repeats_the_run(trained: Trained, vitmed: RUN, tmp_path: Path) -> None:
    shorter = ("--no-report", "--no-baseline")  # than the first run
    answer = vitmed("train", "-c", trained.folder / "config.yaml", "-o", tmp_path / "runs", "--name", "again", *shorter)
    assert answer.code == 0, answer.err
    first, again = (folder / "test" / "predictions.csv" for folder in (trained.folder, tmp_path / "runs" / "again"))
    assert first.read_bytes() == again.read_bytes()


def test_summary(vitmed: RUN, trained: Trained) -> None:
    assert package.summary(trained.best) == package.summary(str(trained.best))
    answer = vitmed("summary", "vit_tiny")
    assert answer.code == 0 and "5,717,416" in answer.out  # timm's vit_tiny_patch16_224 with 1,000 classes
    assert vitmed("summary", "mnist", "--num-classes", 10).code == 0
    assert vitmed("summary", trained.folder).out == vitmed("summary", trained.best).out != ""
    answer = vitmed("summary", "vit_tinny")
    assert answer.code == 2 and "did you mean 'vit_tiny'" in answer.err and answer.out == ""
    answer = vitmed("summary", trained.folder / "model.onnx")
    assert answer.code == 2 and "an exported network" in answer.err
    assert (trained.folder / "summary.txt").read_text(encoding="utf-8").count("Block") >= 1


def test_a_checkpoint_has_its_numbers(vitmed: RUN, trained: Trained) -> None:
    answer = vitmed("summary", trained.best, "--image-size", 64)
    assert answer.code == 2 and "leave the other options out" in answer.err


def test_version(vitmed: RUN) -> None:
    assert vitmed("--version").out == f"vitmed {package.__version__}\n"


def test_python_m(tmp_path: Path) -> None:
    done = python("-m", "vitmed", "predict", "x.png", cwd=tmp_path)
    assert done.returncode == 4 and done.stdout == "" and "Traceback" not in done.stderr


def test_colours_are_for_terminals(trained: Trained, vitmed: RUN) -> None:
    answer = vitmed("predict", trained.data / "test" / "amber" / "amber_0.png", "--checkpoint", trained.best)
    assert "\x1b" not in answer.out + answer.err


def test_the_recipes_are_offered_by_name() -> None:
    assert load_config("demo").model.width == 96


def test_every_process_of_a_cluster_prints_its_own_answer(
    vitmed: RUN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those that share one training or study print one together."""
    monkeypatch.setenv("RANK", "1")
    assert json.loads(vitmed("runs", tmp_path, "--json").out)["runs"] == []


@pytest.mark.parametrize("on", ["ray", None])
def test_one_fold_and_a_process_that_torchrun_started_alone_may_have_several_devices(
    vitmed: RUN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: str | None
) -> None:
    begun: list[str] = []
    monkeypatch.setattr("vitmed.studies.study.train_on_nodes", lambda on, devices, *more: begun.append(on) or 0)
    monkeypatch.setattr("vitmed.training.processes.launch", lambda devices, *more: begun.append("here") or 0)
    given = "train", tmp_path, "--devices", "2", *(("--on", on) if on else ())
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert vitmed(*given, "--folds", "2", "--fold", "1").code == vitmed(*given, "--folds", "2").code == 0
    assert begun == [on or "here", "here"]
