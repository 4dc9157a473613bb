"""A trained network to a model hub, as it is exported for timm or transformers."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitmed.core.errors import UsageError
from vitmed.core.messages import say, warn
from vitmed.core.text import first_line
from vitmed.deploy.export_weights import WeightsGate, check_form, write_weights
from vitmed.inference.checkpoint import Checkpoint
from vitmed.models.weights.catalogue import stops_sharing, terms_of


@dataclass(frozen=True)
class Pushed:
    """Where a model lies: the address of its page, its files, whether only its owner sees it, and the comparison."""

    url: str
    files: tuple[str, ...]
    private: bool
    gate: WeightsGate


def check_licence(licence: str | None, weights: str | None, may_share: bool) -> None:
    """State the terms of the starting weights. Raises UsageError if their licence may forbid sharing the model."""
    why = stops_sharing(licence)
    if why is not None and not may_share:
        raise UsageError(f"the licence of the starting weights, {licence}, {why}", "read it; if you may: --may-share")
    if weights is not None and licence is None:
        warn(f"the licence of the starting weights, {Path(weights).name}, is not known; read it before you share")
    if (terms := terms_of(licence)) is not None:
        warn(terms)


def _refused(repository: str, error: Any) -> UsageError:
    """What the hub or the connection said, and what helps."""
    fix = "hf auth login, or set HF_TOKEN to a token that may write; behind a mirror set HF_ENDPOINT"
    return UsageError(f"{repository}: nothing was uploaded ({first_line(error)})", fix)


def upload(saved: Checkpoint, repository: str, form: str, data: str | Path | None, public: bool) -> Pushed:
    """Write a model for another library, and upload it with its card.

    Args:
        repository: owner/name; it is made if it is not there. form: "transformers" or "timm".
        data: the data folder of the run, where it has moved; the logits of its validation images are compared.
        public: everybody may see the repository.

    Raises:
        UsageError: everybody can see the repository and `public` is false, or the hub refuses.
        GateError: the library's logits differ from ours; nothing is uploaded. DataError: the data folder is missing.
    """
    import huggingface_hub as hub
    from huggingface_hub.errors import RepositoryNotFoundError

    address = check_form(saved, form).hub.format(repository)
    api = hub.HfApi()
    with tempfile.TemporaryDirectory() as place:
        try:
            seen = not api.repo_info(repository).private
        except RepositoryNotFoundError:
            seen = public
        except Exception as error:  # of the hub, its HTTP library or the system; they differ between versions
            raise _refused(repository, error) from None
        if seen and not public:
            raise UsageError(f"{repository}: everybody can see this repository", "--public, or another name")
        root = saved.data_root() if data is None else Path(data)
        folder = Path(place) / repository.partition("/")[2]
        written = write_weights(saved, folder, form, root, address)
        say(f"{repository}: {written.gate.in_words}")
        files = tuple(sorted(file.name for file in folder.iterdir()))
        try:
            url = str(api.create_repo(repository, private=not public, exist_ok=True))
            api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload a model of vitmed")
        except Exception as error:
            raise _refused(repository, error) from None
    who = "everybody" if seen else "only its owner"
    say(f"{url}: {', '.join(files)}; {who} can see it; load it with\n{written.form.line(address)}")
    return Pushed(url, files, not seen, written.gate)
