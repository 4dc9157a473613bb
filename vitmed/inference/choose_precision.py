"""The arithmetic of predictions: fp32, or 16-bit floats where they are faster and change no decision."""

from __future__ import annotations

from dataclasses import replace

import torch

from vitmed.core.messages import say, warn
from vitmed.decisions.policy import DecisionPolicy
from vitmed.inference.checkpoint import Checkpoint
from vitmed.inference.predict import FP32
from vitmed.inference.saved_model import check_precision
from vitmed.models.hardware import Precision, pick_precision

UNKNOWN = "no comparison of the two is known for this checkpoint, decision policy and kind of device"


def choose_precision(asked: str, saved: Checkpoint, policy: DecisionPolicy | None, device: torch.device) -> Precision:
    """The precision that is asked for. Unless it is fp32, a line says what it is known to change.

    Args:
        asked: one of `PRECISIONS`; auto takes the fast one of the device if the comparison after training accepted it.
        policy: the one that is applied; the comparison holds for the policy of the checkpoint.

    Returns:
        its `reason` is what is known.
    """
    check_precision(asked)
    if asked == "fp32":
        return FP32
    fast = pick_precision("auto", device)
    wanted = fast if asked == "auto" else pick_precision(asked, device)
    known = saved.reduced_precision if policy is saved.policy else None
    if known is None or (known.precision, known.device) != (wanted.name, device.type):
        accepted, why = False, UNKNOWN
    else:
        accepted, why = known.accepted, known.in_words
    if asked == "auto" and not accepted:
        say(f"fp32, not {wanted.name}: {why}" if fast.mixed else f"fp32: {fast.reason}")
        return FP32
    if not fast.mixed:
        warn(f"--precision {asked}: {fast.reason}, so it is slower than fp32")
    (say if accepted else warn)(f"{wanted.name} instead of fp32: {why}")
    return replace(wanted, reason=why)
