"""Pairs of views: two different changes of the same image, the same again for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import draw_classes

from vitmed.core.hardware import Precision, pick_precision
from vitmed.data.loading import Images, TrainImages
from vitmed.data.samples import Sample
from vitmed.imaging.augmentation import Augmenter
from vitmed.imaging.batch_augmentation import BatchAugmenter
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.vicreg import VICReg, vicreg_loss
from vitmed.models.vit import ViT
from vitmed.training.views import validation_loss, views_loss

CPU = torch.device("cpu")
FP32: Precision = pick_precision("fp32", CPU)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    root = draw_classes(tmp_path_factory.mktemp("views"), 3, ("amber",))
    return Images(
        root, [Sample(f"amber/amber_{i}.png", 0, None) for i in range(3)], Preprocessing(16, 3, "pad", "imagenet")
    )


def network() -> VICReg:
    torch.manual_seed(0)
    return VICReg(ViT(1, image_size=16, patch_size=8, width=16, depth=1, heads=2, stem="conv", pool="mean"))


def test_two_views_of_an_image_differ_and_repeat(images: Images) -> None:
    augmenter = Augmenter("views", 16, 3)
    views = TrainImages(images, augmenter, seed=4, views=2)
    pair = views[(1, 2)][0].numpy()
    assert pair.shape == (16, 16, 6) and np.array_equal(views[(1, 2)][0], pair)
    first, second = pair[..., :3], pair[..., 3:]
    assert not np.array_equal(first, second) and not np.array_equal(views[(0, 2)][0], pair)
    for view, seen in enumerate((first, second)):
        assert np.array_equal(augmenter(images.read(2), (4, 1, 2, view)), seen)


def test_on_the_device_too(images: Images) -> None:
    views = TrainImages(images, BatchAugmenter("views", 16, 3), seed=4, views=2)
    whole = torch.stack([views[(1, i)][0] for i in range(3)])
    assert whole.shape == (3, 16, 16, 3)
    pairs = views.finish(whole, 1, torch.arange(3))
    assert pairs.shape == (3, 16, 16, 6) and not torch.equal(pairs[..., :3], pairs[..., 3:])
    assert torch.equal(views.finish(whole[1:2], 1, torch.tensor([1])), pairs[1:2])


def test_the_loss_of_a_batch_is_that_of_its_two_halves(images: Images) -> None:
    model = network().train()
    batch = torch.randint(0, 256, (6, 16, 16, 6), dtype=torch.uint8)
    loss = views_loss(model, images, FP32)(batch, batch)(slice(None))
    x, y = (images.preprocessing.normalise(batch[..., part]) for part in (slice(0, 3), slice(3, 6)))
    projected = model.projector(model.encoder.features(torch.cat([x, y])))
    assert loss.item() == pytest.approx(vicreg_loss(projected[:6], projected[6:]).item(), rel=1e-5)


def test_validation_is_the_same_every_time(images: Images) -> None:
    model, views = network(), TrainImages(images, Augmenter("views", 16, 3), seed=0, views=2)
    found = [validation_loss(model, views, CPU, FP32) for _ in range(2)]
    assert found[0] == found[1] > 0
