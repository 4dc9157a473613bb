"""How a verb declares its options: in the signature of its Python function, the only place. `cli` reads it.

    def stress(
        checkpoint: Annotated[Path | str, Argument("best.pt of a run, or its folder.")],
        *,
        images: Annotated[int, Option("Take a stratified sample of at most this many; default 1000.", min=1)] = 1000,
        device: str = "auto",
        **flags: Settings,
    )

The command line takes the first type of a union; where an option is not given, the default of Python counts. A
parameter with the name of a flag of the configuration (`device`) is that flag: type, help and choices are those of the
field. Any other parameter exists in Python only.

`cli` reads the text of a signature, for importing the verb would load torch. There an annotation is one of the names
below, also as `options.Data`, or `Annotated[...]`, and uses names of this file (SIGNATURES: that only signatures use)
and the built-in ones; a type that is not known here must not be the first of a union.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache, partial, wraps
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, GetCoreSchemaHandler, ValidationError, validate_call

from vitmed.core.base_models import PANELS, flags_of
from vitmed.core.config import EVALUATE_FLAGS, FLAGS, PROBE_FLAGS, TUNE_FLAGS, Config, PretrainConfig, RunConfig
from vitmed.core.errors import UsageError

SUMMARY_FLAGS = flags_of(Config, "model.image_size", "model.patch_size", "model.channels")
OF_CHECK = ["card", "group_regex", "groups", "labels", "split_column", "target", "findings", "uncertain", "unit"]
CHECK_FLAGS = flags_of(Config, *(f"data.{name}" for name in OF_CHECK), "evaluate.ordinal", "data.frame")
PRETRAIN_FLAGS = flags_of(PretrainConfig, without=("model.weights", "data.positive"))
SIGNATURES = (Collection, PretrainConfig, EVALUATE_FLAGS, PRETRAIN_FLAGS, PROBE_FLAGS, SUMMARY_FLAGS, TUNE_FLAGS)
FIRST, *_, LAST = PANELS


@dataclass(frozen=True)
class Argument:
    """A positional argument: its help, and what --help shows for the value; default its name."""

    help: str
    metavar: str | None = None


@dataclass(frozen=True)
class Option:
    help: str  # one sentence
    names: str = ""  # its spellings, such as "--output -o" or "--prune/--no-prune"; default the parameter's name
    metavar: str | None = None  # what --help shows for the value; default the type
    panel: str = LAST  # its heading in --help
    min: int | None = None  # the least and the greatest value
    max: int | None = None

    def __get_pydantic_core_schema__(self, kind: Any, handler: GetCoreSchemaHandler) -> Any:
        """The limits, for `checked`."""

        def within(value: Any) -> Any:
            if self.min is not None and value is not None and not self.min <= value <= (self.max or value):
                raise ValueError(f"expected {self.min} {'or more' if self.max is None else f'to {self.max}'}")
            return value

        return AfterValidator(within).__get_pydantic_core_schema__(kind, handler)


MainOption = partial(Option, panel=FIRST)  # under the first heading of --help
HttpOption = partial(Option, panel="HTTP")  # of `serve`


@dataclass(frozen=True)
class Fields:
    """The fields of a configuration that `**flags` takes: keyword -> field."""

    kind: type[RunConfig]
    flags: Mapping[str, str]


@cache
def checked(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb for Python, which refuses what the command line refuses: a wrong type, a number beyond the limits. It
    gets a series or a generator as a list, and a scalar of NumPy's as Python's, which JSON knows."""
    rules = ConfigDict(strict=True, arbitrary_types_allowed=True)
    checking, signature = validate_call(config=rules)(verb), inspect.signature(verb)

    def plain(value: Any) -> Any:
        if hasattr(value, "__fspath__"):
            return Path(value)
        if getattr(value, "shape", None) == ():
            return value.item()
        return [*map(plain, value)] if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else value

    @wraps(verb)
    def call(*args: Any, **given: Any) -> Any:
        signature.bind(*args, **given)  # a missing argument is Python's own error
        try:
            return checking(*map(plain, args), **{name: plain(value) for name, value in given.items()})
        except ValidationError as error:
            if error.title != verb.__name__:
                raise
            place, wrong = error.errors()[0]["loc"][0], error.errors()[0]
            name = [*signature.bind_partial(*args[: place + 1]).arguments][-1] if isinstance(place, int) else place
            problem = f"{name}={repr(wrong['input'])[:100]}: {wrong['msg'].removeprefix('Value error, ')}"
            raise UsageError(problem, f"see help(vitmed.{verb.__name__})") from None

    call.__module__ = "vitmed"  # where pickle finds it
    return call


# What several verbs take.
Data = Annotated[Path | str | None, Argument("Folder: <class>/ or {train,val,test}/<class>/.")]
ConfigFile = Annotated[str | Path | None, MainOption("YAML file, or name of a recipe.", "--config -c", "FILE|NAME")]
Sets = Annotated[
    Sequence[str], Option("Any field of docs/configuration.md.", "--set", "SECTION.FIELD=VALUE", panel="Training")
]
Settings = Annotated[Any, Fields(Config, FLAGS)]
RunsFolder = Annotated[Path | str, MainOption("Folder in which to make the run folder; default runs.", "--output -o")]
RunName = Annotated[str | None, Option("Name of the run folder; default date, data and model.")]
Resume = Annotated[Path | str | None, Option("Run folder of an interrupted run to continue.", panel="Training")]
PARALLEL = "Trainings at the same time; default 1, on a cluster its GPUs or nodes."
Parallel = Annotated[int | None, Option(PARALLEL, metavar="N", panel="Patients", min=1)]
ON = "Where the work runs; default VITMED_ON, else local; docs/many-machines.md."
On = Annotated[str | Executor | None, Option(ON, metavar="local|ray[:HOST:PORT]")]
Strict = Annotated[bool, Option("Stop if a node of the cluster cannot be used.")]
DEVICES = "Train on this many GPUs of this machine, or with as many processes on its CPU; docs/many-machines.md."
Devices = Annotated[int | None, Option(DEVICES, metavar="N", panel="Training", min=1)]
Gates = Annotated[Sequence[str], Option("Exit code 6 if the result is worse.", metavar="METRIC=VALUE")]
Offline = Annotated[bool, Option("Open no connection.", panel="Model")]
WINDOW = "Of deep images, such as DICOM, for a model of 8-bit images: 40/400."
AskedWindow = Annotated[str | None, Option(WINDOW, metavar="CENTRE/WIDTH")]
Force = Annotated[bool, MainOption("Replace an existing file.")]
NewDataFolder = Annotated[Path | str, Argument("A new or empty folder.", "DIR")]

RunFile = Annotated[Path | str, Argument("A run folder, or its best.pt.")]  # to take out

# Which images to evaluate, and which to predict, with what.
LabelledData = Annotated[Path | str | None, MainOption("Another labelled folder; classes are matched by name.")]
Split = Annotated[str, MainOption("Split to evaluate; default test.", metavar="test|val|train")]
LEAKAGE = "Also evaluate images that the model was trained on."
AllowLeakage = Annotated[bool, MainOption(LEAKAGE, "--allow-leakage/--no-allow-leakage")]
Images = Annotated[Sequence[str | Path] | str | Path, Argument("Image files, folders or patterns.")]
CHECKPOINT = Option("Default: best.pt of the newest run in --runs.")
Runs = Annotated[Path | str, Option("Folder of the runs; default runs.")]
PRECISION = "auto takes bf16 where it is faster and changed no decision on validation; default "
Precision = Annotated[str, Option(f"{PRECISION}auto.", metavar="auto|fp32|bf16")]
