"""The masked autoencoder against transformers' ViTMAEForPreTraining: the same weights, images and mask."""

from __future__ import annotations

import re

import torch
import transformers
from small_networks import small_vit
from torch import Tensor

from vitmed.models.mae import MAE

D, E, DEPTH, HEADS, SIZE, P, C = 48, 32, 3, 4, 32, 8, 3
NAMES = (  # theirs -> ours
    (r"vit\.embeddings\.cls_token", "encoder.cls_token"),
    (r"vit\.embeddings\.position_embeddings", "encoder.pos_embed"),
    (r"vit\.embeddings\.patch_embeddings\.projection\.(\w+)", r"encoder.patch_embed.proj.\1"),
    (r"vit\.layernorm\.(\w+)", r"encoder.norm.\1"),
    (r"decoder\.mask_token", "mask_token"),
    (r"decoder\.decoder_pos_embed", "decoder_places"),
    (r"decoder\.decoder_(embed|norm|pred)\.(\w+)", r"decoder_\1.\2"),
)
BLOCK = (
    (r"attention\.attention\.(query|key|value)", r"\1"),
    (r"attention\.([qkv])_proj", r"\1"),
    (r"attention\.output\.dense|attention\.o_proj", "attn.proj"),
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"intermediate\.dense|mlp\.fc1", "mlp.fc1"),
    (r"output\.dense|mlp\.fc2", "mlp.fc2"),
)
BLOCKS = r"(vit\.encoder\.layer|vit\.layers|decoder\.decoder_layers)\.(\d+)\.(.*)\.(weight|bias)"


def ours_from(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their state dict with our names."""
    state: dict[str, Tensor] = {}
    qkv: dict[str, dict[str, Tensor]] = {}
    for name, value in theirs.items():
        if match := re.fullmatch(BLOCKS, name):
            stack, number, layer, part = match.groups()
            block = f"{'decoder_blocks' if stack.startswith('decoder') else 'encoder.blocks'}.{number}"
            new = next(b for a, b in BLOCK if re.fullmatch(a, layer))
            new = re.fullmatch(next(a for a, b in BLOCK if re.fullmatch(a, layer)), layer).expand(new)  # type: ignore[union-attr]
            if new[0] in "qkv" and "." not in new:
                qkv.setdefault(f"{block}.attn.qkv.{part}", {})[new[0]] = value
            else:
                state[f"{block}.{new}.{part}"] = value
        else:
            pattern, new = next((a, b) for a, b in NAMES if re.fullmatch(a, name))
            state[re.fullmatch(pattern, name).expand(new)] = value  # type: ignore[union-attr]
    return state | {name: torch.cat([parts[x] for x in "qkv"]) for name, parts in qkv.items()}


def test_the_same_loss_and_the_same_guesses() -> None:
    config = transformers.ViTMAEConfig(
        hidden_size=D, num_hidden_layers=DEPTH, num_attention_heads=HEADS, intermediate_size=4 * D, image_size=SIZE,
        patch_size=P, num_channels=C, decoder_hidden_size=E, decoder_num_hidden_layers=2, decoder_num_attention_heads=2,
        decoder_intermediate_size=4 * E, mask_ratio=0.75, norm_pix_loss=True, layer_norm_eps=1e-6,
    )  # fmt: skip
    theirs = transformers.ViTMAEForPreTraining(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    ours = MAE(small_vit(1, SIZE, P, channels=C, width=D, depth=DEPTH, heads=HEADS), 0.75, E, 2, 2).eval()
    missing, unexpected = ours.load_state_dict(ours_from(theirs.state_dict()), strict=False)
    assert set(missing) <= {"encoder.head.weight", "encoder.head.bias"} and set(unexpected) <= {"decoder_places"}
    ours.decoder_places.copy_(theirs.decoder.decoder_pos_embed.detach())
    x = torch.randn(3, C, SIZE, SIZE, generator=generator)
    noise = torch.rand(3, (SIZE // P) ** 2, generator=generator)
    with torch.no_grad():
        wanted = theirs(pixel_values=x, noise=noise)
        made = ours.reconstruct(x, noise)
        loss = ours(x, noise)
    assert torch.equal(made.hidden, wanted.mask.bool())
    torch.testing.assert_close(made.predicted, wanted.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss, wanted.loss, atol=1e-5, rtol=1e-5)
    assert 0.1 < float(loss) < 100
