"""stdout and stderr that are closed, full or ASCII; --quiet, --json for errors, and shell completion."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Answer, Trained, python

from vitmed.cli import entry

RUN = Callable[..., Answer]
posix = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def shell(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`command` in a shell, with `vitmed` as this Python runs it."""
    script = f'vitmed() {{ "{sys.executable}" -m vitmed "$@"; }}\n{command}'
    environment = os.environ | variables
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, env=environment)


@posix
@pytest.mark.parametrize(
    ("redirected", "code"),
    [
        (">&- 2>&- <&-", 0),
        pytest.param("2>&-", 0, marks=pytest.mark.slow),
        pytest.param("2>/dev/full", 0, marks=pytest.mark.slow),
        (">/dev/full", 2),
    ],
)
def test_a_closed_or_full_stream_ends_no_command(redirected: str, code: int) -> None:
    done = shell(f"vitmed data list {redirected}")
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    assert ("stdout (No space left on device)" in done.stderr) == (redirected == ">/dev/full")


@posix
@pytest.mark.parametrize("redirected", [">&-", pytest.param("2>/dev/full", marks=pytest.mark.slow)])
def test_an_error_keeps_its_exit_code(redirected: str) -> None:
    done = shell(f"vitmed train nosuch {redirected}")
    assert done.returncode == 3 and "Traceback" not in done.stderr


@pytest.mark.slow
def test_ascii_alone_is_enough(tmp_path: Path) -> None:
    folder = tmp_path / "é"
    folder.mkdir()
    done = shell(f"vitmed check '{folder}'; vitmed data list", LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "\\udcc3\\udca9: contains no image" in done.stderr and "cifar10" in done.stdout


@pytest.mark.parametrize(
    ("args", "code", "found", "fix"),
    [
        (("train", "nosuch"), 3, "nosuch: no such folder", "name a folder"),
        (("evaluate", "nosuch.pt"), 4, "nosuch.pt: no such file", "best.pt"),
        (("train", ".", "--epochs", "0"), 2, "--epochs 0", "docs/configuration.md"),
        (("train", "--bogus"), 2, "--bogus", "--help"),
        (("demo", "--cells", "many"), 2, "found 'many'", "vitmed demo --help"),
        (("trian",), 2, "trian", "--help"),
    ],
)
def test_json_gives_the_error_on_stdout(vitmed: RUN, args: tuple[str, ...], code: int, found: str, fix: str) -> None:
    answer = vitmed(*args, "--json")
    error = json.loads(answer.out)["error"]
    assert answer.code == code == error["exit_code"] and found in error["message"] and fix in error["fix"]
    assert answer.out.count("\n") == 1 and set(error) == {"message", "fix", "exit_code"}
    assert found in answer.err and vitmed(*args).out == ""


def test_a_result_with_json_stays_one_object(trained: Trained, vitmed: RUN, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"")
    image = trained.data / "test" / "amber" / "amber_0.png"
    answer = vitmed("predict", image, tmp_path / "broken.png", "--checkpoint", trained.best, "--json")
    assert answer.code == 3 and len(json.loads(answer.out)["images"]) == 1


def test_quiet_prints_warnings_and_errors_alone(trained: Trained, vitmed: RUN, tmp_path: Path) -> None:
    spoken = vitmed("check", trained.data, "-o", tmp_path / "a")
    quiet = vitmed("check", trained.data, "-o", tmp_path / "b", "-q")
    assert spoken.err != "" == quiet.err and quiet.out == spoken.out != ""
    assert "no such folder" in vitmed("train", "nosuch", "--quiet").err


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from vitmed.cli.terminal import Terminal

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    with Terminal().bar("training") as advance:
        advance(1, 2)
    Terminal().warn("mind the gap")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    Terminal().warn("mind the gap")
    assert capsys.readouterr().err == "warning: mind the gap\n" * 2


@pytest.mark.slow
def test_a_shell_completes_commands_and_flags() -> None:
    for words, offered in (("vitmed data g", "get"), ("vitmed train --ep", "--epochs")):
        done = shell("vitmed", _VITMED_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
        assert done.stdout.split() == [offered] and done.returncode == 0
    assert "_vitmed_completion" in python("-m", "vitmed", "--show-completion", "bash").stdout


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_ends_every_command_as_ctrl_c_does(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    number = signal.Signals[name]
    old = signal.signal(number, signal.SIG_DFL)  # the tests themselves may run under nohup

    removed = []

    def run(args: list[str]) -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:  # what the command has begun is removed; `timeout` and Slurm send SIGTERM twice
            os.kill(os.getpid(), number)
            removed.append(name)

    monkeypatch.setattr(entry, "_run", run)
    try:
        with pytest.raises(SystemExit) as stopped:
            entry.main(["predict"])
        assert stopped.value.code == 130 and "stopped: interrupted" in capsys.readouterr().err
        assert removed and signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, old)


def test_a_stream_that_outlives_the_one_it_writes_to_is_silent() -> None:
    """Deleting it flushes it, and Python 3.13 prints an error of that."""
    below = io.StringIO()
    stream = entry.Stream(below)
    below.close()
    stream.flush()
    assert stream.broken is None
