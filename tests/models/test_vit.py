"""The network is the ViT of the papers: held against timm, and against formulas written out by hand."""

from __future__ import annotations

import math
import re

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torchvision.models.resnet import BasicBlock

from tests.small_networks import small_vit
from vitmed.core.errors import UsageError
from vitmed.core.load_config import load_config
from vitmed.core.model_config import ModelConfig
from vitmed.models.layers import DropPath, ResidualBlock, sincos_1d, sincos_2d
from vitmed.models.sizes import SIZES
from vitmed.models.vit import ViT, attend


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random weights everywhere: biases and norms start at 0 and 1, which would hide a mistake."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.15)
    return model.eval()


@pytest.mark.parametrize("name", SIZES)
def test_names_shapes_and_parameter_count_are_timms(name: str) -> None:
    with torch.device("meta"):
        ours = ViT(ModelConfig(name=name), 1000)
        theirs = timm.create_model(f"{name}_patch16_224", num_classes=1000)
    assert shapes(ours) == shapes(theirs)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_logits_are_timms_at_full_size() -> None:
    theirs = shaken(timm.create_model("vit_tiny_patch16_224", num_classes=1000))
    ours = ViT(ModelConfig(), 1000).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        a, b = ours(x), theirs(x)
    assert a.std() > 0.1
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("pool", "theirs_pool"), [("cls", "token"), ("mean", "avg")])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_logits_and_gradients_are_timms(pool: str, theirs_pool: str, channels: int) -> None:
    theirs = VisionTransformer(
        img_size=32, patch_size=8, in_chans=channels, embed_dim=48, depth=3, num_heads=4, mlp_ratio=3, num_classes=5,
        global_pool=theirs_pool,
    )  # fmt: skip
    shaken(theirs)
    ours = small_vit(5, 32, 8, channels=channels, width=48, depth=3, heads=4, mlp_ratio=3.0, pool=pool).eval()
    assert shapes(ours) == shapes(theirs)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, channels, 32, 32)
    a, b = ours(x), theirs(x)
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    a.square().sum().backward()
    b.square().sum().backward()
    for (name, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, atol=1e-3, rtol=1e-3, msg=name)


def test_norms_divide_as_timms() -> None:
    """Their epsilon is too small to show in logits, and large enough to show in training."""

    def epsilons(model: nn.Module) -> dict[str, float]:
        return {name: module.eps for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}

    theirs = VisionTransformer(img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=2)
    assert epsilons(small_vit(2, 16, 8, width=16, depth=2, heads=2)) == epsilons(theirs)


def test_attention_probabilities() -> None:
    model = shaken(small_vit(5, 32, 8, width=48, depth=3, heads=4))
    x = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        plain = model(x)
        logits, attention = model.attention(x)
    assert [tuple(a.shape) for a in attention] == [(2, 4, 17, 17)] * 3
    for a in attention:
        assert (a >= 0).all()
        torch.testing.assert_close(a.sum(-1), torch.ones(2, 4, 17))
    torch.testing.assert_close(logits, plain, atol=1e-5, rtol=1e-5)


