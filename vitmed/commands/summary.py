"""`vitmed summary` and `vitmed.build_model`: the network alone."""

from pathlib import Path
from typing import Annotated, Any

from vitmed.core.config import Config
from vitmed.core.errors import UsageError, unknown_key
from vitmed.core.load_config import build_config, load_config, recipes
from vitmed.core.options import SUMMARY_FLAGS, Argument, Fields, Option
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.models.hardware import seeded
from vitmed.models.sizes import SIZES, summarise
from vitmed.models.vit import ViT
from vitmed.models.weights.pretrained import config_for_weights, load_pretrained, open_weights


def build_model(
    model: str | None = None, num_classes: int | None = None, *, offline: bool = False, **fields: Any
) -> ViT:
    """Build a ViT of a named size or of a weight file; keywords set any field of `ModelConfig` (image_size=32).

    Args:
        model: default: the network of `weights`, else vit_tiny.
        num_classes: K; default: the classes of the head in `weights`, else 1000. A head of K classes is kept.

    Raises:
        UsageError: an unknown name or field, or sizes that do not divide or do not fit the weights.
        CheckpointError: weights that cannot be used.
    """
    fields = {key: str(value) if isinstance(value, Path) else value for key, value in fields.items()}
    if fields.get("weights") == "auto":
        raise UsageError("weights auto: only `train` chooses them, for its images", "name weights, or leave them out")
    config = build_config({"model": fields if model is None else {"name": model, **fields}}).model
    if config.start is None:
        return ViT(config, 1000 if num_classes is None else num_classes)
    weights = open_weights(config.start, offline)
    head = weights.state.get("head.bias")
    classes = 1000 if head is None else len(head)
    network = ViT(config_for_weights(config, weights), classes if num_classes is None else num_classes)
    load_pretrained(network, weights)
    return network


def summary(
    model: Annotated[
        Path | str, Argument("A size (vit_tiny), a recipe (mnist), or a checkpoint; default vit_tiny.")
    ] = "vit_tiny",
    num_classes: Annotated[int | None, Option("Default 1000, or the checkpoint's.", min=1)] = None,
    **fields: Annotated[Any, Fields(Config, SUMMARY_FLAGS)],
) -> str:
    """Return torchinfo's table of a model: a size, a checkpoint file, or the name or file of a recipe.

    Raises:
        VitmedError: there is no such model.
    """
    model = str(model)
    if model.endswith(".pt") or (Path(model) / "best.pt").is_file():
        if fields or num_classes is not None:
            raise UsageError(f"{model}: a checkpoint fixes its own sizes", "leave the other options out")
        checkpoint = load_checkpoint(model)
        return summarise(checkpoint.model(), checkpoint.config.model)
    if model.endswith(".onnx"):
        raise UsageError(f"{model}: an exported network, its layers have no names", "name the run that it comes from")
    if model in SIZES:
        config = build_config({"model": {"name": model, **fields}}).model
    elif model in recipes() or Path(model).suffix in (".yaml", ".yml"):
        config = load_config(model, {f"model.{key}": value for key, value in fields.items()}).model
    else:
        raise unknown_key("model", model, [*SIZES, *recipes()])
    with seeded(0):
        return summarise(ViT(config, 1000 if num_classes is None else num_classes), config)
