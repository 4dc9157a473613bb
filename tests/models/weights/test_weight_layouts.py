"""Random small networks of timm, of every kind that public weights have, give the same numbers through the loader."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from foreign_networks import CLASSES as K
from foreign_networks import HEADS, SIZE, load, restless, same
from small_networks import small_vit
from timm.layers import QuickGELU, SwiGLUPacked
from timm.models.eva import Eva
from timm.models.eva import checkpoint_filter_fn as eva_filter
from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer import checkpoint_filter_fn as vit_filter
from torch import Tensor, nn

from vitmed.core.config import ModelConfig
from vitmed.core.errors import CheckpointError
from vitmed.models.vit import ViT
from vitmed.models.weights.layouts import HEAD
from vitmed.models.weights.pretrained import config_for_weights, load_pretrained, read_weights

WIDTH = 64
COMMON = {"img_size": SIZE, "patch_size": 8, "embed_dim": WIDTH, "depth": 2, "num_heads": HEADS, "num_classes": K}
NORM = partial(nn.LayerNorm, eps=1e-5)
PACKED = {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU, "init_values": 0.1}
DINOV3 = {
    "patch_size": 8, "init_values": 0.1, "rope_type": "dinov3", "rope_temperature": 100, "rope_rotate_half": True,
    "use_rot_pos_emb": True, "use_abs_pos_emb": False, "num_reg_tokens": 4, "use_fc_norm": False, "norm_layer": NORM,
    "dynamic_img_size": True, "global_pool": "token",
}  # fmt: skip
VIT: dict[str, dict[str, Any]] = {
    "Virchow": {**PACKED, "mlp_ratio": 5.375},
    "Virchow2": {**PACKED, "mlp_ratio": 5.375, "reg_tokens": 4},
    "UNI2-h": {**PACKED, "mlp_ratio": 5.40625, "reg_tokens": 8, "no_embed_class": True},
    "H-optimus, H0-mini": {**PACKED, "mlp_ratio": 5.40625, "reg_tokens": 4, "no_embed_class": True},
    "CLIP": {"pre_norm": True, "norm_layer": NORM},
    "CLIP of OpenAI": {"pre_norm": True, "norm_layer": NORM, "act_layer": "quick_gelu"},
    "SigLIP": {"class_token": False, "global_pool": "map"},
    "SigLIP 2": {"class_token": False, "global_pool": "map", "act_layer": "gelu_tanh", "mlp_ratio": 3.7362},
    "no class token, mean": {"class_token": False, "global_pool": "avg", "reg_tokens": 4, "no_embed_class": True},
    "queries, keys and values without bias": {"qkv_bias": False},
}  # fmt: skip
EVA: dict[str, dict[str, Any]] = {
    "DINOv3": {**DINOV3, "qkv_bias": False},
    "DINOv3 with biases": {**DINOV3, "qkv_bias": True},
    "DINOv3 plus": {**DINOV3, "qkv_bias": True, "swiglu_mlp": True, "swiglu_align_to": 8, "mlp_ratio": 3.9},
}


def pre_logits(model: Any) -> Any:
    return lambda x: model.forward_head(model.forward_features(x), pre_logits=True)


@pytest.mark.parametrize("variant", [*VIT, *EVA])
@pytest.mark.parametrize("size", [SIZE, 16, 48])
def test_features_and_logits_are_those_of_timm(tmp_path: Path, variant: str, size: int) -> None:
    fields = VIT.get(variant) or EVA[variant]
    kind, resize = (VisionTransformer, vit_filter) if variant in VIT else (Eva, eva_filter)
    theirs = restless(kind(**COMMON | fields))  # type: ignore[operator]
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    if size != SIZE:  # timm resamples positions on loading
        resized = kind(**COMMON | fields | {"img_size": size})  # type: ignore[operator]
        resized.load_state_dict(resize(theirs.state_dict(), resized))  # type: ignore[operator]
        theirs = resized.eval()
    gelu = fields.get("act_layer") if fields.get("act_layer") in ("quick_gelu", "gelu_tanh") else None
    ours, report = load(tmp_path / "w.pth", image_size=size, **({"mlp": gelu} if gelu else {}))
    if variant in EVA:  # timm's head may read the mean of normalised patches, which no tensor shows: it is not used
        assert (report.fresh, report.unused) == (HEAD, tuple(f"of_other_features.{name}" for name in HEAD))
        ours.head = theirs.head
    else:
        assert (report.fresh, report.unused) == ((), ())
    same(theirs, ours, size)
    same(pre_logits(theirs), ours.features, size)
    if fields.get("global_pool") != "avg":  # the norm then follows the mean, here as in timm
        same(theirs.forward_features, ours.forward_features, size)


EVA02 = {"embed_dim": 128, "num_heads": 2, "mlp_ratio": 8 / 3, "swiglu_mlp": True, "use_rot_pos_emb": True,
         "ref_feat_shape": (28, 28)}  # fmt: skip
SIZES_OF_EVA02 = {"tiny, small": EVA02, "base": {**EVA02, "qkv_fused": False, "scale_mlp": True}}


def as_eva_x(state: dict[str, Tensor], pairs: bool) -> dict[str, Tensor]:
    """timm's EVA-02 in the names of the pretraining (eva_x.py in hustvl/EVA-X: `checkpoint_filter_fn`)."""
    names = {"mlp.norm": "mlp.ffn_ln", "fc1_g": "w1", "fc1_x": "w2", "fc2": "w3", "q_proj.bias": "q_bias",
             "v_proj.bias": "v_bias", "fc_norm": "norm", **({} if pairs else {"fc1": "w12"})}  # fmt: skip
    new = {"mask_token": torch.zeros(1, 1, 128), "blocks.0.attn.rope.freqs_cos": torch.zeros(16, 64),
           "lm_head.weight": torch.zeros(16, 128), "lm_head.bias": torch.zeros(16)}  # fmt: skip
    for name, value in state.items():
        if not name.startswith("head."):
            for old, now in names.items():
                name = name.replace(old, now)
            new[name] = value
    return new


