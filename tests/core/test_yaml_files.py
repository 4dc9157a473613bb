"""YAML that somebody else wrote: what is refused, how soon, and in which words."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from vitmed.core.text_files import MOST_BYTES, YamlError, parse_yaml

from vitmed.core.errors import UsageError
from vitmed.core.load_config import load_config

LAUGHS = "\n".join(
    [
        "a: &a [x, x, x, x, x, x, x, x]",
        *(f"{c}: &{c} [{f'*{b}, ' * 8}]" for b, c in zip("abcdefgh", "bcdefghi", strict=True)),
    ]
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("train:\n  lr: 3\n  a: 1\n  lr: 4\n", "line 4, column 3: the key 'lr' is there twice, first in line 2"),
        ("train: {}\nmodel: {}\ntrain: {}\n", "line 3, column 1: the key 'train' is there twice, first in line 1"),
        ("train: {lr: 1, lr: 2}", "'lr' is there twice"),
        ("[" * 100_000, "nested deeper than 20 levels"),
        ("{a: " * 100_000, "nested deeper than 20 levels"),
        ("- " * 100_000, "nested deeper than 20 levels"),
        (LAUGHS, "values, with aliases written out"),
        ("a: &a [*a]", "values, with aliases written out"),
        ("a: *b", "undefined alias"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: 2001-99-99", "month must be in"),
        ("a: " + "9" * 5000, "limit"),
        ("a: [1, 2", "line 1"),
        ("? [a]\n: 3", "unhashable"),
    ],
)  # fmt: skip
def test_what_is_refused_names_the_place(text: str, told: str) -> None:
    start = time.perf_counter()
    with pytest.raises(YamlError) as error:
        parse_yaml(text)
    assert told in str(error.value) and time.perf_counter() - start < 5


def test_what_is_read() -> None:
    assert parse_yaml("") is None and parse_yaml("1e-4") == "1e-4"
    assert parse_yaml("a: &x [1, 2]\nb: *x") == {"a": [1, 2], "b": [1, 2]}  # as vitmed itself writes equal lists
    assert parse_yaml("d: &d {a: 1}\ne: {<<: *d, a: 2}")["e"] == {"a": 2}


def test_a_config_file_names_itself_and_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(content: bytes | None, name: str = "c.yaml") -> str:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=name) as error:
            load_config(tmp_path / name)
        return str(error.value)

    assert "line 2, column 1: the key 'train' is there twice" in told(b"train: {}\ntrain: {}")
    assert "Fix: save it as UTF-8" in told(b"\xff\xfe\x00")
    assert "expected at most" in told(b"#" * (MOST_BYTES + 1))
    assert "no such config file" in told(None, "none.yaml")
    (tmp_path / "folder.yaml").mkdir()
    assert "is a folder" in told(None, "folder.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "is a pipe or a device" in told(None, "pipe.yaml")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "permission denied" in told(b"", "mine.yaml") and "chmod u+r" in told(b"", "mine.yaml")


def test_an_error_names_the_file_that_has_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("train: {epohcs: 3}")
    with pytest.raises(
        UsageError, match=r"mine\.yaml: unknown key 'epohcs' in section 'train', expected one of: .*epo"
    ) as e:
        load_config(file)
    assert e.value.fix == "did you mean 'epochs'?"
    file.write_text("train: {epochs: 3}")
    with pytest.raises(UsageError, match=r"^--epochs -1"):
        load_config(file, {"train.epochs": -1})
