"""The commands that take a model out of the machine: as a file, behind an address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import vitmed
from vitmed.cli.options import FIRST, FORCE, OFFLINE, AsJson, argument, command, flag, output, precision
from vitmed.cli.terminal import answer, in_folder

FORM = {
    "form": flag(
        str, metavar="transformers|timm", help="Library that reads the folder; default transformers.", panel=FIRST
    )
}


@command(
    {
        "checkpoint": argument(Path, "A run folder, or its best.pt."),
        "to": flag(Path, help="What to write: .onnx, .safetensors for timm, or a folder.", panel=FIRST),
        **FORM,
        "data": flag(Path, help="Data folder of the run, where it has moved.", panel=FIRST),
        **FORCE,
    },
    fields={},
)
def export(as_json: AsJson = False, **options: Any) -> None:
    """Write a model as a file or folder that other programs run, if it decides as the checkpoint does."""

    def content(found: Any) -> dict[str, Any]:
        return {"file": str(found.file), "bytes": found.size, "gate": found.gate.to_dict()}

    answer(vitmed.export, options, as_json, content)


@command(
    {
        "checkpoint": argument(Path, "A run folder, or its best.pt."),
        "repository": argument(str, "Where to, as in lab/first; made if it is not there.", "OWNER/NAME"),
        **FORM,
        "data": flag(Path, help="Data folder of the run, where it has moved; nothing of it is uploaded.", panel=FIRST),
        "public": flag(bool, "--public", help="Everybody may see it; default: only its owner.", panel=FIRST),
        "may_share": flag(
            bool, "--may-share", help="You may, whatever the licence of the starting weights.", panel=FIRST
        ),
        **OFFLINE,
    },
    fields={},
)
def push(as_json: AsJson = False, **options: Any) -> None:
    """Upload weights, preprocessing and card of a model to the Hugging Face hub, for timm or transformers."""

    def content(found: Any) -> dict[str, Any]:
        return {"url": found.url, "files": found.files, "private": found.private, "gate": found.gate.to_dict()}

    answer(vitmed.push, options, as_json, content)


HTTP = "HTTP"


@command(
    {
        "checkpoint": argument(Path, "A run folder, a checkpoint, or an exported .onnx file."),
        "host": flag(str, help="Address to listen at, this machine alone; default 127.0.0.1.", panel=HTTP),
        "port": flag(int, min=0, max=65535, help="0 takes a free one; default 8000.", panel=HTTP),
        "api_key_file": flag(Path, help="Holds the key of requests; default the variable VITMED_API_KEY.", panel=HTTP),
        "no_key": flag(bool, "--no-key", help="Let other machines in without a key.", panel=HTTP),
        "tls_cert": flag(Path, help="Certificate (PEM), for https.", panel=HTTP),
        "tls_key": flag(Path, help="Its key (PEM), where the certificate's file does not hold it.", panel=HTTP),
        "max_megabytes": flag(float, help="Of a request; default 32.", panel=HTTP),
        "max_images": flag(int, min=1, help="Of a request; default 16.", panel=HTTP),
        "timeout": flag(float, help="Seconds for a request to arrive, and to be answered; default 30.", panel=HTTP),
        "queue": flag(int, min=1, help="Images that may wait; default 256.", panel=HTTP),
        "batch": flag(int, min=1, max=64, help="Computed at once; default as in predict.", panel=HTTP),
        "scores": flag(
            Path, metavar="FILE.csv", help="Log what the model says, without names, for monitor.", panel=HTTP
        ),
        **precision("auto"),
    },
    "train.device",
    "data.frame",
)
def serve(**options: Any) -> None:
    """Answer images over HTTP until Ctrl-C, on an address for programs and a page."""
    vitmed.serve(**options)


@command(
    {
        "run": argument(Path, "A run folder, or the folder of an evaluation in it."),
        "new": argument(Path, "What the model predicted since: of predict --csv, or the log of serve --scores."),
        **output("New folder; default RUN/monitoring.", FIRST),
        "split": flag(str, metavar="test|val", help="The reference; default the test.", panel=FIRST),
        "period": flag(int, help="Newest images that are watched; default 1000.", panel=FIRST),
        "false_alarms": flag(float, help="Share of periods without a change with an alarm; default 0.05.", panel=FIRST),
        "shift": flag(float, help="Found soonest, in standard deviations of a mean; default 0.5.", panel=FIRST),
    },
    fields={},
)
def monitor(as_json: AsJson = False, **options: Any) -> None:
    """Watch a model at work: exit code 6 where its scores, its answers or its errors are no longer what they were."""
    answer(vitmed.monitor, options, as_json, lambda found: in_folder(found, found.content.to_dict()))


@command(
    {
        "model": argument(Path, "A run folder, its best.pt, or an exported .onnx file.", "RUN|FILE.onnx"),
        "to": flag(Path, help="File to write: .tar.", panel=FIRST),
        "onnx": flag(Path, "--onnx", help="Exported file of the run, to add.", panel=FIRST),
        "no_torch": flag(bool, "--no-torch", help="Leave out torch, and best.pt, which needs it.", panel=FIRST),
        "extras": flag(str, metavar="NAME[,NAME]", help="Of vitmed, to add, such as serve,dicom.", panel=FIRST),
        **FORCE,
    },
    fields={},
)
def bundle(as_json: AsJson = False, **options: Any) -> None:
    """Write a model, its programs and their licences as one archive, for a machine without a network."""
    options["extras"] = [name.strip() for name in options.get("extras", "").split(",") if name.strip()]

    def content(found: Any) -> dict[str, Any]:
        return {"file": str(found.file), "bytes": found.size, "sha256": found.sha256, "packages": found.packages}

    answer(vitmed.bundle, options, as_json, content)


TAKEN_OUT = {"export": export, "push": push, "bundle": bundle, "serve": serve, "monitor": monitor}