@pytest.mark.parametrize("variant", SIZES_OF_EVA02)
@pytest.mark.parametrize("size", [SIZE, 16, 48])
def test_eva02_gives_the_features_and_logits_of_timm(tmp_path: Path, variant: str, size: int) -> None:
    fields = COMMON | SIZES_OF_EVA02[variant]
    theirs = restless(Eva(**fields))
    state = theirs.state_dict()
    torch.save(state, tmp_path / "timm.pth")
    torch.save({"module": as_eva_x(state, pairs=variant == "base")}, tmp_path / "eva_x.pt")
    if size != SIZE:
        resized = Eva(**fields | {"img_size": size})
        resized.load_state_dict(eva_filter(state, resized))
        theirs = resized.eval()
    for file, fresh, unused in (
        ("timm.pth", set(), set()),
        ("eva_x.pt", {"head.weight", "head.bias"}, {"mask_token", "lm_head.weight", "lm_head.bias"}),
    ):
        weights = read_weights(tmp_path / file)
        ours = ViT(config_for_weights(ModelConfig(image_size=size), weights), K)
        report = load_pretrained(ours, weights)
        assert (set(report.fresh), set(report.unused)) == (fresh, unused)
        same(pre_logits(theirs), ours.eval().features, size)
        if not fresh:
            same(theirs, ours, size)


@pytest.mark.parametrize("variant", ["Virchow2", "DINOv3"])
def test_class_token_beside_patch_mean(tmp_path: Path, variant: str) -> None:
    """As Virchow's model card reads the network."""
    theirs = restless((VisionTransformer if variant in VIT else Eva)(**COMMON | (VIT | EVA)[variant]))
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    ours, report = load(tmp_path / "w.pth", pool="cls_mean", image_size=SIZE)
    assert report.fresh == ("head.weight", "head.bias") and ours.head.in_features == 2 * WIDTH

    def published(x: Tensor) -> Tensor:
        tokens = theirs.forward_features(x)
        return torch.cat([tokens[:, 0], tokens[:, 5:].mean(1)], dim=-1)

    same(published, ours.features)


def as_meta(state: dict[str, Tensor], plus: bool) -> dict[str, Tensor]:
    """timm's DINOv3 in the names of Meta's files, with keys whose bias the mask removes, and periods in bf16."""
    names = {"reg_token": "storage_tokens", "gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma", "fc1_g": "w1",
             "fc1_x": "w2", **({"fc2": "w3"} if plus else {})}  # fmt: skip
    new = {"mask_token": torch.zeros(1, WIDTH), "local_cls_norm.weight": torch.ones(WIDTH),
           "rope_embed.periods": (100 ** (torch.arange(4) / 4)).bfloat16()}  # fmt: skip
    for name, value in state.items():
        if name.endswith("q_bias"):
            start, other = name.removesuffix("q_bias"), state[name.replace("q_bias", "v_bias")]
            new[f"{start}qkv.bias"] = torch.cat([value, torch.full_like(value, 3.0), other])
            new[f"{start}qkv.bias_mask"] = torch.cat([torch.ones(WIDTH), torch.zeros(WIDTH), torch.ones(WIDTH)])
        elif not name.endswith("v_bias"):
            for old, now in names.items():
                name = name.replace(old, now)
            new[name] = value
    return new


