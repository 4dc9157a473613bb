"""Everything that changes while training, and what of it a checkpoint keeps."""

from dataclasses import dataclass, field
from typing import Any, cast, get_type_hints

import torch
from pydantic import ConfigDict, NonNegativeFloat, NonNegativeInt, create_model
from torch import nn
from typing_extensions import TypedDict

from vitmed.core.config import Config, PretrainConfig
from vitmed.models.hardware import Precision
from vitmed.models.vit import ViT, checkpoint_gradients
from vitmed.training.optimiser import MovingAverage, adamw, ema_decay, steps_per_epoch
from vitmed.training.processes import Ranks, full, sharded_like

PARTS = ("model", "optimiser", "scaler", "ema")
Record = dict[str, Any]  # of a finished epoch: its line in metrics.jsonl
RUNNING = ("loss", "images", "seconds", "waited")  # of the current epoch


class _Epoch(TypedDict):
    """What a resumed run reads of a record; records hold more."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[misc]
    epoch: int
    step: int
    lr: float
    train_loss: float
    val_loss: float


@dataclass
class TrainState:
    """Everything that changes while training and that `--resume` needs."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    ema: MovingAverage | None
    network: nn.Module = field(init=False)  # as training calls the model; adds up the gradients of several ranks
    micro_batch: int | None = None  # images that a rank computes at once; None: all of its rows of a batch
    batches: int = 1  # of an epoch
    epoch: NonNegativeInt = 0  # finished epochs
    batch: NonNegativeInt = 0  # of the current epoch, finished
    step: NonNegativeInt = 0  # of the optimiser, finished
    best: float | None = None  # the monitor in the best epoch; None where it is undefined
    best_loss: float = float("inf")  # of validation, in the best epoch
    best_epoch: NonNegativeInt = 0  # the epoch stored in best.pt, from 1; with `choose: last` not always the best
    history: list[Record] = field(default_factory=list)  # of every finished epoch
    running: dict[str, float] = field(default_factory=lambda: dict.fromkeys(RUNNING, 0.0))  # sums over the current one
    spent: NonNegativeFloat = 0.0  # seconds that the commands of this run have taken
    share: NonNegativeFloat = 0.0  # of `train.time` that is used; 1 ends training; 0 without a limit

    def __post_init__(self) -> None:
        self.network = self.model

    @property
    def evaluated_model(self) -> ViT:
        """The network to validate and to store in best.pt: the moving average where there is one."""
        return cast(ViT, self.model if self.ema is None else self.ema.module)

    def state_dict(self) -> dict[str, Any]:
        """Plain types, for last.pt."""
        parts = {name: getattr(self, name) for name in PARTS}
        states = {name: part and full(part.state_dict()) for name, part in parts.items()}
        return states | {name: getattr(self, name) for name in POSITION}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Other content raises ValueError, KeyError, TypeError, RuntimeError or
        AttributeError."""
        position = _Position.model_validate({name: saved[name] for name in POSITION})
        if not position.best_epoch <= position.epoch == len(position.history):
            raise ValueError(f"{len(position.history)} records of {position.epoch} finished epochs")
        if missing := set(RUNNING) - position.running.keys():
            raise ValueError(f"running: lacks {', '.join(missing)}")
        owners = dict(enumerate(p for group in self.optimiser.param_groups for p in group["params"]))
        for name in PARTS:
            if (part := getattr(self, name)) is not None and (saved[name] or name != "scaler"):  # {}: was not fp16
                own = {"state": owners} if name == "optimiser" else part.state_dict()
                part.load_state_dict(sharded_like(saved[name], own))
        for parameter, state in self.optimiser.state.items():
            for name in ("exp_avg", "exp_avg_sq"):
                if state[name].shape != parameter.shape:
                    raise ValueError(f"optimiser: {name} is {tuple(state[name].shape)}, not {tuple(parameter.shape)}")
            if state["step"].shape != ():
                raise ValueError("optimiser: step is not a number")
        for name in POSITION:
            setattr(self, name, saved[name])

    def shard(self, config: Config | PretrainConfig, ranks: Ranks, device: torch.device) -> None:
        """Divide everything that grows with the network among the ranks: weights, gradients, moments, average."""
        saved = self.state_dict()
        for model in {id(model): model for model in (self.model, self.evaluated_model)}.values():
            ranks.fsdp(model, cast(ViT, model).blocks, device)
        self.optimiser = adamw(self.model, config)
        self.load_state_dict(saved)


POSITION = tuple(TrainState.__annotations__)[tuple(TrainState.__annotations__).index("epoch") :]  # what is no tensor
_HINTS = get_type_hints(TrainState, include_extras=True) | {"history": list[_Epoch]}
_FIELDS: Any = {name: (hint, ...) for name, hint in _HINTS.items()}
_Position: Any = create_model("_Position", __config__=ConfigDict(strict=True), **{k: _FIELDS[k] for k in POSITION})


def new_state(
    model: nn.Module, config: Config | PretrainConfig, batches: int, device: torch.device, precision: Precision
) -> TrainState:
    """A state before the first step; `model` lies on `device`, an epoch has `batches` batches."""
    train, steps = config.train, config.train.epochs * steps_per_epoch(batches, config.train.accumulate)
    ema = MovingAverage(model, train.ema_decay or ema_decay(steps)) if train.ema else None
    scaler = torch.amp.GradScaler(device.type, enabled=precision.name == "fp16")
    checkpoint_gradients(model, train.grad_checkpointing)
    at_once = train.micro_batch if isinstance(train.micro_batch, int) else None
    return TrainState(model, adamw(model, config), scaler, ema, at_once, batches)
