"""Train a small ViT on a folder of class folders with the loop of vitmed: no run folder, no plan, no command line.

    python examples/train_by_hand.py path/to/images

Prints the loss and the AUROC of validation after each epoch. docs/reading.md says what to read beside it.
"""

import sys

import torch

from vitmed.core.load_config import load_config
from vitmed.data.loading import images_of
from vitmed.data.splits import make_splits
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.predict import FP32
from vitmed.models.vit import ViT
from vitmed.training.early_stopping import validate
from vitmed.training.loop import Control, Stream, fit
from vitmed.training.losses import objective_of
from vitmed.training.plan.make_plan import with_window
from vitmed.training.train_state import new_state


def main(folder: str, epochs: int) -> list[dict]:
    """Train on a folder of labelled images; return the records of the epochs."""
    device = torch.device("cpu")
    settings = {
        "data.root": folder, "model.image_size": 32, "model.patch_size": 8, "model.width": 64, "model.depth": 4,
        "model.heads": 4, "model.stem": "conv", "model.pool": "mean",  # they learn sooner from few images
        "train.epochs": epochs, "train.lr": 2e-3, "train.workers": 0,
    }  # fmt: skip
    config = load_config(None, settings)
    splits = make_splits(config.data)  # by patient where patients are known
    config = with_window(config, splits)  # how deep images, such as DICOM, become grey
    images = images_of(splits, Preprocessing.of(config))

    torch.manual_seed(config.train.seed)
    model = ViT(config.model, splits.outputs).to(device)  # (B, C, H, W) -> (B, K) logits
    objective = objective_of(images["train"], splits.outputs, config, FP32, device)  # normalise, mix, loss
    stream = Stream.of(images["train"], config, device)  # shuffled, augmented batches
    batches = stream.batches.batches
    state = new_state(model, config, batches, device, FP32)  # model, optimiser, moving average, position

    records = []
    validated = lambda: validate(state, images["val"], splits.classes, config, FP32)  # noqa: E731
    for record in fit(state, stream, objective, Control(config), validated):
        print(f"epoch {record['epoch']}  val loss {record['val_loss']:.4f}  AUROC {record['val_auroc']:.4f}")
        records.append(record)
    return records


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], epochs=int(sys.argv[2]) if len(sys.argv) > 2 else 10)