@pytest.mark.parametrize("variant", ["DINOv3 with biases", "DINOv3 plus"])
def test_metas_own_files_of_dinov3(tmp_path: Path, variant: str) -> None:
    theirs = restless(Eva(**COMMON | EVA[variant]))
    torch.save(as_meta(theirs.state_dict(), variant.endswith("plus")), tmp_path / "w.pth")
    ours, report = load(tmp_path / "w.pth", image_size=SIZE)
    assert report.fresh == () and {"mask_token", "local_cls_norm.weight", "bias_mask.0"} <= set(report.unused)
    theirs.rope.periods.copy_(theirs.rope.periods.bfloat16())  # as in the file
    same(theirs, ours)


def test_dinov2s_packed_files_with_blocks_in_chunks(tmp_path: Path) -> None:
    theirs = restless(VisionTransformer(**COMMON | VIT["Virchow"]))
    names = {"blocks.": "blocks.0.", "mlp.fc1": "mlp.w12", "mlp.fc2": "mlp.w3"}
    state = theirs.state_dict()
    for old, now in names.items():
        state = {name.replace(old, now): value for name, value in state.items()}
    torch.save({"teacher": {f"backbone.{name}": value for name, value in state.items()}}, tmp_path / "w.pth")
    same(theirs, load(tmp_path / "w.pth")[0])


@pytest.mark.parametrize("pool", ["map", "avg"])
@pytest.mark.parametrize("size", [SIZE, 48])
def test_naflex(tmp_path: Path, pool: str, size: int) -> None:
    tokens = {"class_token": False, "reg_tokens": 4} if pool == "avg" else {"class_token": False, "reg_tokens": 0}
    cfg = NaFlexVitCfg(patch_size=8, embed_dim=WIDTH, depth=2, num_heads=HEADS, pos_embed_grid_size=(4, 4),
                       global_pool=pool, init_values=0.1, **tokens)  # fmt: skip
    theirs = restless(NaFlexVit(cfg, num_classes=K))
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    ours, report = load(tmp_path / "w.pth", image_size=size)
    assert (report.fresh, report.unused) == ((), ())
    same(theirs, ours, size)


def text_tower() -> dict[str, Tensor]:
    return {"logit_scale": torch.ones(()), "text.transformer.layer.0.attention.q_norm.weight": torch.ones(3),
            "text_model.encoder.layers.0.mlp.fc1.weight": torch.ones(3, 3)}  # fmt: skip


def test_biomedclip_is_a_plain_trunk_beside_a_text_tower(tmp_path: Path) -> None:
    theirs = restless(VisionTransformer(**COMMON | {"num_classes": 0}))
    trunk = {f"visual.trunk.{name}": value for name, value in theirs.state_dict().items()}
    torch.save(trunk | text_tower() | {"visual.head.proj.weight": torch.ones(3, WIDTH)}, tmp_path / "w.bin")
    ours, report = load(tmp_path / "w.bin")
    same(theirs, ours.features)
    assert {"logit_scale", "visual.head.proj.weight"} < set(report.unused)


def test_keep_is_a_vit_with_layer_scale_beside_a_text_tower(tmp_path: Path) -> None:
    """KEEP names timm's ViT `visual`, beside its projection and BERT."""
    theirs = restless(VisionTransformer(**COMMON | {"num_classes": 0, "init_values": 1e-5}))
    tower = {f"visual.{name}": value for name, value in theirs.state_dict().items()}
    bert = {"text.embeddings.word_embeddings.weight": torch.ones(5, 3), "text.pooler.dense.bias": torch.ones(3)}
    heads = {"visual_head.0.weight": torch.ones(3, WIDTH), "visual_head.2.bias": torch.ones(3)}
    torch.save(tower | bert | heads | {"logit_scale": torch.ones(())}, tmp_path / "w.bin")
    ours, report = load(tmp_path / "w.bin")
    same(theirs, ours.features)
    assert {*bert, *heads, "logit_scale"} == set(report.unused)


