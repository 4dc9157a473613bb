"""The list of commands, and `vitmed --help`; run the command line and end with an exit code. A stdout or stderr that is
closed, full or ASCII ends no command. The commands themselves are imported only when one is used."""

import atexit
import contextlib
import errno
import gc
import io
import itertools
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from vitmed.cli.terminal import STARTED, TYPER
from vitmed.core import errors
from vitmed.core.errors import VitmedError
from vitmed.core.files import is_full
from vitmed.core.process import ANSWERING, end_with_driver, handling, is_rank, once, tune_process
from vitmed.core.text import NOTICE, visible
from vitmed.core.upgrade import OldNameWarning, gone


class Commands(TyperGroup):
    """The commands of `COMMANDS`. `vitmed --help` imports none of them."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.commands: dict[str, Any] = {name: None for commands in COMMANDS.values() for name in commands}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            from vitmed.cli.commands import APPS

            self.commands[cmd_name] = typer.main.get_command(APPS[cmd_name])
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, commands in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:11}", text) for name, text in commands.items()])


app = typer.Typer(
    cls=Commands,
    help="Train Vision Transformers on folders of medical images, from scratch or from public weights, and evaluate "
    f"them. {NOTICE}",
    epilog="`vitmed COMMAND --help` lists the options of a command.",
    **TYPER | {"add_completion": True},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from vitmed import __version__

        typer.echo(f"vitmed {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


# Heading of `vitmed --help` -> command -> what it does.
COMMANDS = {
    "Train": {
        "train": "Train on a folder of labelled images and evaluate the result.",
        "check": "Report what is wrong with a folder of images.",
        "plan": "Show the settings that train would use, why, and how long it takes.",
        "probe": "Evaluate pretrained weights without training a network.",
        "pretrain": "Pretrain on images without labels.",
        "demo": "Train and evaluate on drawn images, in a minute.",
    },
    "Train many": {
        "auto": "Find the best model that a time allows.",
        "cross-validate": "Train and test on folds by patient, and pool the results.",
        "ensemble": "Join folds or runs into one model.",
        "tune": "Search for better settings, and test the winner once.",
        "runs": "List runs with their metric, time and state.",
        "diff": "Report what differs between two runs.",
    },
    "Use and evaluate": {
        "predict": "Predict the labels of images.",
        "merge": "Join the parts of predict --output to one table.",
        "evaluate": "Evaluate a checkpoint on labelled images and write the report.",
        "compare": "Compare models on the same images.",
        "sample-size": "Report how many images and patients an evaluation needs.",
        "explain": "Draw where the network looked.",
        "stress": "Evaluate a checkpoint on blurred, noisy or recoloured images.",
    },
    "Take a model out": {
        "export": "Write a model as a file or folder that other programs run.",
        "bundle": "Write a model and its programs for a machine without a network.",
        "serve": "Answer images over HTTP and on a page.",
        "monitor": "Report whether a model at work has drifted.",
    },
    "Data, weights and models": {
        "data": "List, fetch and import public data sets.",
        "weights": "List, fetch and find public weights.",
        "summary": "Print the layers of a model.",
    },
}

# Errors of a place that was named, such as a folder of somebody else, and no bugs.
OF_PLACES = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EIO, errno.ESTALE)


def main(args: list[str] | None = None) -> None:
    """Run the command line; turn every user error into a message and an exit code."""
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # else albumentations opens a connection at import
    given = sys.argv[1:] if args is None else args
    tune_process(given[0] if given else "")
    if args is None and given and given[0] in ANSWERING:  # importing torch, a sixth of the time is spent on garbage
        gc.set_threshold(50_000, 20, 20)
    end_with_driver()
    STARTED.set(time.monotonic() - (time.process_time() if args is None else 0))  # what Python itself took
    # The null device takes the place of closed standard streams, so that no other file gets their numbers.
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    out, err = Stream(sys.stdout), Stream(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(), _signals():
        others = warnings.showwarning
        warnings.showwarning = lambda message, category, *where: (  # old names in files: without the place in the code
            _stderr(f"note: {message}") if category is OldNameWarning else others(message, category, *where)
        )
        error = _error_of(given)
        out.flush()
        if error is None and out.broken is not None and not isinstance(out.broken, BrokenPipeError):
            problem = f"the result cannot be written to stdout ({out.broken.strerror})"
            error = errors.UsageError(problem, "write it elsewhere")
            _stderr(f"error: {error}")
        if error is not None and not out.used and "--json" in itertools.takewhile(lambda arg: arg != "--", given):
            reported = {"message": error.problem, "fix": error.fix, "exit_code": error.exit_code}
            reported |= {"seconds": error.seconds} if isinstance(error, errors.TimeTooShortError) else {}
            out.write(json.dumps({"error": reported}) + "\n")
            out.flush()
    code = 0 if error is None else error.exit_code
    if args is not None:
        sys.exit(code)
    # The usual end takes seconds on a busy machine, to free what the system frees at once; and threads of
    # torch.distributed may abort the process or wait for one that has ended.
    with contextlib.suppress(OSError, ValueError):  # closed, or its reader has left
        sys.stdout.flush()
        sys.stderr.flush()
    if not is_rank():
        atexit._run_exitfuncs()  # ends the processes that load images
    os._exit(code)


def _signals() -> contextlib.AbstractContextManager[None]:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does: with a message, and without half-written folders."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    interrupt = once(signal.default_int_handler)
    return handling({n: interrupt for n in numbers if signal.getsignal(n) is signal.SIG_DFL})  # else under nohup


def _run(args: list[str]) -> None:
    if "_VITMED_COMPLETE" in os.environ:  # a shell asks for completions
        app(prog_name="vitmed")
    try:
        Path.cwd()
    except FileNotFoundError:
        raise errors.UsageError("the current folder was removed", "cd to one that exists") from None
    # `app(args)` would turn Ctrl-C and a closed pipe silently into exit codes of its own.
    command = typer.main.get_command(app)
    with command.make_context("vitmed", list(args)) as context:
        command.invoke(context)


def _error_of(args: list[str]) -> VitmedError | None:
    """Run the command, and return what ended it, reported on stderr; None if it reached its end."""
    reported: VitmedError
    try:
        _run(args)
        return None
    except typer.Exit as error:
        return VitmedError("stopped") if error.exit_code else None
    except VitmedError as error:
        reported = error
    except (KeyboardInterrupt, typer.Abort):
        reported = errors.Interrupted("interrupted before anything could be saved")
    except MemoryError:
        reported = errors.OutOfMemoryError("out of memory", "end other programs, or use a machine with more memory")
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "format_message"):  # a wrong flag: click's, or typer's copy of it
            return _wrong_usage(error, args)
        if type(error).__name__ == "OutOfMemoryError":  # of torch, which need not be loaded here
            fix = "end other programs on it, or use --device cpu"
            reported = errors.OutOfMemoryError("the GPU is out of memory", fix)
        elif isinstance(error, ModuleNotFoundError) and error.name in ("torch", "torchvision"):
            problem = f"this needs PyTorch, which is not installed here (no module {error.name})"
            fix = "pip install torch torchvision; with a model.onnx, predict, evaluate, stress and serve do without"
            reported = VitmedError(problem, fix)
        elif isinstance(error, OSError) and is_full(error):  # what vitmed keeps only while it runs
            problem = "a disk is full, perhaps that of temporary files"
            reported = errors.DiskFullError(problem, "make room on it, or set TMPDIR to a folder on another")
        elif isinstance(error, OSError) and ("cache directory" in str(error) or "temporary directory" in str(error)):
            fix = "set TMPDIR to one; in a container, --tmpfs /tmp"  # matplotlib's, or Python's
            reported = errors.UsageError("no folder for temporary files can be written", fix)
        elif isinstance(error, OSError) and error.errno in OF_PLACES and error.filename is not None:
            fix = "name another place, or ask the owner for the right to use it"
            reported = errors.UsageError(f"{error.filename}: {error.strerror}", fix)
        else:
            _stderr(traceback.format_exc())
            reported = VitmedError("this is a bug in vitmed; please report it with the lines above")
    rank = "" if os.environ.get("RANK", "0") == "0" else f"rank {os.environ['RANK']}: "  # of a training on several
    if rank and isinstance(reported, errors.Reported | errors.Interrupted):
        return None  # rank 0 reports it, and torchrun ends rank 0 as soon as another one fails
    _stderr(f"{rank}{'stopped' if isinstance(reported, errors.Interrupted) else 'error'}: {reported}")
    return reported


def _wrong_usage(error: Any, args: list[str]) -> errors.UsageError:
    """Report an error of the parser in the words of vitmed; the whole help if a command is missing."""
    message = error.format_message().rstrip(".")
    fix = f"{error.ctx.command_path if error.ctx is not None else 'vitmed'} --help"
    if message.startswith("Usage: "):
        _stderr(message)
        return errors.UsageError("no command is named", fix)
    if hasattr(error.__cause__, "errors"):  # pydantic's, which knows the value
        message += f", found {error.__cause__.errors()[0]['input']!r}"
    wrong = gone(args, message) or errors.UsageError(message, fix)
    _stderr(f"error: {wrong}")
    return wrong


def _stderr(text: str) -> None:
    print(visible(text), file=sys.stderr, flush=True)


class Stream(io.TextIOBase):
    """A stream that takes every character and never raises; what cannot be encoded gets a backslash.

    After the first error nothing more is written, and `broken` holds the error: a message that nobody can read must not
    end a training, and a closed `| head` must not lose the files that a command still has to write.

    Attributes:
        used: whether anything has been written.
    """

    def __init__(self, stream: TextIO):
        self.stream, self.used, self.broken = stream, False, None  # type: tuple[TextIO, bool, OSError | None]
        self.isatty, self.fileno = stream.isatty, stream.fileno  # type: ignore[method-assign]
        self.writable = stream.writable  # type: ignore[method-assign]
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding

    def write(self, text: str) -> int:
        self.used = True
        with self._unbroken():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._unbroken():
            if not self.stream.closed:  # when this object is deleted after it; Python 3.13 reports the error
                self.stream.flush()

    @contextlib.contextmanager
    def _unbroken(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.broken = self.broken or error
            with contextlib.suppress(OSError):  # so that what is still buffered fails no more, at exit too
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
