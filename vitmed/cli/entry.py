"""Run the command line and end with an exit code."""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import typer

from vitmed.cli.app import app
from vitmed.core.aliases import OldNameWarning
from vitmed.core.errors import Interrupted, VitmedError
from vitmed.core.process import tune_process
from vitmed.core.text import visible


def main(args: list[str] | None = None) -> None:
    """Run the command line; turn every user error into a message and an exit code."""
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # else albumentations opens a connection at import
    tune_process()
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning(warnings.showwarning)
        code = _exit_code(lambda: _run(sys.argv[1:] if args is None else args))
    sys.exit(code)


def _show_warning(others: Callable[..., None]) -> Callable[..., None]:
    """Show warnings about old names in files as plain lines, without the place in the code."""

    def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
        if category is OldNameWarning:
            _stderr(f"note: {message}")
        else:
            others(message, category, *where)

    return show


def _run(args: list[str]) -> None:
    # `app(args)` would turn Ctrl-C and a closed pipe silently into exit codes of its own.
    command = typer.main.get_command(app)
    with command.make_context("vitmed", list(args)) as context:
        command.invoke(context)


def _exit_code(run: Callable[[], None]) -> int:
    try:
        run()
        return 0
    except typer.Exit as error:
        return error.exit_code
    except VitmedError as error:
        _stderr(f"{'stopped' if isinstance(error, Interrupted) else 'error'}: {error}")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _stderr("stopped: interrupted before anything could be saved")
        return Interrupted.exit_code
    except BrokenPipeError:  # `vitmed predict ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        _stderr("error: out of memory\nFix: a smaller --batch-size, or --no-cache")
        return 5
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # a wrong flag: click's, or typer's copy of it
            error.show(text := io.StringIO())
            _stderr(text.getvalue().rstrip("\n"))
            return int(error.exit_code)
        _stderr(traceback.format_exc())
        _stderr("error: this is a bug in vitmed; please report it with the lines above")
        return 1


def _stderr(text: str) -> None:
    print(visible(text), file=sys.stderr, flush=True)
