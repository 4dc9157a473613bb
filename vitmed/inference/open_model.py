"""Opening what `vitmed train` and `vitmed export` wrote, and choosing what runs it; torch only for a checkpoint."""

from __future__ import annotations

from pathlib import Path

from vitmed.core.config import EvaluateConfig
from vitmed.core.messages import say
from vitmed.core.places import newest_run
from vitmed.decisions.evaluation_folder import validation_of
from vitmed.decisions.operating_points import asked_point
from vitmed.decisions.policy import DecisionPolicy, choose_policy, policy_settings
from vitmed.inference.ensemble import Ensemble, EnsembleNetwork, ensemble_file, load_ensemble
from vitmed.inference.onnx_model import ONNX, OnnxModel, OnnxNetwork, load_onnx
from vitmed.inference.saved_model import Network, SavedModel


def open_model(path: str | Path) -> SavedModel:
    """Read a checkpoint, the best.pt of a run folder, an exported .onnx file, or an ensemble.

    Raises:
        CheckpointError: missing, not a model of vitmed, damaged, or with code in it.
    """
    if Path(path).suffix == ONNX:
        return load_onnx(Path(path))
    if (file := ensemble_file(Path(path))) is not None:
        return load_ensemble(file)
    from vitmed.inference.checkpoint import load_checkpoint

    return load_checkpoint(path)


def open_network(saved: SavedModel, policy: DecisionPolicy | None, device: str, precision: str) -> Network:
    """What runs a model here.

    Args:
        policy: the one that is applied; None leaves the OOD scores out.
        device: "auto", "cpu", "cuda" or "mps"; precision: "fp32", "auto" or "bf16", as in `predict`.

    Raises:
        UsageError: this machine, or an exported model, has no such device or precision.
    """
    if isinstance(saved, OnnxModel):
        return OnnxNetwork(saved, device, precision)
    if isinstance(saved, Ensemble):
        known = [open_network(one, one.policy, device, precision) for one in saved.members]
        return EnsembleNetwork(saved, known)
    from vitmed.inference.torch_network import open_torch_network

    return open_torch_network(saved, policy, device, precision)


def find_checkpoint(checkpoint: str | Path | SavedModel | None, runs: str | Path) -> SavedModel:
    """The named checkpoint, or the best one of the newest run; a message then says which."""
    if isinstance(checkpoint, SavedModel):
        return checkpoint
    if checkpoint is not None:
        return open_model(checkpoint)
    newest = newest_run(runs)
    saved = open_model(newest.best)
    say(f"checkpoint {newest.best} (the newest run; --checkpoint names another)")
    return saved


def policy_for(saved: SavedModel, config: EvaluateConfig) -> DecisionPolicy | None:
    """The policy of a model, or one newly chosen on the validation of its run if the configuration differs.

    Raises UsageError if the predictions of this model for validation are missing.
    """
    asked_point(config, saved.splits.choices)
    if policy_settings(config) == policy_settings(saved.config.evaluate):
        return saved.policy
    validation = validation_of(saved.path, saved.weights_hash, saved.policy, saved.config.data.positive)
    ood_score = saved.policy.ood_score if saved.policy else None
    return choose_policy(validation, config, ood_score, saved.weights_hash)
