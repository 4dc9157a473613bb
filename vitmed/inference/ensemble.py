"""`Ensemble`: several checkpoints that answer as one model. Its file, ensemble.json, names them beside the policy."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitmed.core.errors import CheckpointError, UsageError
from vitmed.core.files import json_of, write_json
from vitmed.core.load_config import with_values
from vitmed.core.run_folder import find_path, store_path
from vitmed.core.text import NOTICE, counted
from vitmed.core.upgrade import policy_of_0_2
from vitmed.data.samples import Splits
from vitmed.data.thread_batches import Progress
from vitmed.decisions.policy import policy_of
from vitmed.imaging.preprocessing import JointPreprocessing, joint
from vitmed.inference import saved_model
from vitmed.inference.saved_model import Batches, Hashes, Network, Read, SavedModel
from vitmed.metrics.ensembles import averaged
from vitmed.metrics.predictions_csv import OOD_SCORE

FORMAT, VERSION = "vitmed ensemble", 1
MEAN = "the mean of "  # begins what a report says of an ensemble
AT_ONCE = 64  # images that all members predict before the next are read
AGAIN = "make it again: vitmed ensemble RUN RUN --output FOLDER"


@dataclass(frozen=True)
class Ensemble(SavedModel):
    """Several checkpoints as one model: the mean of their calibrated probabilities, or the mixture of their numbers."""

    members: tuple[SavedModel, ...] = ()
    shares: tuple[float, ...] = ()  # the weight of each member; they sum to 1
    readings: tuple[int, ...] = ()  # which of the readings of `preprocessing` each member takes
    chosen: dict[str, Any] = field(default_factory=dict)  # how they were chosen, and what that is known to cost

    def __post_init__(self) -> None:
        shares = " + ".join(f"{share:.3g}" for share in self.shares)
        facts = {
            "Model": f"{MEAN}{counted(len(self.members), 'model')} ({shares})",
            "Model choice": self.chosen.get("words", ""),
            "Seed": ", ".join(str(seed) for seed in dict.fromkeys(member.config.train.seed for member in self.members)),
            **self.chosen.get("facts", {}),
        }
        object.__setattr__(self, "facts", facts)  # frozen; `replace` makes it anew


def join_members(
    path: Path, members: Sequence[SavedModel], shares: Sequence[float], splits: Splits, hashes: Hashes, chosen: Any
) -> Ensemble:
    """An ensemble that is or will be at `path`, without a policy; `splits` and `hashes` are of all images that made the
    members, and of the test that none of them saw. Raises UsageError for members that cannot answer together."""
    first = members[0]
    for other in members[1:]:
        same = (sorted(other.classes), other.splits.target.kind), (sorted(first.classes), first.splits.target.kind)
        if same[0] != same[1]:
            problem = f"{other.path}: {', '.join(other.classes)}; {first.path}: {', '.join(first.classes)}"
            raise UsageError(f"members of different classes: {problem}", "join runs of the same classes")
    preprocessing, readings = joint([member.preprocessing for member in members])
    seen = tuple(dict.fromkeys(digest for member in members for digest in member.seen))
    prints: dict[str, str] = {}
    for member in members:
        for name, part in member.fingerprints.items():
            prints |= {sample.path: text for sample, text in zip(member.splits.samples[name], part, strict=True)}
    fingerprints = {
        name: [prints.get(sample.path, "") for sample in samples]
        for name, samples in splits.samples.items()
        if name != "test" and prints
    }
    config, models = first.config, [member.config.model for member in members]
    licences = list(dict.fromkeys(model.licence for model in models if model.licence))
    if licences and licences != [config.model.licence]:  # all of them hold: an expression of SPDX
        terms = "; ".join(dict.fromkeys(model.terms for model in models if model.terms)) or None
        config = with_values(config, {"model.licence": " AND ".join(licences), "model.terms": terms})
    about = path, config, first.classes, preprocessing, splits, hashes, dict[str, Any](), first.versions, seen, None
    joined = tuple(members), tuple(shares), readings, chosen
    return Ensemble(*about, hash_of_members(members, shares), fingerprints, *joined)


def hash_of_members(
    members: Sequence[SavedModel], shares: Sequence[float], written: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> str:
    """The sha256 of the weights of all members with their policies, as a version has `written` them, and their
    shares."""
    stated = [
        [member.weights_hash, share, None if member.policy is None else written(member.policy.to_json())]
        for member, share in zip(members, shares, strict=True)
    ]
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()


def save_ensemble(ensemble: Ensemble) -> None:
    """Write ensemble.json; the paths of the members are relative to its folder."""
    folder = ensemble.path.parent
    members = [
        {"path": store_path(member.path, folder), "weights_hash": member.weights_hash, "share": share}
        for member, share in zip(ensemble.members, ensemble.shares, strict=True)
    ]
    data = saved_model.membership_of(ensemble.splits, ensemble.hashes, ensemble.path)
    policy = None if ensemble.policy is None else ensemble.policy.to_json()
    content = {"format": FORMAT, "version": VERSION, "notice": NOTICE, "members": members}
    content |= {"classes": list(ensemble.classes), "chosen": ensemble.chosen, "policy": policy}
    content |= {"weights_hash": ensemble.weights_hash, "data": {**data, "seen": list(ensemble.seen)}}
    write_json(ensemble.path, content)


def load_ensemble(path: Path) -> Ensemble:
    """Read an ensemble.json and its members. Raises CheckpointError: damaged, or a member is missing or has changed."""
    from vitmed.inference.checkpoint import load_checkpoint

    with saved_model.damage(path, AGAIN):
        content = json_of(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"{str(content['format'])[:40]} of version {str(content['version'])[:20]}")
        splits, hashes = saved_model.read_membership(path, content)
        stated = [(find_path(str(row["path"]), path.parent), str(row["weights_hash"])) for row in content["members"]]
        shares = [float(row["share"]) for row in content["members"]]
        policy = None if content["policy"] is None else policy_of(content["policy"], splits.classes)
        facts = {name: str(text) for name, text in content["chosen"].get("facts", {}).items()}
        chosen = {**content["chosen"], "facts": facts}
    members = []
    for file, stated_hash in stated:
        if not file.is_file():
            raise CheckpointError(f"{path}: its member {file} is missing", "put it back, or move the whole folder")
        members.append(load_checkpoint(file))
        if members[-1].weights_hash != stated_hash:
            raise CheckpointError(f"{path}: its member {file} holds other weights than before", AGAIN)
    try:
        ensemble = join_members(path, members, shares, splits, hashes, chosen)
    except UsageError as error:
        raise CheckpointError(f"{path}: {error.problem}", AGAIN) from None
    of_0_2 = hash_of_members(members, shares, policy_of_0_2)
    if content["weights_hash"] not in (ensemble.weights_hash, of_0_2):
        raise CheckpointError(f"{path}: a member has another decision policy than before", AGAIN)
    seen = tuple(content["data"].get("seen", ()))
    return replace(ensemble, policy=policy, weights_hash=content["weights_hash"], seen=seen)


class EnsembleNetwork(Network):
    """Runs the networks of the members of an ensemble, one after the other on every batch."""

    saved: Ensemble

    def __init__(self, saved: Ensemble, networks: Sequence[Network]):
        self.saved, self.networks = saved, tuple(networks)
        self.batch, self.scored = AT_ONCE, all(network.scored for network in networks)
        self.device = f"{networks[0].device}, {counted(len(networks), 'model')}"
        precisions = tuple(dict.fromkeys(network.precision for network in networks))
        self.precision = precisions[0] if len(precisions) == 1 else "mixed"
        self.reason = next((network.reason for network in networks if network.reason), "")

    def _run(self, read: Read, count: int, progress: Progress, also_features: bool) -> Batches:
        if also_features:
            raise UsageError(f"{self.saved.path}: an ensemble has no features", "name the best.pt of a member")
        return saved_model.run_batches(read, count, AT_ONCE, self._mean, progress)

    def _mean(self, squares: np.ndarray) -> list[np.ndarray]:
        """Of a batch the logits (B, K) of the mean of what the members decide by their policies, and the mean of their
        OOD scores (B,), where every member has one."""
        decided, scores = list[Any](), list[np.ndarray]()
        names = tuple(map(str, range(len(squares))))
        for network, member, number in zip(self.networks, self.saved.members, self.saved.readings, strict=True):
            how, reading = self.saved.preprocessing, squares
            if isinstance(how, JointPreprocessing):
                reading = how.reading(squares, number)
            outputs = network.outputs(reading.__getitem__, len(reading))
            predictions: Any = member.decided(member.predictions(names, outputs.logits, outputs.columns))
            decided.append(predictions.like(decided[0]) if decided else predictions)
            if self.scored:
                scores.append(np.array(outputs.columns[OOD_SCORE], dtype=np.float64))
        joined = [averaged(decided, self.saved.shares).logits]
        if self.scored:
            joined.append(np.einsum("m,mb->b", np.array(self.saved.shares), np.stack(scores)))
        return joined
