"""A command of typer from the signature of a verb, and its `--help` in panels."""

import ast
import builtins
import functools
import inspect
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

import vitmed
from vitmed.cli.terminal import TYPER, Terminal
from vitmed.core import options
from vitmed.core.base_models import PANELS, fields_of, flag_of, spellings
from vitmed.core.config import FLAGS, Config, RunConfig
from vitmed.core.downloads import unconnected
from vitmed.core.errors import excluded
from vitmed.core.messages import listening
from vitmed.core.options import FIRST, LAST, Argument, Fields, Option

FEW = 16  # up to this number of options need no panels
KEYWORD = inspect.Parameter.KEYWORD_ONLY
AsJson = Annotated[bool, Option("Print one JSON object on stdout.", "--json")]
Quiet = Annotated[bool, Option("Print only warnings and errors on stderr.", "--quiet -q")]
Verbose = Annotated[bool, Option("Print all messages: the plan with its reasons, and every warning.", "--verbose -v")]


class Command(TyperCommand):
    """A command whose `--help` groups the options under `PANELS`, then under headings of its own."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        shown = [(param, row) for param in self.get_params(ctx) if (row := param.get_help_record(ctx)) is not None]
        panels: list[str] = [
            "Arguments" if param.param_type_name == "argument" else getattr(param, "rich_help_panel", None) or LAST
            for param, _ in shown
        ]
        if len(shown) <= FEW:
            panels = ["Options" if panel in PANELS else panel for panel in panels]
        else:  # a panel of one option joins the first
            panels = [FIRST if panel in PANELS and panels.count(panel) == 1 else panel for panel in panels]
        for title in dict.fromkeys(("Arguments", "Options", *PANELS, *panels)):  # those of one command last
            rows = [row for panel, (_, row) in zip(panels, shown, strict=True) if panel == title]
            if rows:
                with formatter.section(title):
                    formatter.write_dl([(f"{flag:30}", text) for flag, text in rows])


def command(run: Callable[..., None], verb: str | None = None) -> typer.Typer:
    """Make a function a typer application of one command; see `with_options`."""
    app = typer.Typer(**TYPER | {"no_args_is_help": False})
    app.command(cls=Command)(with_options(run, run.__name__ if verb is None else verb))
    return app


def with_options(run: Callable[..., None], verb: str) -> Callable[..., None]:
    """Give a function the options of a verb beside its own; it is called with those that were given, checked.

    Args:
        run: its docstring is the help, its parameters are declared as those of a verb.
        verb: a function of `vitmed`, such as "train", or of a module of `vitmed.commands`, such as
            "data.fetch_dataset"; "": none.
    """
    parameters = [*inspect.signature(run, eval_str=True).parameters.values()]
    if verb and (of_verb := parameters_of(verb)):
        flags = {"quiet": Quiet, "verbose": Verbose}
        added = [inspect.Parameter(name, KEYWORD, default=None, annotation=kind) for name, kind in flags.items()]
        parameters = [*of_verb, *added, *parameters]
    declared, fields, configs = [], [], [Fields(Config, FLAGS)]
    for parameter in parameters:
        metadata = getattr(parameter.annotation, "__metadata__", (None,))[0]
        if isinstance(metadata, Fields):
            configs.append(metadata)
            fields += [_field(name, place, metadata.kind) for name, place in metadata.flags.items()]
        elif metadata is not None:
            declared.append(_declared(parameter, metadata))
        elif parameter.name in FLAGS:
            fields.append(_field(parameter.name, FLAGS[parameter.name], Config))
    kind = configs[-1].kind if "sets" in {parameter.name for parameter in declared} else None

    @functools.wraps(run)
    def call(**given: Any) -> None:
        from vitmed.core.places import check_inputs

        chosen = {name: value for name, value in given.items() if value is not None}
        said = listening(Terminal(chosen.pop("quiet", False), chosen.pop("verbose", False)))
        with said, unconnected(chosen.get("offline", False)):
            if chosen.keys() >= {"checkpoint", "runs"}:
                raise excluded("runs and checkpoint")
            check_inputs(chosen, kind)
            run(**chosen)

    call.__signature__ = inspect.Signature([*declared, *fields])  # type: ignore[attr-defined]
    return call


def parameters_of(verb: str) -> list[inspect.Parameter]:
    """List the parameters of a verb, read from the text of its file; without annotation where it declares no option."""
    module, _, name = verb.rpartition(".")
    module = module or vitmed._PUBLIC[name].rpartition(".")[2]
    file = Path(vitmed.__file__).parent / "commands" / f"{module}.py"
    text = file.read_text(encoding="utf-8").partition(f"\ndef {name}(")[2].partition('\n    """')[0]
    function = ast.parse(f"def {name}({text} ...").body[0]  # the header alone: to parse all files takes 0.2 s
    assert isinstance(function, ast.FunctionDef)
    header = function.args
    arguments: list[ast.arg] = [*header.args, *header.kwonlyargs]
    defaults = [*[None] * (len(header.args) - len(header.defaults)), *header.defaults, *header.kw_defaults]
    named = [*zip(arguments, defaults, strict=True), (header.vararg, None), (header.kwarg, None)]
    # Any other name, such as a class of a module that is not loaded, is `Any`.
    names, parameters = defaultdict(lambda: Any, vars(builtins) | vars(options) | {"options": options}), []
    for argument, default in named:
        if argument is not None:
            text = "" if argument.annotation is None else ast.unparse(argument.annotation)
            declares = text.startswith(("Annotated[", "options.")) or text in vars(options)
            annotation: Any = eval(text, {}, names) if declares else None
            if argument is header.vararg:  # several values
                annotation = Annotated[Sequence[get_args(annotation)[0]], annotation.__metadata__[0]]  # type: ignore[misc]
            given = inspect.Parameter.empty if default is None else None
            parameters.append(inspect.Parameter(argument.arg, KEYWORD, default=given, annotation=annotation))
    return parameters


