"""The masked autoencoder (He et al. 2021, arXiv 2111.06377): learns from images without labels. Three quarters of the
patches are hidden; the ViT encodes the others, and a small decoder predicts the pixels of the hidden ones.

Letters of the shapes, in addition to those of `vit.py`:
    V visible patches   E width of the decoder   Q numbers of a patch, P x P x C
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitmed.core.config import ModelConfig
from vitmed.core.errors import UsageError
from vitmed.models.layers import PatchEmbed, sincos_2d
from vitmed.models.vit import Block, ViT

EPS = 1e-6  # of the decoder's layer norms


class Reconstruction(NamedTuple):
    """The output for a batch."""

    predicted: Tensor  # (B, L, Q) float32, in the units of `MAE.target`
    hidden: Tensor  # (B, L) bool, True where the encoder did not see the patch


class MAE(nn.Module):
    """(B, C, H, W) normalised float -> the mean squared error of the hidden patches, ().

    Args:
        encoder: a ViT with the plain stem. Its state dict is a weight file; its head is not used or trained.
        mask_ratio: share of hidden patches, in (0, 1).
        decoder_width, decoder_depth, decoder_heads: the width is a multiple of 4 and of the number of heads.

    Raises:
        UsageError: another stem, or sizes that leave no patch visible or no patch hidden.
    """

    decoder_places: Tensor

    def __init__(
        self,
        encoder: ViT,
        mask_ratio: float = 0.75,
        decoder_width: int = 512,
        decoder_depth: int = 8,
        decoder_heads: int = 16,
    ):
        super().__init__()
        if not isinstance(encoder.patch_embed, PatchEmbed):
            problem = "a masked autoencoder needs the plain stem: the patches of a convolutional stem overlap"
            fix = "leave --stem out, or --stem patch; vitmed train --weights takes the stem of the encoder"
            raise UsageError(problem, fix)
        added = encoder.pos_embed is not None and encoder.rope is None
        if encoder.cls_token is None or not added or not isinstance(encoder.norm_pre, nn.Identity):
            needs = "a class token, added positions and no norm before the blocks, unlike SigLIP, DINOv3 and CLIP"
            raise UsageError(f"a masked autoencoder needs {needs}", "--positions learned, or other weights")
        kernel = encoder.patch_embed.proj.weight  # (D, C, P, P)
        L = encoder.patches
        self.patch, self.patches = kernel.shape[-1], L
        self.visible = round(L * (1 - mask_ratio))  # V
        if not 0 < self.visible < L:
            seen = f"with mask ratio {mask_ratio:g}, {self.visible} of {L} patches are visible"
            raise UsageError(f"{seen}, expected some but not all", "a smaller --patch-size, or another --mask-ratio")
        self.encoder = encoder
        self.decoder_embed = nn.Linear(kernel.shape[0], decoder_width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, decoder_width))
        places = sincos_2d(round(L**0.5), decoder_width)  # (1, 1 + L, E)
        self.register_buffer("decoder_places", places, persistent=False)
        block = ModelConfig(width=decoder_width, heads=decoder_heads)
        self.decoder_blocks = nn.ModuleList(Block(block) for _ in range(decoder_depth))
        self.decoder_norm = nn.LayerNorm(decoder_width, eps=EPS)
        self.decoder_pred = nn.Linear(decoder_width, kernel[0].numel())
        for module in (self.decoder_embed, self.decoder_pred, *self.decoder_blocks.modules()):
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)  # as in the paper's code
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.mask_token, std=0.02)
        self.encoder.head.requires_grad_(False)
        self.float()  # also where `torch.set_default_dtype` names another

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        return self.loss(x, self.reconstruct(x, noise))

    def reconstruct(self, x: Tensor, noise: Tensor | None = None) -> Reconstruction:
        """Hide patches of (B, C, H, W) and predict all patches; of `noise` (B, L), the V patches with the lowest
        numbers stay visible; None draws it at random."""
        if noise is None:
            noise = torch.rand(len(x), self.patches, device=x.device)
        visible = noise.argsort(dim=1)[:, : self.visible].sort(dim=1).values  # (B, V), in reading order
        hidden = torch.ones_like(noise, dtype=torch.bool).scatter_(1, visible, False)  # (B, L)
        return Reconstruction(self.decode(self.encode(x, visible), visible).float(), hidden)

    def encode(self, x: Tensor, visible: Tensor) -> Tensor:
        """(B, C, H, W) and indices of visible patches (B, V) -> tokens (B, 1 + registers + V, D): class, registers,
        visible patches. No block sees a hidden patch."""
        encoder = self.encoder
        assert encoder.cls_token is not None and encoder.pos_embed is not None
        x = encoder.patch_embed(x) + encoder.pos_embed[:, 1:]  # (B, L, D)
        B, _, D = x.shape
        x = x.gather(1, visible[:, :, None].expand(-1, -1, D))  # (B, V, D)
        first = [(encoder.cls_token + encoder.pos_embed[:, :1]).expand(B, -1, -1).to(x.dtype)]
        if encoder.reg_token is not None:
            first.append(encoder.reg_token.expand(B, -1, -1).to(x.dtype))
        x = encoder.pos_drop(torch.cat([*first, x], dim=1))  # (B, 1 + registers + V, D)
        for block in encoder.blocks:
            x = block(x)
        return encoder.norm(x)

    def decode(self, x: Tensor, visible: Tensor) -> Tensor:
        """The tokens of `encode` -> (B, L, Q), a prediction for every patch."""
        x = self.decoder_embed(x)  # (B, 1 + registers + V, E)
        B, _, E = x.shape
        patches = self.mask_token.to(x.dtype).repeat(B, self.patches, 1)  # (B, L, E)
        patches = patches.scatter(1, visible[:, :, None].expand(-1, -1, E), x[:, -visible.shape[1] :])
        x = torch.cat([x[:, :1], patches], dim=1) + self.decoder_places  # (B, 1 + L, E)
        for block in self.decoder_blocks:
            x = block(x)
        return self.decoder_pred(self.decoder_norm(x))[:, 1:]  # (B, L, Q)

    def target(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> what the decoder should predict, (B, L, Q) float32: each patch at mean 0 and deviation 1, of
        the unbiased variance + 1e-6 as in the paper."""
        patches = patchify(x.float(), self.patch)
        variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)  # 2 x (B, L, 1)
        return (patches - mean) / (variance + 1e-6).sqrt()

    def loss(self, x: Tensor, result: Reconstruction) -> Tensor:
        """Mean squared error over the hidden patches, ()."""
        error = (result.predicted - self.target(x)).square().mean(dim=-1)  # (B, L)
        return (error * result.hidden).sum() / result.hidden.sum()


def patchify(x: Tensor, patch: int) -> Tensor:
    """(B, C, H, W) -> (B, L, P x P x C): patches in reading order; within each rows, then pixels, then channels."""
    B, C, H, W = x.shape
    x = x.reshape(B, C, H // patch, patch, W // patch, patch)  # (B, C, h, P, w, P)
    return x.permute(0, 2, 4, 3, 5, 1).reshape(B, -1, patch * patch * C)  # (B, L, Q)


def decoder_size(width: int) -> tuple[int, int, int]:
    """Width, depth and heads of the decoder for an encoder of that width.

    The paper's decoder (512 wide, 8 deep, heads 32 wide) suits encoders of width 768 and more. For a smaller encoder
    it has half the width and 4 blocks, since it sees four times as many tokens and must not cost more.
    """
    half = max(32, round(width / 64) * 32)
    return (512, 8, 16) if width >= 768 else (half, 4, half // 32)
