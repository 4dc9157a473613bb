"""The trained network for timm or transformers, with preprocessing and a card: in a folder, or on a model hub."""

from __future__ import annotations

import contextlib
import json
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitmed.core.base_models import Frozen
from vitmed.core.errors import GateError, UsageError, unknown_key
from vitmed.core.files import whole_folder
from vitmed.core.messages import bar, say, warn
from vitmed.core.text import counted, first_line
from vitmed.data.thread_batches import check_readable
from vitmed.deploy.export_onnx import quiet, validation_images
from vitmed.deploy.weight_forms import CONFIG, FORMS, SAFETENSORS, WEIGHTS, Form
from vitmed.inference.checkpoint import Checkpoint
from vitmed.inference.onnx_model import KEY, about_model
from vitmed.inference.predict import TorchNetwork
from vitmed.models.hardware import FULL_FP32
from vitmed.models.sizes import resolved
from vitmed.models.weights.catalogue import stops_sharing, terms_of
from vitmed.report.headline import known_evaluation
from vitmed.report.model_card import weights_card

CARD = "README.md"
MOST_APART = 1e-4  # of two logits, as a share of the largest logit or of 1
USUAL = "transformers"


class WeightsGate(Frozen):
    """The logits of the other library beside ours, on validation images.

    Attributes:
        library: with its version; images: how many were compared; 0 where the library is not installed.
        largest: the largest difference of two logits; relative: as a share of the largest logit, or of 1.
    """

    library: str
    images: int = 0
    largest: float = 0.0
    relative: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether no logit differs by more than `MOST_APART`."""
        return self.relative <= MOST_APART

    @property
    def in_words(self) -> str:
        """What was found, as a clause."""
        if not self.images:
            return f"its logits were not compared, since {self.library} is not installed"
        images = counted(self.images, "validation image")
        return f"on {images} the logits of {self.library} differ by {self.largest:.1g} at most"


class WrittenWeights(NamedTuple):
    """A folder for another library, or its weight file alone."""

    path: Path
    size: int  # bytes
    gate: WeightsGate
    form: Form


def check_form(saved: Checkpoint, name: str) -> type[Form]:
    """The form of that name. Raises UsageError if there is none, or if its library lacks a part of the model."""
    if name not in FORMS:
        raise unknown_key("form", name, FORMS)
    kind, views = saved.splits.target.kind, saved.config.augment.views
    if kind == "number":
        part: str | None = "a head that predicts a number"
    elif views != "one":
        part = f"several views of an image ({views})"
    elif saved.preprocessing.normalize == "image":
        part = "each image normalised by itself"
    else:
        part = FORMS[name].lacks(fields := resolved(saved.config.model).model_dump())
        other = next((form for form in FORMS if FORMS[form].lacks(fields) is None), None)
        if part and other:
            raise UsageError(f"{saved.path}: the model needs {part}, which {name} lacks", f"--form {other}")
    if part:
        fix = "vitmed export RUN --to model.onnx writes every model"
        if "stem" in part:
            fix += "; for timm and transformers: vitmed train --stem patch"
        raise UsageError(f"{saved.path}: the model needs {part}, which vitmed cannot write for {name}", fix)
    return FORMS[name]


def write_weights(
    saved: Checkpoint,
    target: Path,
    name: str,
    root: Path,
    address: str | None = None,
    alone: bool = False,
) -> WrittenWeights:
    """Write a model for another library, and compare its logits there with ours if the library is installed.

    Args:
        target: a new folder; a name with .safetensors: the weights alone.
        name: of the form, a key of `FORMS`; root: the data folder.
        address: by which the library finds the folder; default `Form.local`.
        alone: whether the weights will leave the folder: then their metadata repeat config.json.

    Raises:
        GateError: the logits differ, or the library cannot load the folder; nothing is written.
        DataError: a validation image cannot be read.
        UsageError: the library lacks a part of the model; a package is missing; the folder cannot be written.
    """
    saved.chosen_policy()
    form = check_form(saved, name)
    if target.suffix == SAFETENSORS:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as place:
            written = write_weights(saved, Path(place) / "model", name, root, alone=True)
            (written.path / WEIGHTS).replace(target)
        return WrittenWeights(target, target.stat().st_size, written.gate, written.form)
    with whole_folder(target) as folder:
        state, several = saved.model().state_dict(), saved.splits.target.kind == "findings"
        made = form(saved.config.model, state, saved.preprocessing, saved.classes, several=several)
        gate = WeightsGate(library=name)
        _write(made, saved, folder, alone)
        with contextlib.suppress(ImportError):
            gate = compare_weights(saved, made, folder, target, root)
        if not gate.passed:
            problem = f"{target}: not written, since {gate.in_words}"
            raise GateError(problem, f"at most {MOST_APART:g} of the largest logit is expected; please report it")
        test = known_evaluation(saved, "test")
        address = address or form.local.format(target.name)
        compared = gate.in_words[0].upper() + gate.in_words[1:]
        card = weights_card(saved, name, target.name, address, compared, None if test is None else test.metrics)
        (folder / CARD).write_text(card, encoding="utf-8")
    return WrittenWeights(target, sum(file.stat().st_size for file in target.iterdir()), gate, made)


def _write(made: Form, saved: Checkpoint, folder: Path, alone: bool) -> None:
    """Write tensors and configuration, which under `KEY` keeps calibration, operating point and licence; nothing of
    single images. One entry of metadata, as safetensors writes several in a random order."""
    try:
        from safetensors.torch import save
    except ImportError:
        raise UsageError(f"{WEIGHTS}: needs one more package", "pip install 'vitmed[weights]'") from None
    files = made.files
    about = about_model(saved)
    about["policy"] = {key: value for key, value in about["policy"].items() if key not in ("ood_score", "other_scores")}
    files[CONFIG] |= {KEY: about}
    for file, fields in files.items():
        (folder / file).write_text(json.dumps(fields, indent=2, ensure_ascii=False), encoding="utf-8")
    state = {name: tensor.contiguous() for name, tensor in made.state.items()}
    metadata = {"config": json.dumps(files[CONFIG])} if alone else {"format": "pt"}
    (folder / WEIGHTS).write_bytes(save(state, metadata))  # its own `save_file` gives a full disk another error


@FULL_FP32
def compare_weights(saved: Checkpoint, made: Form, folder: Path, target: Path, root: Path) -> WeightsGate:
    """The other library's logits beside ours, on validation images as our preprocessing prepares them.

    Raises:
        ImportError: the library is not installed.
        GateError: it cannot load the folder.
    """
    how, chosen = saved.preprocessing, validation_images(saved)
    try:
        with quiet():
            network = made.load(folder)
    except ImportError:
        raise
    except Exception as error:  # of the library, which has errors of its own
        problem = f"{target}: not written, since {made.library} cannot load it ({first_line(error)})"
        raise GateError(problem, "please report it, with the version of the library") from None
    found: list[Tensor] = []

    def read(index: int) -> Any:
        return how.read(root / chosen[index].path)

    with bar("comparing: checkpoint") as advance:
        ours = TorchNetwork(saved, None, torch.device("cpu")).outputs(read, len(chosen), advance)
    check_readable(ours.problems)
    with bar(f"comparing: {made.library}") as advance, torch.inference_mode():
        for index in range(len(chosen)):
            found.append(made.logits(network(how.normalise(torch.tensor(read(index))[None]))))
            advance(index + 1, len(chosen))
    exact = torch.from_numpy(ours.logits)
    largest = float((torch.cat(found) - exact).abs().max())
    return WeightsGate(
        library=f"{made.library} {version(made.library)}",
        images=len(chosen),
        largest=largest,
        relative=largest / max(1.0, float(exact.abs().max())),
    )


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
