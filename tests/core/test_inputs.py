"""What a command line names is checked in milliseconds, before torch is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import python

ASKED = [
    (["train"], 2, "no data folder is named"),
    (["train", "nosuch"], 3, "nosuch: no such folder"),
    (["train", "file"], 3, "file: is a file"),
    (["train", ".", "--epochs", "0"], 2, "--epochs 0"),
    (["train", ".", "--set", "train.epohcs=1"], 2, "did you mean 'epochs'"),
    (["train", ".", "-c", "nosuch.yaml"], 2, "nosuch.yaml: no such config file"),
    (["train", "--resume", "nosuch"], 4, "nosuch: no such run folder"),
    (["plan", "nosuch"], 3, "nosuch: no such folder"),
    (["probe", "nosuch"], 3, "nosuch: no such folder"),
    (["pretrain", "nosuch"], 3, "nosuch: no such folder"),
    (["check", "nosuch"], 3, "nosuch: no such folder"),
    (["predict", "nosuch.png"], 4, "runs: no run with a best.pt is there"),
    (["predict", "nosuch.png", "--checkpoint", "file"], 3, "nosuch.png: no such file or folder"),
    (["explain", "file", "--checkpoint", "nosuch.pt"], 4, "nosuch.pt: no such file"),
    (["evaluate", "nosuch.pt"], 4, "nosuch.pt: no such file"),
    (["evaluate", "nosuch.csv"], 3, "nosuch.csv: no such file"),
    (["evaluate", "file", "--data", "nosuch"], 3, "nosuch: no such folder"),
    (["compare", ".", "nosuch"], 3, "nosuch: no such file or folder"),
    (["stress", "nosuch.pt"], 4, "nosuch.pt: no such file"),
]


def test_a_wrong_name_is_reported_before_torch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    code = f"""
import contextlib, io, sys
from vitmed.cli import main
for args, code, found in {ASKED!r}:
    with contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main(args)
        except SystemExit as end:
            assert end.code == code, (args, end.code, err.getvalue())
    assert found in err.getvalue() and "Fix: " in err.getvalue(), (args, err.getvalue())
    loaded = {{"torch", "numpy", "scipy", "matplotlib"}} & set(sys.modules)
    assert not loaded, (args, loaded)
"""
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["amber_*.png", "link.png"])
def test_patterns_and_links_are_left_to_the_command(tmp_path: Path, name: str) -> None:
    from vitmed.core.places import check_images

    (tmp_path / "link.png").symlink_to(tmp_path / "gone.png")
    check_images([str(tmp_path / name)])
