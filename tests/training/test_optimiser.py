"""The schedule, the parameter groups and the moving average, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from small_networks import small_vit
from torch import nn

from vitmed.core.config import PretrainConfig
from vitmed.core.load_config import load_config
from vitmed.inference.predict import FP32
from vitmed.models.vit import ViT
from vitmed.training.loop import optimiser_step
from vitmed.training.optimiser import MovingAverage, adamw, ema_decay, learning_rate, parameter_groups
from vitmed.training.train_state import new_state


def network(stem: str = "patch", depth: int = 3, **fields: object) -> ViT:
    return small_vit(2, 16, 8, width=16, depth=depth, heads=2, stem=stem, **fields)  # type: ignore[arg-type]


def test_warm_up_and_cosine_by_hand() -> None:
    rates = [learning_rate(step, 20, 4, 0.8, 0.0) for step in range(5)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    rates = [learning_rate(step, 5, 0, 1.0, 0.2) for step in range(5)]
    r = math.sqrt(0.5)  # cos 45 degrees
    assert rates == pytest.approx([1.0, 0.2 + 0.4 * (1 + r), 0.6, 0.2 + 0.4 * (1 - r), 0.2])


def test_the_schedule_ends_at_the_low_rate_and_never_leaves_its_bounds() -> None:
    for steps, warmup in ((1, 0), (2, 0), (3, 1), (100, 33), (7, 2)):
        rates = [learning_rate(step, steps, warmup, 1.0, 0.1) for step in range(steps)]
        assert all(0 < rate <= 1.0 for rate in rates)
        assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
        if steps > warmup + 1:
            assert rates[-1] == pytest.approx(0.1)
    assert learning_rate(500, 100, 10, 1.0, 0.1) == pytest.approx(0.1)  # beyond the end, after --epochs was lowered


@pytest.mark.parametrize("stem", ["patch", "conv", "residual"])
@pytest.mark.parametrize("pool", ["cls", "mean", "attention"])
def test_decay_is_for_matrices_alone(stem: str, pool: str) -> None:
    model = network(stem, pool=pool)
    decayed = {id(p) for group in parameter_groups(model, 0.05, 1.0) if group["weight_decay"] for p in group["params"]}
    for name, parameter in model.named_parameters():
        module = model.get_submodule(name.rpartition(".")[0])
        free = name.endswith(".bias") or name in ("cls_token", "pos_embed", "attn_pool.latent")
        free = free or isinstance(module, nn.LayerNorm | nn.BatchNorm2d)
        assert (id(parameter) in decayed) == (not free), name
    for positions, layer_decay in (("learned", 1.0), ("sincos_2d", 0.7)):  # every trainable one is in one group
        model = network(stem, pool=pool, positions=positions)
        listed = [id(p) for group in parameter_groups(model, 0.05, layer_decay) for p in group["params"]]
        assert sorted(listed) == sorted(id(p) for p in model.parameters() if p.requires_grad)


def test_layer_decay_by_hand() -> None:
    """Three blocks, factor 0.5: the head learns at 1, the last block at 1/2, the first at 1/8, the stem at 1/16."""
    model = network("conv", norm_pre=True, pool="attention", registers=2)
    names = {id(p): name for name, p in model.named_parameters()}
    scale = {names[id(p)]: group["scale"] for group in parameter_groups(model, 0.05, 0.5) for p in group["params"]}
    expected = {"head": 1, "norm.": 1, "attn_pool": 1, "blocks.2": 1 / 2, "blocks.1": 1 / 4, "blocks.0": 1 / 8}
    expected |= {"patch_embed": 1 / 16, "cls_token": 1 / 16, "pos_embed": 1 / 16, "norm_pre": 1 / 16, "reg_": 1 / 16}
    assert set(scale) == set(names.values())
    for name, factor in scale.items():
        start = next(key for key in expected if name.startswith(key))
        assert factor == expected[start], name
    config = load_config(None, {"train.weight_decay": 0.05, "train.layer_decay": 0.5})
    state = new_state(model, config, 1, torch.device("cpu"), FP32)
    optimiser_step(state, 0.8, None)
    by_name = {names[id(p)]: group["lr"] for group in state.optimiser.param_groups for p in group["params"]}
    assert by_name["head.weight"] == 0.8 and by_name["blocks.0.attn.qkv.bias"] == pytest.approx(0.1)


def test_one_step_of_adamw_by_hand() -> None:
    """The first step of Adam moves by lr in the direction of the gradient's sign; decay shrinks before that."""
    model = network()
    weight, bias = model.head.weight, model.head.bias
    optimiser = adamw(model, load_config(None, {"train.lr": 0.01, "train.weight_decay": 0.5, "train.layer_decay": 1.0}))
    before_weight, before_bias = weight.detach().clone(), bias.detach().clone()
    weight.grad, bias.grad = torch.full_like(weight, 3.0), torch.full_like(bias, -2.0)
    optimiser.step()
    torch.testing.assert_close(weight.detach(), before_weight * (1 - 0.01 * 0.5) - 0.01, atol=1e-6, rtol=0)
    torch.testing.assert_close(bias.detach(), before_bias + 0.01, atol=1e-6, rtol=0)


def test_the_moments_are_those_of_adam_and_in_pretraining_of_the_mae_paper() -> None:
    """He et al. 2022, table 8: 0.9 and 0.95; Kingma & Ba 2015: 0.9 and 0.999."""
    config = load_config(None)
    for asked, betas in ((config, (0.9, 0.999)), (PretrainConfig(model=config.model), (0.9, 0.95))):
        assert {group["betas"] for group in adamw(network(), asked).param_groups} == {betas}


def test_average_against_a_loop() -> None:
    model = network("conv", depth=1)
    torch.manual_seed(0)
    ema = MovingAverage(model, 0.7)
    expected: dict[str, torch.Tensor] = {}
    for t in range(12):
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter))
        model.patch_embed.stem[1].running_mean.fill_(t)
        ema.update_parameters(model)
        decay = min(0.7, (1 + t) / (10 + t))
        for name, parameter in model.named_parameters():
            new = parameter.detach().clone()
            expected[name] = new if t == 0 else decay * expected[name] + (1 - decay) * new
    for name, parameter in ema.module.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], atol=1e-5, rtol=1e-5, msg=name)
    assert float(ema.module.patch_embed.stem[1].running_mean[0]) == 11  # statistics of batch norm follow at once
    before = model.head.weight.detach().clone()
    ema.module.head.weight.data.zero_()
    assert torch.equal(model.head.weight, before)  # it is no part of the model


@pytest.mark.parametrize(("steps", "decay"), [(5, 0.0), (10, 0.0), (100, 0.9), (1000, 0.99), (100_000, 0.999)])
def test_the_decay_suits_the_length_of_the_run(steps: int, decay: float) -> None:
    assert ema_decay(steps) == pytest.approx(decay)
