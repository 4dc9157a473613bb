"""The parts of the network are those of the papers, against formulas written out by hand and other libraries."""

from __future__ import annotations

import math

import pytest
import torch
from small_networks import small_vit
from torch import nn
from torchvision.models.resnet import BasicBlock

from vitmed.models.layers import DropPath, ResidualBlock, sincos_1d, sincos_2d


def test_sincos_1d_is_the_formula_of_vaswani() -> None:
    model = small_vit(2, 16, 8, width=16, depth=1, heads=2, positions="sincos_1d")
    assert torch.equal(model.pos_embed, sincos_1d(2, 16)) and not model.pos_embed.requires_grad  # it is not trained
    table = sincos_1d(3, 12)
    assert table.shape == (1, 10, 12)
    for place in range(10):
        for i in range(6):
            angle = place / 10000 ** (2 * i / 12)
            assert float(table[0, place, 2 * i]) == pytest.approx(math.sin(angle), abs=1e-6)
            assert float(table[0, place, 2 * i + 1]) == pytest.approx(math.cos(angle), abs=1e-6)


def test_sincos_2d_is_the_formula_of_mae() -> None:
    model = small_vit(2, 16, 8, width=16, depth=1, heads=2, positions="sincos_2d")
    assert torch.equal(model.pos_embed, sincos_2d(2, 16)) and not model.pos_embed.requires_grad
    assert small_vit(2, 16, 8, width=16, depth=1, heads=2).pos_embed.requires_grad
    table = sincos_2d(3, 16)
    assert table.shape == (1, 10, 16)
    assert not table[0, 0].any()  # the class token has no place
    for row in range(3):
        for column in range(3):
            expected = []
            for place in (column, row):  # MAE: "here w goes first"
                angles = [place / 10000 ** (i / 4) for i in range(4)]
                expected += [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
            assert table[0, 1 + 3 * row + column].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("stem", ["patch", "conv", "residual"])
@pytest.mark.parametrize("patch", [4, 7, 8, 14, 16, 32])
def test_every_patch_gives_its_tokens(patch: int, stem: str) -> None:
    model = small_vit(2, 3 * patch, patch, width=16, depth=1, heads=2, stem=stem).eval()
    x = torch.randn(2, 3, 3 * patch, 3 * patch)
    with torch.inference_mode():
        assert model.patch_embed(x).shape == (2, 9, 16)
        assert model(x).shape == (2, 2)
    assert model.pos_embed.shape == (1, 10, 16)


@pytest.mark.parametrize(("stem", "top", "left"), [("patch", 8, 16), ("conv", 4, 12), ("residual", 4, 12)])
def test_tokens_stand_in_reading_order(stem: str, top: int, left: int) -> None:
    """A bright square changes the token most that looks there: 1 + row x grid + column in a network with a class token.

    The 3x3 convolutions of stride 2 centre a token on the upper left corner of its patch.
    """
    torch.manual_seed(0)
    model = small_vit(2, 32, 8, width=16, depth=1, heads=2, stem=stem).eval()
    blank = torch.zeros(1, 3, 32, 32)
    marked = blank.clone()
    marked[:, :, top : top + 8, left : left + 8] = 1  # row 1, column 2 of 4
    with torch.inference_mode():
        change = (model.patch_embed(marked) - model.patch_embed(blank)).norm(dim=-1)
    assert int(change.argmax()) == 1 * 4 + 2


def test_a_residual_block_is_torchvisions() -> None:
    torch.manual_seed(0)
    ours, theirs = ResidualBlock(8), BasicBlock(8, 8)
    nn.init.normal_(ours.bn2.weight)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(4, 8, 6, 6)
    for training in (True, False):
        torch.testing.assert_close(ours.train(training)(x), theirs.train(training)(x))


def test_a_residual_stem_begins_as_the_stem_without_its_blocks() -> None:
    model = small_vit(2, 32, 16, width=64, depth=1, heads=2, stem="residual").eval()
    plain = small_vit(2, 32, 16, width=64, depth=1, heads=2, stem="conv").eval()
    layers = [layer for layer in model.patch_embed.stem if not isinstance(layer, ResidualBlock)]
    assert len(model.patch_embed.stem) - len(layers) == 3 and len(layers) == len(plain.patch_embed.stem)
    for ours, theirs in zip(layers, plain.patch_embed.stem, strict=True):
        theirs.load_state_dict(ours.state_dict())
    plain.patch_embed.proj.load_state_dict(model.patch_embed.proj.state_dict())
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(model.patch_embed(x), plain.patch_embed(x))


def test_drop_path_keeps_the_expectation_and_whole_images() -> None:
    torch.manual_seed(0)
    layer, x = DropPath(0.3).train(), torch.ones(20_000, 2, 3)
    out = layer(x)
    per_image = out[:, :1, :1]
    assert torch.equal(out, per_image.expand_as(out))  # a branch is left out whole
    assert per_image.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    sigma = math.sqrt(0.3 / 0.7 / 20_000)
    assert abs(float(per_image.mean()) - 1) < 4 * sigma
    assert layer.eval()(x) is x and DropPath(0.0).train()(x) is x