class ConchTower(nn.Module):
    """The image tower that CONCH publishes: a trunk, and a query that attends to all its tokens, without projection."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = VisionTransformer(**COMMON | {"num_classes": 0})
        self.attn_pool_contrast = nn.Module()
        self.attn_pool_contrast.query = nn.Parameter(torch.zeros(1, 48))
        self.attn_pool_contrast.attn = nn.MultiheadAttention(48, 8, kdim=WIDTH, vdim=WIDTH, batch_first=True)
        self.attn_pool_contrast.ln_q, self.attn_pool_contrast.ln_k = nn.LayerNorm(48), nn.LayerNorm(WIDTH)
        self.ln_contrast = nn.LayerNorm(48)
        self.proj_contrast = nn.Parameter(torch.zeros(48, 48))

    def forward(self, x: Tensor) -> Tensor:
        pool, x = self.attn_pool_contrast, self.trunk.forward_features(x)
        keys, query = pool.ln_k(x), pool.ln_q(pool.query).expand(len(x), -1, -1)
        return self.ln_contrast(pool.attn(query, keys, keys)[0][:, 0])


def test_conchs_tower(tmp_path: Path) -> None:
    theirs = restless(ConchTower())
    caption = {"visual.attn_pool_caption.query": torch.zeros(256, 48)}
    state = {f"visual.{name}": value for name, value in theirs.state_dict().items()}
    torch.save(state | caption | text_tower(), tmp_path / "w.bin")
    ours, report = load(tmp_path / "w.bin")
    assert (ours.pool, ours.head.in_features, report.fresh) == ("coca", 48, ("head.weight", "head.bias"))
    same(theirs, ours.features)
    assert {"visual.proj_contrast", *caption} < set(report.unused)


def test_openclips_own_names(tmp_path: Path) -> None:
    theirs = restless(VisionTransformer(**COMMON | VIT["CLIP"] | {"num_classes": 0}))
    names = {"blocks.": "transformer.resblocks.", "norm_pre": "ln_pre", "norm1": "ln_1", "norm2": "ln_2",
             "patch_embed.proj": "conv1", "attn.qkv.": "attn.in_proj_", "attn.proj": "attn.out_proj",
             "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj", "cls_token": "class_embedding",
             "pos_embed": "positional_embedding"}  # fmt: skip
    state = {}
    for name, value in theirs.state_dict().items():
        for old, now in names.items():
            name = name.replace(old, now)
        name = name.replace("norm.", "ln_post.")
        state[f"visual.{name}"] = value.squeeze(0).squeeze(0) if "embedding" in name else value
    torch.save(state | {"visual.proj": torch.zeros(WIDTH, 3), "positional_embedding": torch.zeros(7, 3)} | text_tower(),
               tmp_path / "w.bin")  # fmt: skip
    same(theirs, load(tmp_path / "w.bin")[0].features)
    (tmp_path / "open_clip_config.json").write_text('{"model_cfg": {"quick_gelu": true}}')
    for block in theirs.blocks:
        block.mlp.act = QuickGELU()
    same(theirs, load(tmp_path / "w.bin")[0].features)


def test_a_grey_image_gives_what_its_copy_in_three_channels_gives_to_clip(tmp_path: Path) -> None:
    """CLIP's convolution has no bias, which the folded channels need."""
    theirs = restless(VisionTransformer(**COMMON | VIT["CLIP"]))
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5]}')
    grey = load(tmp_path / "w.pth", channels=1)[0]
    x = torch.randn(2, 1, SIZE, SIZE)
    with torch.no_grad():
        torch.testing.assert_close(grey(x), theirs(x.expand(-1, 3, -1, -1)), atol=1e-5, rtol=1e-5)


def test_flattened_patches_of_an_unknown_order_are_no_weights(tmp_path: Path) -> None:
    """Only NaFlexViT's and Siglip2's are known to be (P, P, 3); others would be read with their values mixed up."""
    state = VisionTransformer(**COMMON).state_dict()
    torch.save(state | {"patch_embed.proj.weight": state["patch_embed.proj.weight"].flatten(1)}, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match="expected 4 dimensions"):
        read_weights(tmp_path / "w.pth")


def test_dinov3s_keys_have_no_bias_in_training_either() -> None:
    model = small_vit(K, SIZE, 8, width=WIDTH, depth=1, heads=HEADS, positions="rotary")
    with torch.no_grad():
        model.blocks[0].attn.qkv.bias.fill_(1.0)
    F.cross_entropy(model(torch.randn(2, 3, SIZE, SIZE)), torch.tensor([0, 1])).backward()
    gradient = model.blocks[0].attn.qkv.bias.grad.chunk(3)
    assert not gradient[1].any() and gradient[2].any()
