"""Starting from weights that somebody trained: safe reading, exact accounting.

This version takes state dicts with timm's parameter names (timm, DeiT, MAE, DINO, and vitmed's own
checkpoints) whose shapes fit.
"""

from __future__ import annotations

import pickle
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitmed.errors import CheckpointError

HEAD = ("head.weight", "head.bias")
INNER = ("weights", "model", "state_dict")  # where a training script keeps the state dict


@dataclass(frozen=True)
class LoadReport:
    """What a weight file gave, by parameter name: taken over, newly initialised, not used."""

    file: str
    loaded: tuple[str, ...]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for weights.json."""
        return asdict(self)

    def __str__(self) -> str:
        fresh = ", ".join(self.fresh) or "nothing"
        return f"weights {self.file}: {len(self.loaded)} tensors loaded, fresh: {fresh}, unused: {len(self.unused)}"


def safe_load(path: Path) -> Any:
    """Read a torch file with `weights_only=True`: tensors and plain types, nothing that could run.

    Raises:
        CheckpointError: missing, damaged, or with code in it.
    """
    if not path.is_file():
        what = "is a folder, expected a file such as best.pt" if path.is_dir() else "no such file"
        raise CheckpointError(f"{path}: {what}", "name a checkpoint or weight file")
    with path.open("rb") as stream:
        magic = stream.read(2)
    if magic not in (b"PK", b"\x80\x02"):  # torch's zip files, and what it wrote before
        raise CheckpointError(f"{path}: not a checkpoint or weight file", "name the .pt file of a run, or a .pth file")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path}: refused: it holds more than tensors and plain values, or is damaged; loading it could run code",
            "use a file that vitmed wrote, or a plain state dict",
        ) from None
    except Exception as error:  # torch raises many kinds for damaged files
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path}: not a readable checkpoint ({reason})", "copy it again") from None


def load_pretrained(model: nn.Module, file: str | Path) -> LoadReport:
    """Copy the weights of a file into the model; only the head may stay fresh.

    Raises:
        CheckpointError: not a state dict, or one that does not fit; names the first tensors that differ.
    """
    file = Path(file)
    state = safe_load(file)
    for key in INNER:
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not any(isinstance(value, torch.Tensor) for value in state.values()):
        raise CheckpointError(f"{file}: holds no state dict", "give a file of named tensors")
    own = model.state_dict()
    fits = {k: v for k, v in state.items() if k in own and isinstance(v, torch.Tensor) and v.shape == own[k].shape}
    fresh = tuple(name for name in own if name not in fits)
    wrong = [name for name in fresh if name not in HEAD]
    if wrong:
        shapes = [
            f"{name}: model {tuple(own[name].shape)}, file "
            + (str(tuple(state[name].shape)) if isinstance(state.get(name), torch.Tensor) else "lacks it")
            for name in wrong[:5]
        ]
        raise CheckpointError(
            f"{file}: {len(wrong)} tensors beyond the head do not fit:\n  " + "\n  ".join(shapes),
            "set --model, --image-size, --patch-size and model.pool to those of the weights",
        )
    model.load_state_dict(fits, strict=False)  # what is missing was accounted for above
    unused = tuple(name for name in state if name not in fits)
    return LoadReport(file.name, tuple(fits), fresh, unused)
