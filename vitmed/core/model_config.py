"""The section `model`: the Vision Transformer."""

from __future__ import annotations

from typing import Literal

from vitmed.core.settings import Flag, Section, setting


class ModelConfig(Section):
    """The Vision Transformer. Sizes come from the name; every number can be set."""

    panel = "Model"

    name: str = setting(
        "vit_tiny", "vit_tiny, vit_small, vit_base or vit_large.", Flag("model", metavar="SIZE", first=True)
    )
    image_size: int = setting(224, "Side of the square input, px.", Flag(first=True), ge=4, le=2048)
    patch_size: int = setting(16, "Side of a patch, px; must divide the image size.", Flag(), ge=1, le=256)
    channels: int = setting(3, "Input channels: 1 grey, 2 grey + alpha, 3 RGB, 4 RGB + alpha.", Flag(), ge=1, le=4)
    width: int | None = setting(None, "Embedding width; default from the name.", ge=4, le=8192)
    depth: int | None = setting(None, "Number of blocks; default from the name.", ge=1, le=128)
    heads: int | None = setting(None, "Attention heads; must divide width; default from the name.", ge=1)
    mlp_ratio: float = setting(4.0, "Hidden width of the MLP / width.", gt=0, le=64)
    stem: Literal["auto", "patch", "conv", "residual"] = setting(
        "auto",
        "How patches are embedded: one convolution (patch), 3x3 convolutions of stride 2 (conv), or these and residual "
        "blocks (residual). The latter two learn faster from few images, and residual best. auto: residual in a plan "
        "from scratch, conv in other trainings from scratch, patch with weights.",
        Flag(),
    )
    positions: Literal["learned", "sincos_1d", "sincos_2d", "rotary"] = setting(
        "learned", "Position embedding; rotary as in DINOv3.", Flag()
    )
    pool: Literal["auto", "cls", "mean", "cls_mean", "attention", "coca"] = setting(
        "auto",
        "What the head sees: the class token (cls), the mean of the patches, both (cls_mean), or attention pooling. "
        "attention: as in SigLIP; coca: as in CONCH. auto: mean from scratch, what the publisher uses with weights.",
        Flag(),
    )
    pool_width: int | None = setting(None, "Width of attention pooling; null: the width of the network.", ge=4, le=8192)
    class_token: bool = setting(True, "Whether the network has a class token; SigLIP has none.")
    registers: int = setting(0, "Learned tokens without a place; some DINOv2 weights have 4.", ge=0, le=64)
    layer_scale: bool = setting(False, "Scale each branch by learned numbers, as DINOv2 and UNI do.")
    mlp: Literal["gelu", "gelu_tanh", "quick_gelu", "swiglu"] = setting(
        "gelu", "The MLP of a block: with GELU, one of its approximations (SigLIP, CLIP), or gated (SwiGLU)."
    )
    norm_pre: bool = setting(False, "A norm before the blocks, as in CLIP.")
    norm_eps: float = setting(1e-6, "Epsilon of the layer norms; 1e-12 in Hugging Face's ViT.", gt=0, lt=1)
    dropout: float = setting(0.0, "Dropout after positions, attention projection and MLP layers.", ge=0, lt=1)
    attention_dropout: float = setting(0.0, "Dropout of attention probabilities.", ge=0, lt=1)
    drop_path: float = setting(0.0, "Stochastic depth of the last block; grows linearly from 0.", Flag(), ge=0, lt=1)
    weights: str | None = setting(
        None,
        "Weights to start from: a file, or a name of `vitmed weights list`; they decide the network. The file is of "
        "vitmed, timm, torchvision, Hugging Face or Google; in a YAML file, relative to that file.",
        Flag(metavar="FILE|NAME", first=True),
    )
    licence: str | None = setting(
        None, "Licence of the weights, where it is known; the checkpoint and the report keep it."
    )
    terms: str | None = setting(
        None, "What that licence demands of a model made from the weights, where vitmed knows; kept like the licence."
    )
