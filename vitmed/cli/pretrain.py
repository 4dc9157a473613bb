"""`vitmed pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitmed.cli.flags import command
from vitmed.cli.options import AsJson, ConfigFile, Name, Output, Resume, Sets
from vitmed.cli.terminal import print_json, ui
from vitmed.core.pretrain_config import PRETRAIN_FLAGS, PretrainConfig


def pretrain(
    data: Annotated[Path | None, typer.Argument(help="Folder of images, with or without class folders.")] = None,
    config: ConfigFile = None,
    output: Output = Path("runs"),
    name: Name = None,
    resume: Resume = None,
    sets: Sets = None,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Pretrain on images without labels (masked autoencoder); `vitmed train --weights` takes the result."""
    from vitmed.commands.pretrain import pretrain as run

    result = run(data, config=config, sets=sets or (), output=output, name=name, resume=resume, ui=ui(), **flags)
    if as_json:
        print_json({"run": str(result.folder), "encoder": str(result.encoder), "last": result.records[-1]})


app = command(pretrain, fields=PRETRAIN_FLAGS, kind=PretrainConfig)
