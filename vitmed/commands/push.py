"""`vitmed push`: a trained network to a model hub, as `vitmed export` writes it for timm or transformers."""

from __future__ import annotations

import re
from pathlib import Path

from vitmed.core.downloads import is_offline
from vitmed.core.errors import UsageError
from vitmed.deploy.export_weights import USUAL, check_form
from vitmed.deploy.push import Pushed, check_licence, upload
from vitmed.inference.checkpoint import load_checkpoint

REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def push(
    checkpoint: str | Path,
    repository: str,
    *,
    form: str = USUAL,
    data: str | Path | None = None,
    public: bool = False,
    may_share: bool = False,
    offline: bool = False,
) -> Pushed:
    """Upload a model to the Hugging Face hub: weights, preprocessing and card; no split, no patient, no path.

    huggingface_hub finds the token (HF_TOKEN, or `hf auth login`) and the hub (HF_ENDPOINT).

    Args:
        checkpoint: a run folder or its best.pt, with a decision policy.
        repository: owner/name; it is made, private, if it is not there.
        form: "transformers" or "timm".
        data: the data folder of the run, where it has moved; its validation images are compared, none is uploaded.
        public: everybody may see the repository.
        may_share: share the model although the licence of its starting weights may forbid it.
        offline: open no connection, so nothing is uploaded; see also `downloads.is_offline`.

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
