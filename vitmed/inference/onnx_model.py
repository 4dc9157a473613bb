"""`OnnxModel`: a model as `vitmed export` writes it, read and run by ONNX Runtime, without torch.

The file is a complete program: any ONNX runtime turns the pixels of an image into the decision (`exported_graph`). What
vitmed needs besides, to read images and to evaluate, lies as JSON under the key `KEY` of the file's metadata.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitmed import __version__
from vitmed.core import upgrade
from vitmed.core.base_models import Target
from vitmed.core.config import Config
from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.files import json_of
from vitmed.core.load_config import build_config, without_places
from vitmed.core.process import cores
from vitmed.core.text import NOTICE, counted, first_line
from vitmed.data.samples import Splits
from vitmed.data.thread_batches import Progress
from vitmed.decisions.policy import policy_of
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference import saved_model
from vitmed.inference.saved_model import Batches, Network, Read, SavedModel

ONNX = ".onnx"
KEY, FORMAT, VERSION = "vitmed", "vitmed exported model", 1
QUANTISED = "onnx.quantize"  # what ONNX Runtime's quantisation names itself, which changes a file on purpose
DIGEST, UNSIGNED = "vitmed_sha256", "0" * 64  # key of the SHA-256 of the file with this in the place of it
IMAGES, LOGITS, SCORES = "images", "logits", "ood_score"  # input and outputs of the graph that vitmed reads
BATCH = 8  # images at once, at most
AGAIN = "export it again: vitmed export RUN --to FILE.onnx"
NEEDED = "ONNX files need one more package"
FIX = "pip install 'vitmed[export]'"


@dataclass(frozen=True)
class OnnxModel(SavedModel):
    """An exported model as read from its file."""

    precision: str = "fp32"  # or "int8", of a file that was quantised
    gate: dict[str, Any] = field(default_factory=dict)  # what the export compared, the fields of `ExportGate`
    session: Any = field(default=None, repr=False, compare=False)  # an `onnxruntime.InferenceSession`

    @property
    def exact(self) -> str:
        """Its only precision."""
        return self.precision

    def data_root(self, fix: str = "name a folder: --data DIR") -> Path:
        """Raises UsageError: the file names no images."""
        raise UsageError(f"{self.path}: an exported model knows no images", fix)


def open_session(path: Path) -> Any:
    """An `onnxruntime.InferenceSession` of a file, on the CPU. Raises UsageError: onnxruntime is not installed;
    CheckpointError: it cannot run the file."""
    try:
        import onnxruntime
    except ImportError:
        raise UsageError(f"{path}: {NEEDED}", FIX) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has one class of its own for each status
        raise CheckpointError(f"{path}: ONNX Runtime cannot run it ({first_line(error)})", AGAIN) from None


class OnnxNetwork(Network):
    """The network of an exported model; ONNX Runtime runs it on the CPU. Raises UsageError for a device that is not
    "auto" or "cpu", and a precision that is not "auto" or the file's."""

    saved: OnnxModel

    def __init__(self, saved: OnnxModel, device: str, precision: str):
        if device not in ("auto", "cpu"):
            raise UsageError(f"--device {device}: vitmed runs exported models on the CPU", "use --device auto")
        if precision not in ("auto", saved.precision):
            raise UsageError(f"--precision {precision}: {saved.path} computes in {saved.precision}", "leave it out")
        self.saved, self.session = saved, saved.session
        self.scored = SCORES in [output.name for output in self.session.get_outputs()]
        self.device = f"ONNX Runtime on the CPU, {counted(cores(), 'thread')}"
        self.batch, self.precision = BATCH, saved.precision
        self.reason = "the exported model was quantised and may decide otherwise" if saved.precision != "fp32" else ""

    def _run(self, read: Read, count: int, progress: Progress, also_features: bool) -> Batches:
        if also_features:
            raise UsageError(f"{self.saved.path}: an exported model keeps no features", "name the best.pt of the run")
        wanted = [LOGITS, SCORES] if self.scored else [LOGITS]
        return saved_model.run_batches(
            read, count, self.batch, lambda images: self.session.run(wanted, {IMAGES: images}), progress
        )


