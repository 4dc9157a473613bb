"""The masked autoencoder: what the encoder sees, what the loss counts, and that it learns. Against transformers' own:
tests/reference/test_mae_parity.py."""

from __future__ import annotations

import pytest
import torch
from small_networks import small_vit
from torch import Tensor

from vitmed.core.errors import UsageError
from vitmed.models.mae import MAE, decoder_size, patchify

P, SIZE, L, D = 4, 16, 16, 16


def network(mask_ratio: float = 0.75, **fields: object) -> MAE:
    torch.manual_seed(0)
    encoder = small_vit(1, SIZE, P, width=D, depth=2, heads=2, positions="sincos_2d", **fields)  # type: ignore[arg-type]
    return MAE(encoder, mask_ratio, 32, 1, 2).eval()


def draw(batch: int = 2, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def noise(batch: int = 2) -> Tensor:
    return torch.rand(batch, L, generator=torch.Generator().manual_seed(2))


def image_of(patches: Tensor, channels: int = 3) -> Tensor:
    """(B, L, P x P x C) -> (B, C, H, W): undoes `patchify`."""
    side = SIZE // P
    x = patches.reshape(len(patches), side, side, P, P, channels)  # (B, h, w, P, P, C)
    return x.permute(0, 5, 1, 3, 2, 4).reshape(len(patches), channels, SIZE, SIZE)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_patches_hold_every_pixel(channels: int) -> None:
    x = draw(channels=channels)
    patches = patchify(x, P)
    assert patches.shape == (2, L, P * P * channels)
    assert torch.equal(image_of(patches, channels), x)


def test_the_order_within_a_patch_by_hand() -> None:
    """Patches in reading order; in each row by row, pixel by pixel, the channels of a pixel together."""
    x = torch.arange(2 * 4 * 4).reshape(1, 2, 4, 4)  # channel 0 holds 0 to 15, channel 1 holds 16 to 31
    wanted = [[0, 16, 1, 17, 4, 20, 5, 21], [2, 18, 3, 19, 6, 22, 7, 23],
              [8, 24, 9, 25, 12, 28, 13, 29], [10, 26, 11, 27, 14, 30, 15, 31]]  # fmt: skip
    assert patchify(x, 2)[0].tolist() == wanted


def test_the_patches_of_lowest_noise_are_seen() -> None:
    made = network().reconstruct(draw(), noise())
    assert made.hidden.sum(dim=1).tolist() == [12, 12] and made.predicted.shape == (2, L, P * P * 3)
    for row, hidden in zip(noise(), made.hidden, strict=True):
        assert set((~hidden).nonzero()[:, 0].tolist()) == set(row.argsort()[:4].tolist())


@torch.no_grad()
def test_every_patch_visible_is_the_plain_encoder() -> None:
    """The tokens pass through in order: with all of them the encoder gives what the ViT gives, registers included."""
    for registers in (0, 3):
        mae = network(registers=registers)
        everything = torch.arange(L).expand(2, -1)
        torch.testing.assert_close(mae.encode(draw(), everything), mae.encoder.forward_features(draw()))


@torch.no_grad()
def test_the_guess_depends_on_visible_patches_alone() -> None:
    mae, x = network(), draw()
    made = mae.reconstruct(x, noise())
    other = patchify(x, P)
    other[made.hidden] = 7.0
    again = mae.reconstruct(image_of(other), noise())
    assert torch.equal(made.predicted, again.predicted)
    other = patchify(x, P)
    other[~made.hidden] = 7.0
    assert not torch.equal(made.predicted, mae.reconstruct(image_of(other), noise()).predicted)


@torch.no_grad()
def test_the_loss_by_hand_counts_hidden_patches_alone() -> None:
    mae, x = network(), draw()
    made = mae.reconstruct(x, noise())
    errors = []
    for b, i in made.hidden.nonzero().tolist():
        row, column = divmod(i, SIZE // P)
        patch = x[b, :, row * P : (row + 1) * P, column * P : (column + 1) * P].permute(1, 2, 0).flatten()
        patch = (patch - patch.mean()) / (patch.var() + 1e-6).sqrt()
        errors.append((made.predicted[b, i] - patch).square().mean())
    torch.testing.assert_close(mae(x, noise()), torch.stack(errors).mean())
    guessed = made.predicted.clone()
    guessed[~made.hidden] = 1e6  # what it says of visible patches costs nothing
    assert torch.equal(mae.loss(x, made._replace(predicted=guessed)), mae.loss(x, made))


@torch.no_grad()
def test_a_perfect_guess_costs_nothing() -> None:
    mae, x = network(), draw()
    made = mae.reconstruct(x, noise())._replace(predicted=mae.target(x))
    assert float(mae.loss(x, made)) == 0
    constant = torch.full((1, 3, SIZE, SIZE), 0.3)
    assert torch.equal(mae.target(constant), torch.zeros(1, L, P * P * 3))


def test_the_encoder_is_trained_but_for_its_head_and_fixed_positions() -> None:
    mae = network()
    mae(draw(), noise()).backward()
    still = {name for name, parameter in mae.named_parameters() if parameter.grad is None}
    assert still == {"encoder.head.weight", "encoder.head.bias", "encoder.pos_embed"}


@pytest.mark.slow
def test_it_learns() -> None:
    """Images of which each patch tells all others: plain colours."""
    mae = network(normalise=False).train()
    optimiser = torch.optim.AdamW([p for p in mae.parameters() if p.requires_grad], 3e-3)
    losses = []
    for _ in range(120):
        x = torch.rand(16, 3, 1, 1).expand(-1, -1, SIZE, SIZE)
        loss = mae(x, torch.rand(len(x), L))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.3 * 10 / 12  # the variance of what it guesses is 1/12


def test_what_cannot_be_masked_is_told() -> None:
    with pytest.raises(UsageError, match="plain stem"):
        network(stem="conv")
    with pytest.raises(UsageError, match="patches are visible"):
        network(0.99)
    with pytest.raises(UsageError, match="patches are visible"):
        network(0.01)
    for fields in ({"positions": "rotary"}, {"class_token": False, "pool": "mean"}, {"norm_pre": True}):
        with pytest.raises(UsageError, match="needs a class token, added positions and no norm before the blocks"):
            MAE(small_vit(1, SIZE, P, width=D, depth=1, heads=2, **fields))  # type: ignore[arg-type]


def test_the_decoders_size() -> None:
    """The paper's for its sizes; below them narrower than the encoder, heads 32 wide."""
    assert decoder_size(768) == decoder_size(1024) == (512, 8, 16)
    assert (decoder_size(128), decoder_size(192), decoder_size(384)) == ((64, 4, 2), (96, 4, 3), (192, 4, 6))
    assert decoder_size(16) == (32, 4, 1)
