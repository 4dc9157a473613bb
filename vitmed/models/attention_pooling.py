"""Attention pooling: one learned query reads all tokens (Zhai et al. 2022, arXiv 2106.04560, section 3.1).

SigLIP and MedSigLIP add an MLP afterwards. CoCa's pooling (Yu et al. 2022, arXiv 2205.01917), which CONCH has, norms
the tokens before and the result afterwards, and may have another width than the network. Names are timm's; shapes use
the letters of `vitmed.models.vit`, and E: the width of the pooling.
"""

from __future__ import annotations

from torch import Tensor, nn

COCA_HEADS, COCA_EPS = 8, 1e-5  # of every published pooling of CoCa, whatever the network has


class AttentionPool(nn.Module):
    """(B, N, D) -> (B, E).

    Args:
        width: D.
        out: E.
        heads: they divide E.
        mlp: (B, E) -> (B, E), added to the result; None for CoCa's pooling.
        eps: of the layer norms.
    """

    def __init__(self, width: int, out: int, heads: int, mlp: nn.Module | None, eps: float):
        super().__init__()
        self.heads, self.mlp = heads, mlp
        self.norm_k = nn.LayerNorm(width, eps=eps) if mlp is None else nn.Identity()
        self.latent = nn.Parameter(nn.init.trunc_normal_(Tensor(1, 1, out), std=out**-0.5))
        self.q = nn.Linear(out, out)
        self.kv = nn.Linear(width, 2 * out)
        self.proj = nn.Linear(out, out)
        self.norm = nn.LayerNorm(out, eps=eps)

    def forward(self, x: Tensor, collected: list[Tensor] | None = None) -> Tensor:
        """If `collected` is a list, the attention of the query is appended to it, (B, A, 1, N)."""
        B, N, _ = x.shape
        E = self.latent.shape[-1]
        q = self.q(self.latent).reshape(1, 1, self.heads, -1).transpose(1, 2)  # (1, A, 1, E/A)
        k, v = self.kv(self.norm_k(x)).reshape(B, N, 2, self.heads, -1).permute(2, 0, 3, 1, 4)  # 2 x (B, A, N, E/A)
        attention = ((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)).softmax(dim=-1)  # (B, A, 1, N)
        if collected is not None:
            collected.append(attention)
        x = self.proj((attention.to(v.dtype) @ v).transpose(1, 2).reshape(B, E))
        return self.norm(x) if self.mlp is None else x + self.mlp(self.norm(x))
