"""Maps of attention: hand-worked, timm's attention, closed forms, and a network whose answer lies in a known patch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_networks import small_vit
from torch import Tensor, nn

from vitmed.explanation.attention import (
    METHODS,
    Trace,
    attention_maps,
    centre_shift,
    grad_cam,
    gradient_rollout,
    rollout,
    trace,
)
from vitmed.explanation.faithfulness import BETTER, check_maps
from vitmed.explanation.results import cells, spread
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.lora import add_low_rank, merged
from vitmed.models.vit import ViT

HOW = Preprocessing(32, 3, "pad", "half")
KINDS = [
    {"pool": "cls"},
    {"pool": "mean"},
    {"pool": "cls", "registers": 3},
    {"pool": "mean", "registers": 2, "layer_scale": True},
    {"pool": "mean", "stem": "conv"},
    {"pool": "cls_mean", "mlp": "swiglu", "registers": 2, "layer_scale": True},  # Virchow2
    {"pool": "cls", "positions": "rotary", "registers": 4, "layer_scale": True},  # DINOv3
    {"pool": "attention", "class_token": False, "mlp": "gelu_tanh"},  # SigLIP
    {"pool": "coca", "pool_width": 16, "norm_pre": True, "mlp": "quick_gelu"},  # CONCH, CLIP
]


def shaken(**kind: object) -> ViT:
    torch.manual_seed(0)
    model = small_vit(3, 32, 8, width=24, depth=3, heads=2, **kind)  # type: ignore[arg-type]
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def traced(
    attention: list[Tensor],
    gradient: list[Tensor],
    pool: str,
    first: int = 1,
    pooling: tuple[Tensor, Tensor] | None = None,
) -> Trace:
    """A trace of one image and one head."""
    tokens = torch.zeros(1, attention[0].shape[-1] - first, 1)
    full = [[a[None, None] for a in part] for part in (attention, gradient)]
    return Trace(torch.zeros(1, 2), full[0], full[1], pooling, tokens, tokens, slice(first, None), pool)


A = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.6, 0.3], [0.0, 0.2, 0.8]])  # class token and two patches
B = torch.tensor([[0.4, 0.4, 0.2], [0.0, 1.0, 0.0], [0.5, 0.25, 0.25]])
G = torch.tensor([[0.0, 2.0, -1.0], [1.0, 1.0, 1.0], [-1.0, 5.0, 1.0]])


def test_rollout_by_hand() -> None:
    zero = torch.zeros(3, 3)
    # One block: half of the class token's row; of a mean pool half the mean of the patches' rows, the diagonal + 1.
    assert rollout(traced([A], [zero], "cls")).tolist()[0] == pytest.approx([0.25, 0.15])
    expected = [(1.6 + 0.2) / 4, (0.3 + 1.8) / 4]
    assert rollout(traced([A], [zero], "mean")).tolist()[0] == pytest.approx(expected)
    # Two blocks: the row (0.7, 0.2, 0.1) of (B + 1) / 2 times the columns of (A + 1) / 2.
    expected = [0.7 * 0.25 + 0.2 * 0.8 + 0.1 * 0.1, 0.7 * 0.15 + 0.2 * 0.15 + 0.1 * 0.9]
    assert rollout(traced([A, B], [zero, zero], "cls")).tolist()[0] == pytest.approx(expected)
    # A register in the place of the first patch: its column is left out, and its row is none of the mean.
    assert rollout(traced([A], [zero], "cls", first=2)).tolist()[0] == pytest.approx([0.15])
    assert rollout(traced([A], [zero], "mean", first=2)).tolist()[0] == pytest.approx([0.9])


def test_gradient_rollout_by_hand() -> None:
    # (G x A)+ has the class token's row (0, 1, 0) and the patches' rows (0.1, 0.6, 0.3) and (0, 1, 0.8).
    assert gradient_rollout(traced([A], [G], "cls")).tolist()[0] == pytest.approx([1.0, 0.0])
    # Of a mean pool half the sum of the patches' rows, without the 1 that R has for each patch of itself.
    expected = [(0.6 + 1) / 2, (0.3 + 0.8) / 2]
    assert gradient_rollout(traced([A], [G], "mean")).tolist()[0] == pytest.approx(expected)
    # The second block's row (0, 0.8, 0), on top of the first: R + 0.8 x (row of the first patch of R).
    expected = [1.0 + 0.8 * 1.6, 0.0 + 0.8 * 0.3]
    assert gradient_rollout(traced([A, B], [G, G], "cls")).tolist()[0] == pytest.approx(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_map_does_not_depend_on_how_large_the_gradients_are(kind: dict[str, object]) -> None:
    """Gradients so small that float32 would lose them beside a 1 have the map that float64 gives."""
    model, x, target = shaken(**kind), torch.randn(1, 3, 32, 32), torch.tensor([1])
    with torch.no_grad():
        model.head.weight *= 1e-9
    rounded = spread(gradient_rollout(trace(model, x, target)).numpy())
    exact = spread(gradient_rollout(trace(model.double(), x.double(), target)).numpy())
    assert rounded.max() == 1
    np.testing.assert_allclose(rounded, exact, atol=1e-4)


def test_what_the_head_reads_by_hand() -> None:
    """The class token and the mean of the patches by halves; and pooling that weighs the three tokens."""
    zero = torch.zeros(3, 3)
    cls, mean = [0.25, 0.15], [(1.6 + 0.2) / 4, (0.3 + 1.8) / 4]
    expected = [(a + b) / 2 for a, b in zip(cls, mean, strict=True)]
    assert rollout(traced([A], [zero], "cls_mean")).tolist()[0] == pytest.approx(expected)
    weights, gradient = torch.tensor([0.5, 0.2, 0.3]), torch.tensor([1.0, -1.0, 2.0])
    pooling = weights[None, None, None], gradient[None, None, None]
    expected = [0.5 * 0.25 + 0.2 * 0.8 + 0.3 * 0.1, 0.5 * 0.15 + 0.2 * 0.15 + 0.3 * 0.9]
    assert rollout(traced([A], [zero], "coca", pooling=pooling)).tolist()[0] == pytest.approx(expected)
    # Pooling supports the class by (0.5, 0, 0.6), of the rows (0, 1, 0) and (0, 1, 0.8) + 1 of (G x A)+.
    expected = [0.5 * 1.0 + 0.6 * 1.0, 0.6 * 1.8]
    assert gradient_rollout(traced([A], [G], "coca", pooling=pooling)).tolist()[0] == pytest.approx(expected)


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_attention_is_timms_without_the_fused_kernel(pool: str) -> None:
    from timm.models.vision_transformer import VisionTransformer

    named = {"cls": "token", "mean": "avg"}[pool]
    theirs = VisionTransformer(32, 8, embed_dim=24, depth=3, num_heads=2, num_classes=3, global_pool=named).eval()
    ours = shaken(pool=pool)
    theirs.load_state_dict(ours.state_dict())
    seen: list[Tensor] = []
    for block in theirs.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda module, given, result: seen.append(result))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        logits = theirs(x)
    found = trace(ours, x)
    torch.testing.assert_close(found.logits, logits, atol=1e-5, rtol=1e-5)
    for a, b in zip(found.attention, seen, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_those_of_the_fused_path_and_maps_are_a_grid_from_0_to_1(kind: dict[str, object]) -> None:
    model, x = shaken(**kind), torch.randn(2, 3, 32, 32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.inference_mode():
        plain = model(x)
    torch.testing.assert_close(trace(model, x).logits, plain, atol=1e-5, rtol=1e-5)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    found = attention_maps(model, HOW, images, np.array([1, 0, 1]), np.arange(3))
    assert set(found.grids) == set(METHODS) and found.rows.tolist() == [0, 1, 2]
    for grid in found.grids.values():
        assert grid.shape == (3, 4, 4) and grid.dtype == np.float32
        assert grid.min() >= 0 and grid.max() <= 1
    assert found.targets.tolist() == [1, 0, 1]
    frozen = attention_maps(model.requires_grad_(False), HOW, images[1:2], np.array([0]), np.arange(1))
    for name, grid in frozen.grids.items():
        np.testing.assert_allclose(grid[0], found.grids[name][1], atol=1e-4)


def test_gradients_are_those_of_finite_differences() -> None:
    """Of the tokens that the last block is given, which a class token reads there for the last time."""
    model, x = shaken(pool="cls").double(), torch.randn(1, 3, 32, 32, dtype=torch.float64)
    found = trace(model, x, torch.tensor([1]))
    direction = torch.randn(1, 16, 24, dtype=torch.float64)

    def logit(step: float) -> float:
        def shift(block: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            moved = given[0].clone()
            moved[:, 1:] += step * direction
            return (moved, *given[1:])

        hook = model.blocks[-1].register_forward_pre_hook(shift)
        with torch.no_grad():
            value = float(model(x)[0, 1])
        hook.remove()
        return value

    slope = (logit(1e-5) - logit(-1e-5)) / 2e-5
    assert float((found.token_gradient * direction).sum()) == pytest.approx(slope, rel=1e-6)


def test_grad_cam_of_a_linear_head_on_the_mean_is_what_each_patch_gives() -> None:
    """Without the norm, the logit is the mean over patches of w . token + b: Grad-CAM is the positive part of each."""
    model, x = shaken(pool="mean"), torch.randn(2, 3, 32, 32)
    model.fc_norm = nn.Identity()
    found = trace(model, x, torch.tensor([2, 0]))
    with torch.inference_mode():
        tokens = model.forward_features(x)[:, 1:]  # (B, L, D)
        given = torch.stack([tokens[0] @ model.head.weight[2], tokens[1] @ model.head.weight[0]]) / 16
    torch.testing.assert_close(grad_cam(found), given.clamp(min=0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(given.sum(1) + model.head.bias[[2, 0]], found.logits[[0, 1], [2, 0]])


def test_a_merged_lora_has_the_maps_of_the_network_that_was_trained() -> None:
    model, x = shaken(pool="cls"), torch.randn(1, 3, 32, 32)
    add_low_rank(model, 2)
    for name, parameter in model.named_parameters():
        if name.endswith(".B"):
            nn.init.normal_(parameter, std=0.1)
    plain = shaken(pool="cls")
    plain.load_state_dict(merged(model))
    for name, method in METHODS.items():
        torch.testing.assert_close(method(trace(model.eval(), x)), method(trace(plain, x)), msg=name)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_one_patch_and_every_number_of_channels(channels: int) -> None:
    model = small_vit(2, 8, 8, channels=channels, width=8, depth=1, heads=1).eval()
    images = np.zeros((1, 8, 8, channels), np.uint8)
    found = attention_maps(model, Preprocessing(8, channels, "pad", "half"), images, np.array([1]), np.arange(1))
    assert set(found.grids) == set(METHODS)
    assert all(grid.tolist() == [[[0.0]]] for grid in found.grids.values())  # nothing can stand out


def test_spread() -> None:
    assert spread(np.array([[1.0, 3.0, 2.0], [5.0, 5.0, 5.0]])).tolist() == [[0, 1, 0.5], [0, 0, 0]]


def reader(stem: str, patch: int, grid: int) -> ViT:
    """A network of which every patch sums what it reads."""
    model = small_vit(2, patch * grid, patch, channels=1, width=8, depth=1, heads=1, stem=stem).eval()
    for parameter in model.patch_embed.parameters():
        nn.init.ones_(parameter)
    return model


@pytest.mark.parametrize(
    ("stem", "patch"), [("patch", 8), ("patch", 7), ("conv", 16), ("conv", 12), ("conv", 7), ("residual", 8)]
)
def test_cells_lie_where_patches_read(stem: str, patch: int) -> None:
    """The centre of gravity of the gradient of a patch is the centre of its cell; a bright dot lights its cell most."""
    grid = 11 if stem == "residual" else 5  # what the patch in the middle reads lies within the image
    mid = grid // 2
    model, side = reader(stem, patch, grid), patch * grid
    shift = centre_shift(model)
    place = cells(side, grid, shift)
    x = torch.ones(1, 1, side, side, requires_grad=True)
    (read,) = torch.autograd.grad(model.patch_embed(x)[0, grid * mid + mid].sum(), x)  # of the patch in the middle
    centre = float((read[0, 0].sum(dim=0) * torch.arange(side)).sum() / read.sum())
    assert np.flatnonzero(place == mid).mean() == pytest.approx(centre, abs=0.51)  # of two centres as near, the first
    for dot in range((mid - 1) * patch, (mid + 2) * patch):
        image = torch.zeros(1, 1, side, side)
        image[0, 0, dot, mid * patch] = 1
        lit = model.patch_embed(image)[0].sum(dim=1).reshape(grid, grid).sum(dim=1)
        assert lit[place[dot]] == lit.max()


def test_cells_of_one_convolution_are_its_patches() -> None:
    assert cells(24, 3, centre_shift(reader("patch", 8, 3))).tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert (
        cells(12, 3, centre_shift(reader("conv", 4, 3))).tolist() == [0] * 3 + [1] * 4 + [2] * 5
    )  # centred at 0, 4 and 8


def seeker(pool: str) -> ViT:
    """A network of known weights: its one block reads from the patch that is redder than green, and so says "red"."""
    model = small_vit(2, 32, 8, width=8, depth=1, heads=1, pool=pool).eval()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    block = model.blocks[0]
    norm = model.norm if pool == "cls" else model.fc_norm
    with torch.no_grad():
        for layer in (block.norm1, block.norm2, norm):
            layer.weight.fill_(1)
        model.patch_embed.proj.weight[0, 0], model.patch_embed.proj.weight[0, 1] = (
            4 / 64,
            -4 / 64,
        )  # redness, in channel 0
        model.patch_embed.proj.bias[:3] = torch.tensor([-2.0, 1.0, -1.0])  # grey is below 0; and the norm has a spread
        model.cls_token[0, 0, 1:3] = torch.tensor([1.0, -1.0])
        block.attn.qkv.bias[0] = 8.0  # every query asks for channel 0 ...
        block.attn.qkv.weight[8, 0] = 1.0  # ... which is the key
        block.attn.qkv.weight[16, 0] = 1.0  # and the value
        block.attn.proj.weight[4, 0] = 2.0
        model.head.weight[:, 4] = torch.tensor([-3.0, 3.0])
        model.head.bias[:] = torch.tensor([2.0, -2.0])  # without a red patch: the other class
    return model


def spots(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of grey noise with one red patch anywhere, and in which patch."""
    rng = np.random.default_rng(0)
    images = rng.integers(100, 150, (count, 32, 32, 3), dtype=np.uint8)
    places = rng.integers(0, 16, count)
    for image, place in zip(images, places, strict=True):
        y, x = 8 * (place // 4), 8 * (place % 4)
        image[y : y + 8, x : x + 8] = (220, 40, 40)
    return images, places


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_maps_point_at_the_patch_that_holds_the_answer(pool: str) -> None:
    model, (images, places) = seeker(pool), spots(20)
    found = attention_maps(model, HOW, images, np.ones(20, int), np.arange(20))
    told = check_maps(model, HOW, images, np.ones(20, int))
    assert told["whole"] > 0.95 and told["blank"] < 0.05
    for name in ("rollout", "gradient_rollout"):  # Grad-CAM sees no slope in a network that is so sure
        assert (found.grids[name].reshape(20, -1).argmax(axis=1) == places).all(), name
        assert told["methods"][name]["verdict"] == BETTER, told["methods"][name]["text"]
        # All is lost with the first of 16 patches: the area has one step of two, and what the blank gives.
        assert told["methods"][name]["deletion"]["value"] < 0.1 < 0.9 < told["methods"][name]["insertion"]["value"]