def about_model(saved: SavedModel) -> dict[str, Any]:
    """What every exported form of a model states of it: plain types, and nothing of single images."""
    model, target = saved.config.model, saved.splits.target.model_dump()
    about: dict[str, Any] = {"notice": NOTICE, "classes": list(saved.classes), "target": target}
    about |= {"preprocessing": saved.preprocessing.to_dict(), "policy": saved.chosen_policy().to_json()}
    about |= {"weights_sha256": saved.weights_hash, "licence": model.licence, "terms": model.terms}
    return about | {"versions": {**saved.versions, "vitmed of the export": __version__}}


def describe_export(saved: SavedModel, gate: Mapping[str, Any]) -> str:
    """The JSON of a file that may leave the machine: no path, no name of a patient or an image. `gate` is what was
    compared."""
    config = without_places(saved.config).model_dump(mode="json")
    content = {"format": FORMAT, "version": VERSION, **about_model(saved), "bins": list(saved.splits.bins)}
    # of an ensemble, without the names of its runs
    facts = saved.facts and {**saved.facts, "Model choice": "each model as its run chose it"}
    content |= {"precision": "fp32", "gate": dict(gate), "config": config, "record": saved.record}
    content |= {"images_sha256": saved.hashes, "seen_sha256": list(saved.seen), "fingerprints": saved.fingerprints}
    return json.dumps(content | {"facts": facts, "made": saved.splits.made, "patients": saved.splits.patients})


def file_digest(content: bytes, digest: str = UNSIGNED) -> str:
    """The SHA-256 of an exported file, computed as if it did not state one yet."""
    view, at = memoryview(content), max(0, content.find(digest.encode()))  # a view: the file may have gigabytes
    whole = hashlib.sha256(view[:at])
    whole.update(UNSIGNED.encode())
    whole.update(view[at + len(digest) :])
    return whole.hexdigest()


def load_onnx(path: Path) -> OnnxModel:
    """Read an exported model; the file holds no code but that of the graph. Raises CheckpointError: missing, not
    exported by vitmed, of another version, or damaged. UsageError: onnxruntime is not installed."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file", "name a model that `vitmed export` wrote")
    session = open_session(path)
    meta = session.get_modelmeta()
    text, digest = meta.custom_metadata_map.get(KEY, ""), meta.custom_metadata_map.get(DIGEST)  # older files have none
    if digest is not None and meta.producer_name != QUANTISED and file_digest(path.read_bytes(), digest) != digest:
        raise CheckpointError(f"{path}: damaged: its SHA-256 is not the one that it states", AGAIN)
    with saved_model.damage(path, AGAIN):
        content = json_of(text) if text else {}
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise CheckpointError("not exported by vitmed", "name a model that `vitmed export` wrote")
        if content.get("version") != VERSION:
            problem = f"export version {str(content.get('version'))[:20]}, this vitmed reads {VERSION}"
            raise CheckpointError(problem, "use the vitmed that wrote it")
        classes, bins = tuple(content["classes"]), tuple(content["bins"])
        saved_model.expect("classes", classes, str)
        if len(set(classes)) != len(classes):
            raise ValueError(f"classes {classes}")
        saved_model.expect("weights_sha256 and precision", (content["weights_sha256"], content["precision"]), str)
        config = build_config(upgrade.settings(content["config"]), Config)
        how, stated = Preprocessing.of(config), dict(content["preprocessing"])
        stated |= {name: tuple(stated[name]) for name in ("mean", "std", "window") if isinstance(stated[name], list)}
        if Preprocessing(**stated) != how:
            raise ValueError(f"preprocessing {stated}")
        target = Target.model_validate(content["target"])
        made, patients = dict(content["made"]), content["patients"]
        splits = Splits(path, classes, {}, made, patients=patients, target=target, bins=bins)
        digests = (content["images_sha256"], content["fingerprints"])
        hashes, fingerprints = ({name: list(part) for name, part in each.items()} for each in digests)
        record, versions, gate = (dict(content[key]) for key in ("record", "versions", "gate"))
        seen, policy = tuple(content["seen_sha256"]), policy_of(content["policy"], classes)
        facts = dict(content.get("facts", {}))  # of vitmed 0.2.0: none
        about = path, config, classes, how, splits, hashes, record, versions, seen, policy, content["weights_sha256"]
        precision = "int8" if meta.producer_name == QUANTISED else content["precision"]
        return OnnxModel(*about, fingerprints, precision, gate, session, facts=facts)
