"""Low-rank additions: no change before the first step, little that learns, and a plain network in the checkpoint."""

from typing import Any

import pytest
import torch
from small_networks import small_vit

from vitmed.core.errors import UsageError
from vitmed.models.lora import ADAPTED, add_low_rank, merged
from vitmed.models.vit import ViT


def network(stem: str = "patch", **fields: Any) -> ViT:
    torch.manual_seed(0)
    return small_vit(3, image_size=16, patch_size=8, width=16, depth=2, heads=2, stem=stem, **fields)


def test_the_addition_is_the_product_of_two_thin_matrices() -> None:
    model, x = network().eval(), torch.randn(4, 3, 16, 16)
    before, plain = model.blocks[0].attn.qkv.weight.detach().clone(), model(x)  # (48, 16)
    add_low_rank(model, 2)
    torch.testing.assert_close(model.eval()(x), plain, rtol=0, atol=0)  # nothing changes before the first step
    addition = model.blocks[0].attn.qkv.parametrizations.weight[0]
    with torch.no_grad():
        addition.B.normal_()
    assert addition.A.shape == (2, 16) and addition.B.shape == (48, 2)
    change = model.blocks[0].attn.qkv.weight - before
    torch.testing.assert_close(change, addition.B @ addition.A)
    assert torch.linalg.matrix_rank(change) == 2
    with pytest.raises(UsageError, match="only 16 wide"):  # a rank that saves nothing
        add_low_rank(network(), 16)


def test_only_additions_and_head_learn() -> None:
    model = network()
    add_low_rank(model, 2)
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    wanted = {f"blocks.{i}.{m}.parametrizations.weight.0.{x}" for i in (0, 1) for m in ADAPTED for x in "AB"}
    assert learning == wanted | {"head.weight", "head.bias"}
    # r (in + out) for each matrix of a block: qkv 16+48, proj 16+16, fc1 and fc2 16+64
    assert sum(p.numel() for n, p in model.named_parameters() if n in wanted) == 2 * 2 * (64 + 32 + 80 + 80)


@pytest.mark.parametrize(
    "fields",
    [{}, {"positions": "rotary", "mlp": "swiglu", "pool": "cls_mean"}, {"class_token": False, "pool": "attention"}],
)
def test_a_merged_state_is_that_of_a_plain_network_with_the_same_logits(fields: dict[str, Any]) -> None:
    model = network("conv", **fields)
    add_low_rank(model, 2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".B"):
                parameter.normal_()
    plain = network("conv", **fields)
    plain.load_state_dict(merged(model))  # strict
    x = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(plain.eval()(x), model.eval()(x))
    assert set(merged(plain)) == set(plain.state_dict())


def test_batch_norm_of_a_frozen_stem_keeps_its_statistics() -> None:
    model = network("conv")
    add_low_rank(model, 2)
    before = {name: value.clone() for name, value in model.state_dict().items() if "running" in name}
    assert before
    model.train()(torch.randn(4, 3, 16, 16) * 9)
    for name, value in before.items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=0)
