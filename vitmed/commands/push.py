"""`vitmed push`: a checkpoint -> the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from vitmed.core.downloads import is_offline
from vitmed.core.errors import UsageError
from vitmed.core.options import FIRST, FORM, Argument, Offline, Option, RunFile
from vitmed.deploy.export_weights import USUAL, Pushed, check_form, check_licence, upload
from vitmed.inference.checkpoint import load_checkpoint

REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # OWNER/NAME


def push(
    checkpoint: RunFile,
    repository: Annotated[str, Argument("Where to, as in lab/first; made if it is not there.", "OWNER/NAME")],
    *,
    form: Annotated[str, FORM] = USUAL,
    data: Annotated[
        Path | str | None, Option("Data folder of the run, where it has moved; nothing of it is uploaded.", panel=FIRST)
    ] = None,
    public: Annotated[bool, Option("Everybody may see it; default: only its owner.", panel=FIRST)] = False,
    may_share: Annotated[bool, Option("You may, whatever the licence of the starting weights.", panel=FIRST)] = False,
    offline: Offline = False,
) -> Pushed:
    """Upload a model to the Hugging Face hub: weights, preprocessing and card; no split, no patient, no path.

    huggingface_hub finds the token (HF_TOKEN, or `hf auth login`) and the hub (HF_ENDPOINT). The repository is made,
    private, if it is not there. The library's logits are compared with ours on validation images in `data`; none is
    uploaded.

    Raises:
        UsageError: offline, no such form, no token, a licence against it, or the hub refuses.
        GateError: the library's logits differ from ours; nothing is uploaded.
        CheckpointError, DataError: as for `export`.
    """
    if not REPOSITORY.fullmatch(repository):
        raise UsageError(f"{repository}: not the name of a repository", "owner/name, as in lab/first")
    if is_offline(offline):
        raise UsageError(f"{repository}: vitmed is offline, and a push needs the hub", "vitmed export RUN --to FOLDER")
    try:
        import huggingface_hub  # noqa: F401
    except ImportError:
        raise UsageError(f"{repository}: the hub needs one more package", "pip install 'vitmed[hub]'") from None
    saved = load_checkpoint(checkpoint)
    check_form(saved, form)
    check_licence(saved.config.model.licence, saved.config.model.weights, may_share)
    return upload(saved, repository, form, data, public)
