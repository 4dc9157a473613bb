"""The network is the ViT of the papers: held against timm, and against formulas written out by hand."""

from __future__ import annotations

import math
import re

import pytest
import timm
import torch
from small_networks import small_vit
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import vitmed
from vitmed.core.config import ModelConfig
from vitmed.core.errors import UsageError
from vitmed.core.load_config import load_config
from vitmed.models.layers import attend
from vitmed.models.sizes import SIZES, summarise
from vitmed.models.vit import ViT, checkpoint_gradients


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


def test_images_of_another_shape_and_a_head_without_classes_are_refused() -> None:
    model = small_vit(2)
    side = model.shape[1]
    for shape, fix in (
        ((1, 3, side + 1, side), "resize them"),
        ((1, 1, side, side), "resize them"),
        ((3, side, side), "x.unsqueeze(0) makes a batch of one image"),
        ((1, side, side, 3), "x.permute(0, 3, 1, 2) puts the channels first"),
    ):
        with pytest.raises(UsageError, match="images of shape") as error:
            model(torch.zeros(shape))
        assert error.value.fix == fix
    with pytest.raises(UsageError, match="at least one") as error:
        vitmed.build_model("vit_tiny", 0)
    assert error.value.fix == "num_classes=1 or more"


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
    model.freeze(0)  # the blocks learn again, and drop again
    assert all(p.requires_grad for p in model.blocks.parameters()) and all(block.training for block in model.blocks)
    assert not any(p.requires_grad for p in model.patch_embed.parameters())


def test_a_pooling_that_the_network_cannot_have() -> None:
    with pytest.raises(UsageError, match="pool cls reads a class token, and the network has none"):
        small_vit(3, 16, 8, class_token=False)
    with pytest.raises(UsageError, match="8 heads, which do not divide its width 12"):
        small_vit(3, 16, 8, width=12, heads=3, pool="coca")
    with pytest.raises(UsageError, match="rotary positions need heads whose width is divisible by 4, not 6"):
        small_vit(3, 16, 8, width=12, heads=2, positions="rotary")


def test_attention_is_collected_once_also_where_blocks_are_computed_again() -> None:
    model = small_vit(5, 32, 8, width=48, depth=3, heads=4).train()
    checkpoint_gradients(model)
    logits, attention = model.attention(torch.randn(2, 3, 32, 32))
    logits.sum().backward()
    assert len(attention) == len(model.blocks)


def test_the_summary_counts_the_multiply_adds_of_every_patch_and_of_attention() -> None:
    """By hand, for 64 patches of 4 px and the class token, width 48, 2 blocks, the mean of the patches for the head."""
    config = ModelConfig(image_size=32, patch_size=4, width=48, depth=2, heads=3, pool="mean")
    text = summarise(ViT(config, 3), config)
    tokens, width = 1 + 64, 48
    block = tokens * width * (4 + 8) * width + 2 * tokens * tokens * width  # weights; q k and the mean of v
    total = 64 * width * 3 * 4 * 4 + 2 * block + 3 * width
    assert f"Total mult-adds (M): {total / 1e6:.2f}" in text


def test_validation_in_bf16_ranks_images_that_rounded_logits_would_tie() -> None:
    """Logits near -5, as of a rare finding, have 32 steps a unit in bf16."""
    model, x = (
        ViT(ModelConfig(image_size=32, patch_size=16, width=48, depth=1, heads=3), 1).eval(),
        torch.randn(64, 3, 32, 32),
    )
    torch.nn.init.constant_(model.head.bias, -5.0)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
    assert logits.dtype == torch.float32 and len(logits.unique()) == 64 > len(logits.bfloat16().unique())
