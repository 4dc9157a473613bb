"""The list of commands, and `vitmed --help`. The commands themselves are imported only when one is used."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from vitmed.cli.terminal import TYPER
from vitmed.core.text import NOTICE


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
        "probe": "Evaluate a baseline that trains no network.",
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