def test_attention_of_one_head_by_hand() -> None:
    q, k, v = torch.randn(3, 1, 1, 5, 8)
    read, probabilities = attend(q, k, v)
    for i in range(5):
        scores = [math.exp(float((q[0, 0, i] * k[0, 0, j]).sum()) / math.sqrt(8)) for j in range(5)]
        expected = [s / sum(scores) for s in scores]
        assert probabilities[0, 0, i].tolist() == pytest.approx(expected, abs=1e-6)
        torch.testing.assert_close(read[0, 0, i], sum(p * v[0, 0, j] for j, p in enumerate(expected)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_spelled_out_attention_is_the_fused_one(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 3, 17, 16, dtype=dtype, requires_grad=True) for _ in range(3))
    ours, _ = attend(q, k, v)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype is torch.float32 else {"atol": 0.03, "rtol": 0.03}
    torch.testing.assert_close(ours, theirs, **close)
    for a, b in zip(
        torch.autograd.grad(ours.sum(), (q, k, v)), torch.autograd.grad(theirs.sum(), (q, k, v)), strict=True
    ):
        torch.testing.assert_close(a, b, **close)


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


RECIPES = ["cifar10_patch8", "cifar10_patch4", "mnist", "malaria", "demo", "sincos_224"]


@pytest.mark.parametrize("name", [*RECIPES, pytest.param("vit_base_224", marks=pytest.mark.slow)])
def test_every_recipe_trains(name: str) -> None:
    """One step: every trainable parameter gets a gradient, and the loss of that batch falls."""
    config = load_config(name).model.model_copy(update={"depth": 2})  # the blocks are alike
    torch.manual_seed(0)
    model = ViT(config, 10).train()
    x = torch.randn(2, config.channels, config.image_size, config.image_size)
    y = torch.tensor([3, 7])

    def loss() -> torch.Tensor:
        torch.manual_seed(0)  # the same dropout
        return nn.functional.cross_entropy(model(x), y)

    before = loss()
    before.backward()
    assert [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    torch.optim.SGD(model.parameters(), lr=1e-3).step()
    with torch.no_grad():
        assert float(loss()) < float(before)


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


def test_drop_path_grows_linearly_to_the_last_block() -> None:
    model = small_vit(2, 16, 8, width=16, depth=5, heads=2, drop_path=0.2)
    assert [block.drop_path.rate for block in model.blocks] == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2])


def test_dropout_works_in_training_and_rests_in_judgement() -> None:
    model = shaken(small_vit(2, 16, 8, width=16, depth=1, heads=2, dropout=0.5, attention_dropout=0.5, drop_path=0.5))
    x = torch.randn(4, 3, 16, 16)
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"image_size": 50, "patch_size": 16}, ["50", "16", "48"]),
        ({"image_size": 10, "patch_size": 16}, ["10", "16"]),
        ({"width": 50, "heads": 3}, ["3 heads", "50", "1, 2, 5, 10"]),
        ({"width": 15, "heads": 3, "positions": "sincos_1d"}, ["sincos_1d", "2", "15"]),
        ({"width": 18, "heads": 3, "positions": "sincos_2d"}, ["sincos_2d", "4", "18"]),
        ({"name": "vit_tinny"}, ["vit_tinny", "did you mean 'vit_tiny'", *SIZES]),
    ],
)
def test_sizes_that_do_not_fit_are_told_with_ones_that_do(fields: dict[str, object], told: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        ViT(ModelConfig(**fields), 2)
    assert all(text in str(error.value) for text in told), str(error.value)


def test_every_number_can_be_set() -> None:
    config = ModelConfig(image_size=24, patch_size=12, channels=2, width=20, depth=3, heads=5, mlp_ratio=2.5)
    model = ViT(config, 7)
    assert len(model.blocks) == 3 and model.blocks[0].attn.heads == 5
    assert model.blocks[0].mlp.fc1.weight.shape == (50, 20)
    assert model(torch.zeros(1, 2, 24, 24)).shape == (1, 7)


def test_frozen_blocks_neither_learn_nor_drop_out() -> None:
    torch.manual_seed(0)
    model = small_vit(2, 16, 8, width=16, depth=3, heads=2, stem="conv", dropout=0.5, drop_path=0.5)
    model.freeze(2)
    model.train()
    learning = {
        re.sub(r"(blocks\.\d+|\w+)\..*", r"\1", name) for name, p in model.named_parameters() if p.requires_grad
    }
    assert learning == {"blocks.2", "norm", "head"}
    x = torch.randn(2, 3, 16, 16)
    seen: list[torch.Tensor] = []
    model.blocks[2].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    for _ in range(2):
        model(x)
    torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=0)
    assert not torch.equal(model(x), model(x))  # the last block still drops
    with pytest.raises(UsageError, match="the network has 3"):
        model.freeze(4)