def _declared(parameter: inspect.Parameter, how: Argument | Option) -> inspect.Parameter:
    """The parameter for typer: the first type of its union, and None where it is not given."""
    kind, several = get_args(parameter.annotation)[0], False
    while get_args(kind):
        several = several or get_origin(kind) not in (Union, UnionType)
        kind = get_args(kind)[0]  # Path of `Path | str | None`, list[str] of `Sequence[str | Path]`
    kind = list[kind] if several else kind  # type: ignore[valid-type]
    if isinstance(how, Argument):
        info = typer.Argument(help=how.help, metavar=how.metavar)
    else:
        spelled = how.names.split() or [f"--{parameter.name.replace('_', '-')}"]
        limits: dict[str, Any] = {"min": how.min, "max": how.max}
        info = typer.Option(*spelled, help=how.help, metavar=how.metavar, rich_help_panel=how.panel, **limits)
    required = parameter.default is inspect.Parameter.empty
    return parameter.replace(kind=KEYWORD, annotation=Annotated[kind if required else kind | None, info])


def _field(keyword: str, place: str, kind: type[RunConfig]) -> inspect.Parameter:
    """The parameter of a field for typer: type, spelling, help and panel; None where it is not given."""
    section, _, name = place.partition(".")
    field = fields_of(kind, section)[name]
    flag = flag_of(field)
    assert flag is not None
    annotation: Any = field.annotation
    if get_origin(annotation) in (Union, UnionType):  # `int | None`; of `str | list[float]` the text
        annotation = get_args(annotation)[0]
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    typed = str if choices or flag.text else annotation
    help_text = (field.description or "").partition(". ")[0].rstrip(".") + "."
    panel = FIRST if flag.first else flag.panel or kind.model_fields[section].annotation.panel  # type: ignore[union-attr]
    how = Option(help_text, " ".join(spellings(keyword, field)), flag.metavar or "|".join(choices) or None, panel)
    return _declared(inspect.Parameter(keyword, KEYWORD, default=None, annotation=Annotated[typed, how]), how)
