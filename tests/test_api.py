"""`import vitmed`: few names, the same objects that the command line uses, nothing heavy until it is asked for."""

from __future__ import annotations

import ast
import inspect
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import BARE, TINY_SETS, Trained, python

import vitmed
from vitmed.core.errors import UsageError
from vitmed.core.options import checked

PUBLIC = (
    "VitmedError auto build_model bundle check compare cross_validate demo diff ensemble evaluate explain export load "
    "merge monitor plan predict predict_shard pretrain probe runs sample_size serve stress summary train tune"
)


def test_type_checkers_see_the_same_names() -> None:
    """They do not follow `__getattr__`."""
    tree = ast.parse(Path(vitmed.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    found = {part.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for part in node.names}
    assert found == vitmed._PUBLIC


def test_the_public_names() -> None:
    assert " ".join(sorted(vitmed.__all__)) == PUBLIC
    for name in vitmed.__all__:
        thing = getattr(vitmed, name)
        assert inspect.getdoc(thing) and name in dir(vitmed)
    with pytest.raises(AttributeError, match="nothing"):
        vitmed.nothing  # noqa: B018


def test_importing_loads_and_does_nothing() -> None:
    code = """
import os, sys
before = dict(os.environ)
import vitmed
vitmed.VitmedError
assert dict(os.environ) == before
heavy = [m for m in ("torch", "numpy", "PIL", "typer", "rich", "pydantic") if m in sys.modules]
sys.exit(f"loaded {heavy}" if heavy else 0)
"""
    done = python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_commands_are_documented_to_their_parameters() -> None:
    for name in ("train", "pretrain", "evaluate", "predict", "demo"):
        command = getattr(vitmed, name)
        text = inspect.getdoc(command) or ""
        for parameter in inspect.signature(command).parameters:
            if parameter not in ("device", "fail_under"):
                assert parameter in text, (name, parameter)


def test_train_gives_what_evaluate_and_predict_take(trained: Trained) -> None:
    result = trained.result
    assert result.checkpoint == trained.best and result.folder == trained.folder
    assert result.test.folder == trained.folder / "test" and result.val.folder == trained.folder / "val"
    said = vitmed.predict(trained.data / "test", checkpoint=result.checkpoint)
    assert np.array_equal(said.logits, result.test.predictions.logits)
    assert said.labels is None and said.errors == ()


@pytest.mark.usefixtures("no_figures")
def test_a_run_in_a_thread(trained: Trained, tmp_path: Path) -> None:
    """A notebook or a server may not call from the main thread, where alone signals can be caught."""
    import threading

    found = []
    settings = BARE | {"epochs": 1}
    thread = threading.Thread(
        target=lambda: found.append(vitmed.train(trained.data, output=tmp_path, sets=TINY_SETS, **settings))
    )
    thread.start()
    thread.join()
    assert found and found[0].checkpoint.is_file()


def test_an_unknown_keyword_names_what_exists(tmp_path: Path) -> None:
    for name, told in (("learning_rate", "did you mean lr?"), ("epoch", "did you mean epochs?"), ("xyz", "docs/")):
        with pytest.raises(UsageError) as error:
            vitmed.train("x", **{name: 1})  # type: ignore[arg-type]
        assert name in str(error.value) and told in str(error.value)
    with pytest.raises(UsageError, match="unknown key"):
        vitmed.build_model("vit_tiny", width_=3)
    with pytest.raises(UsageError, match="weights auto"):
        vitmed.build_model(weights="auto")
    with pytest.raises(vitmed.VitmedError) as missing:
        vitmed.train(tmp_path / "none")
    assert missing.value.problem and missing.value.fix and missing.value.exit_code == 3
    model = vitmed.build_model("vit_tiny", 2, image_size=32, patch_size=8, width=24, depth=1, channels=1)
    assert isinstance(model, torch.nn.Module) and model(torch.zeros(1, 1, 32, 32)).shape == (1, 2)


def test_a_value_that_the_command_line_refuses_is_refused(trained: Trained, tmp_path: Path) -> None:
    folder = trained.folder
    for name, args, given, told in (
        ("serve", (folder,), {"port": 99_999}, "port=99999: expected 0 to 65535"),
        ("serve", (folder,), {"host": 3}, "host=3: Input should be a valid string"),
        ("stress", (folder,), {"seed": -1}, "seed=-1: expected 0 or more"),
        ("stress", (folder,), {"seed": "x"}, "seed='x': Input should be a valid integer"),
        ("compare", ([folder, folder],), {}, "results=.*: Input should be an instance of Path"),
        ("train", (trained.data,), {"sets": {"train.lr": 1}}, "sets=.*: Input should be an instance of Sequence"),
        ("check", (trained.data,), {"strict": "false"}, "strict='false': Input should be a valid boolean"),
        ("stress", (folder,), {"images": "10"}, "images='10': Input should be a valid integer"),
        ("stress", (folder,), {"images": True}, "images=True: Input should be a valid integer"),
        ("load", (5,), {}, "model=5: Input should be"),
        ("stress", (folder,), {"images": 2.5}, "images=2.5: Input should be a valid integer"),
        ("demo", (tmp_path,), {"cells": 5}, "cells=5: expected 200 to 100000"),
        ("tune", (trained.data,), {"devices": 0}, "devices=0: expected 1 or more"),
        ("train", (trained.data,), {"parallel": 0, "folds": 2}, "parallel=0: expected 1 or more"),
        ("train", (trained.data,), {"output": 5}, "output=5: Input should be"),
        ("evaluate", (5,), {}, "checkpoint=5: Input should be"),
        ("stress", (folder,), {"corruptions": "jpeg"}, "corruptions='jpeg': 'str' instances are not allowed"),
    ):
        with pytest.raises(UsageError, match=told) as error:
            getattr(vitmed, name)(*args, **given)
        assert error.value.fix == f"see help(vitmed.{name})"
    again = pickle.loads(pickle.dumps(vitmed.train))  # for processes of the caller
    assert again is vitmed.train and list(tmp_path.iterdir()) == []


def test_a_run_leaves_the_process_as_it_was(trained: Trained) -> None:
    """No thread, no handler and no seed of ours stays behind."""
    import signal

    ordinary = (signal.default_int_handler, signal.SIG_IGN)  # ignored where pytest itself runs in the background
    assert signal.getsignal(signal.SIGINT) in ordinary
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_is_read_once_and_numbers_of_numpy_are_taken(tmp_path: Path) -> None:
    """A generator of settings reaches every reader, a seed of NumPy the files as a plain number."""
    asked = checked(lambda names: (list(names), list(names)))
    assert asked(name for name in "ab") == (["a", "b"], ["a", "b"])
    assert type(checked(lambda seed: seed)(np.int64(3))) is int and checked(lambda flag: flag)(True) is True
    with pytest.raises(UsageError) as caught:
        vitmed.evaluate(tmp_path, data=[f"patient {i}" for i in range(1000)])  # type: ignore[arg-type]
    assert len(str(caught.value)) < 250
