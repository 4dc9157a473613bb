"""`vitmed dicom-node`: a trained model as a DICOM node, which answers images with Structured Reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitmed.commands.pacs.settings import AE, HOST, PORT, NodeSettings, check_packages
from vitmed.core.ui import Ui


def dicom_node(
    model: str | Path,
    *,
    to: str | None = None,
    output: str | Path | None = None,
    port: int | None = None,
    ae: str = AE,
    host: str = HOST,
    allow: Sequence[str] = (),
    watch: str | Path | None = None,
    spool: str | Path | None = None,
    modality: Sequence[str] = (),
    body_part: Sequence[str] = (),
    view: Sequence[str] = (),
    frame: int | None = None,
    device: str = "auto",
    ui: Ui | None = None,
) -> None:
    """Receive images by C-STORE or from a folder, and answer each with a Structured Report, until Ctrl-C or SIGTERM.

    Args:
        model: a run folder, a checkpoint, or an exported .onnx file.
        to: where reports are sent: "HOST:PORT:AE", or DICOMweb, "https://.../studies".
        output: or a folder that they are written to.
        port: default 11112, and with `watch` none; host: where it listens; ae: its title.
        allow: the AE titles that may call; needed unless it listens on this machine alone.
        watch: a folder whose new files are answered; nothing in it is changed.
        spool: folder of what is not sent yet; default dicom-spool beside the model.
        modality, body_part, view: the values of Modality, BodyPartExamined and ViewPosition that are taken.
        frame: which frame of files with several, from 0; default that of the run.
        device: "auto", "cpu", "cuda" or "mps".

    Raises:
        UsageError, CheckpointError: an argument that cannot be used.
    """
    check_packages()
    from vitmed.commands.load import load
    from vitmed.commands.pacs.node import run_node
    from vitmed.commands.predict import preprocessing_of
    from vitmed.training.open_model import open_model

    ui, path = ui or Ui(), Path(model)
    beside = path if path.is_dir() else path.parent
    settings = NodeSettings(
        spool=beside / "dicom-spool" if spool is None else Path(spool), to=to,
        output=None if output is None else Path(output),
        port=PORT if port is None and watch is None else port, ae=ae, host=host, allow=tuple(allow),
        watch=None if watch is None else Path(watch),
        modality=tuple(modality), body_part=tuple(body_part), view=tuple(view),
    )  # fmt: skip
    saved = open_model(path)
    run_node(load(replace(saved, preprocessing=preprocessing_of(saved, frame)), device=device), settings, ui)
