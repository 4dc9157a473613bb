"""Random small models of timm, torchvision and transformers give the same numbers as ours through the loader."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
import transformers
from foreign_networks import CLASSES as K
from foreign_networks import HEADS, SIZE, restless
from foreign_networks import load as load_file
from foreign_networks import same as compare
from torch import nn

from vitmed.models.vit import ViT
from vitmed.models.weights.catalogue import public_weights

WIDTH, DEPTH = 48, 3


def load(file: Path, **fields: Any) -> ViT:
    return load_file(file, **fields)[0]


TIMM: dict[str, dict[str, Any]] = {
    "AugReg, DeiT, MAE, DINO": {},
    "mean of the patches (MAE fine-tuned)": {"global_pool": "avg"},
    "UNI: LayerScale": {"init_values": 0.1},
    "patch 4": {"patch_size": 4},
    "DINOv2: patch 14": {"img_size": 56, "patch_size": 14, "init_values": 0.1},
    "DINOv2 with registers": {
        "img_size": 56, "patch_size": 14, "init_values": 0.1, "reg_tokens": 4, "no_embed_class": True
    },
    "registers with places": {"reg_tokens": 4},
    "one channel": {"in_chans": 1},
}  # fmt: skip


def of_timm(**fields: Any) -> nn.Module:
    module = importlib.import_module("timm.models.vision_transformer")
    defaults = {"img_size": SIZE, "patch_size": 8, "embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS}
    return restless(module.VisionTransformer(**(defaults | {"num_classes": K} | fields)))


@pytest.mark.parametrize("variant", TIMM)
def test_timm(tmp_path: Path, variant: str) -> None:
    fields = TIMM[variant]
    theirs = of_timm(**fields)
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    ours = load(tmp_path / "w.pth")
    size = fields.get("img_size", SIZE)
    compare(theirs, ours, size, fields.get("in_chans", 3))
    if fields.get("global_pool") != "avg":  # timm's tokens have no norm then, ours neither
        compare(theirs.forward_features, ours.forward_features, size, fields.get("in_chans", 3))


def test_deit_with_its_second_token(tmp_path: Path) -> None:
    module = importlib.import_module("timm.models.deit")
    theirs = restless(
        module.VisionTransformerDistilled(
            img_size=SIZE, patch_size=8, embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS, num_classes=K
        )
    )
    torch.save({"model": theirs.state_dict()}, tmp_path / "w.pth")
    compare(theirs.forward_features, load(tmp_path / "w.pth").forward_features)


@pytest.mark.parametrize("variant", ["AugReg, DeiT, MAE, DINO", "DINOv2 with registers"])
@pytest.mark.parametrize("size", [16, 64])
def test_timm_at_another_image_size(tmp_path: Path, variant: str, size: int) -> None:
    """timm resamples positions on loading; both then see images of the new size."""
    fields = {**TIMM[variant], "img_size": SIZE, "patch_size": 8}
    theirs = of_timm(**fields)
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    resize = importlib.import_module("timm.models.vision_transformer").checkpoint_filter_fn
    resized = of_timm(**{**fields, "img_size": size})
    resized.load_state_dict(resize(theirs.state_dict(), resized))
    compare(resized, load(tmp_path / "w.pth", image_size=size), size)


def test_timm_at_another_patch_size(tmp_path: Path) -> None:
    theirs = of_timm()
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    resize = importlib.import_module("timm.models.vision_transformer").checkpoint_filter_fn
    resized = of_timm(patch_size=16)
    resized.load_state_dict(resize(theirs.state_dict(), resized))
    compare(resized, load(tmp_path / "w.pth", patch_size=16, image_size=SIZE))


def test_torchvision(tmp_path: Path) -> None:
    theirs = restless(
        torchvision.models.VisionTransformer(
            image_size=SIZE, patch_size=8, num_layers=DEPTH, num_heads=HEADS, hidden_dim=WIDTH,
            mlp_dim=2 * WIDTH, num_classes=K,
        )
    )  # fmt: skip
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    compare(theirs, load(tmp_path / "w.pth"))


HF = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS}
HF |= {"image_size": SIZE, "patch_size": 8, "num_labels": K}


@pytest.mark.parametrize("how", ["state_dict", "save_pretrained"])
def test_hugging_face_classifier(tmp_path: Path, how: str) -> None:
    config = transformers.ViTConfig(**HF, intermediate_size=2 * WIDTH)
    theirs = restless(transformers.ViTForImageClassification(config))
    compare(lambda x: theirs(x).logits, load(save(theirs, tmp_path, how)))


GIANT = {"mlp_ratio": 4, "use_swiglu_ffn": True}  # Midnight's layout: packed in the file, apart in the state dict


@pytest.mark.parametrize("how", ["state_dict", "save_pretrained"])
@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("ViT", {"intermediate_size": 2 * WIDTH}),
        *((kind, extra) for kind in ("Dinov2", "Dinov2WithRegisters") for extra in ({"mlp_ratio": 2}, GIANT)),
    ],
)
def test_hugging_face_backbones(tmp_path: Path, kind: str, extra: dict[str, Any], how: str) -> None:
    theirs = restless(getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**HF, **extra)))
    ours = load(save(theirs, tmp_path, how))
    compare(lambda x: theirs(x).last_hidden_state, ours.forward_features)
    if extra is GIANT:
        compare(lambda x: theirs(x).pooler_output, ours.features)


@pytest.mark.parametrize("how", ["state_dict", "save_pretrained"])
@pytest.mark.parametrize("kind", ["Model", "ForImageClassification", "ForImageClassificationWithTeacher"])
def test_hugging_face_deit_with_its_second_token(tmp_path: Path, kind: str, how: str) -> None:
    """With two heads, that of the class token counts."""
    theirs = restless(getattr(transformers, f"DeiT{kind}")(transformers.DeiTConfig(**HF, intermediate_size=2 * WIDTH)))
    ours = load(save(theirs, tmp_path, how))
    compare(lambda x: getattr(theirs, "deit", theirs)(x).last_hidden_state, ours.forward_features)
    if kind != "Model":
        compare(lambda x: theirs(x)["cls_logits" if "Teacher" in kind else "logits"], ours)


@pytest.mark.parametrize("how", ["state_dict", "save_pretrained"])
@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize("size", [SIZE, 16, 72])
def test_hugging_face_dinov3(tmp_path: Path, plus: bool, how: str, size: int) -> None:
    gated = {"use_gated_mlp": plus, "hidden_act": "silu" if plus else "gelu"}
    config = transformers.DINOv3ViTConfig(**HF, intermediate_size=2 * WIDTH, num_register_tokens=4, **gated)
    theirs = restless(transformers.DINOv3ViTModel(config))
    ours = load(save(theirs, tmp_path, how), image_size=size)
    compare(lambda x: theirs(x).last_hidden_state, ours.forward_features, size)
    compare(lambda x: theirs(x).pooler_output, ours.features, size)


def test_hugging_face_dinov3_with_other_periods(tmp_path: Path) -> None:
    """Only config.json shows them."""
    config = transformers.DINOv3ViTConfig(**HF, intermediate_size=2 * WIDTH, num_register_tokens=4, rope_theta=1000.0)
    theirs = restless(transformers.DINOv3ViTModel(config))
    ours = load(save(theirs, tmp_path, "save_pretrained"), image_size=SIZE)
    compare(lambda x: theirs(x).pooler_output, ours.features)


@pytest.mark.parametrize("name", [name for name in public_weights() if name.startswith("dinov3")])
def test_the_catalogue_states_dinov3s_images_as_transformers(name: str) -> None:
    entry, theirs = public_weights()[name], transformers.DINOv3ViTImageProcessor()
    assert (list(entry.mean), list(entry.std)) == (list(theirs.image_mean), list(theirs.image_std))
    assert (entry.image_size, entry.interpolation) == (theirs.size["height"], theirs.resample.name.lower())


@pytest.mark.parametrize("how", ["state_dict", "save_pretrained"])
@pytest.mark.parametrize("whole", [False, True])
def test_hugging_face_siglip(tmp_path: Path, whole: bool, how: str) -> None:
    """MedSigLIP's layout: the image tower beside the text tower, whose tensors are not used."""
    vision = {**HF, "intermediate_size": 2 * WIDTH}
    text = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "vocab_size": 9, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
    if whole:
        both = transformers.SiglipModel(transformers.SiglipConfig(vision_config=vision, text_config=text))
        model, theirs = restless(both), both.vision_model
    else:
        model = theirs = restless(transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**vision)))
    ours = load(save(model, tmp_path, how))
    compare(lambda x: theirs(x).last_hidden_state, ours.forward_features)
    compare(lambda x: theirs(x).pooler_output, ours.features)


def test_hugging_face_siglip2_with_patches_in_rows(tmp_path: Path) -> None:
    fields = {name: HF[name] for name in HF if name != "image_size"} | {"intermediate_size": 2 * WIDTH}
    theirs = restless(transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**fields, num_patches=16)))

    def published(x: torch.Tensor) -> torch.Tensor:
        rows = x.unflatten(3, (4, 8)).unflatten(2, (4, 8)).permute(0, 2, 4, 3, 5, 1).reshape(len(x), 16, 8 * 8 * 3)
        grid = torch.tensor([[4, 4]] * len(x))
        return theirs(rows, torch.ones(len(x), 16, dtype=torch.long), grid).pooler_output

    compare(published, load(save(theirs, tmp_path, "save_pretrained")).features)


@pytest.mark.parametrize("act", ["quick_gelu", "gelu"])
@pytest.mark.parametrize("kind", ["CLIPVisionModel", "CLIPVisionModelWithProjection"])
def test_hugging_face_clip(tmp_path: Path, kind: str, act: str) -> None:
    """Which GELU it is stands in config.json; without one it is OpenAI's."""
    config = transformers.CLIPVisionConfig(**HF, intermediate_size=2 * WIDTH, hidden_act=act)
    theirs: Any = restless(getattr(transformers, kind)(config))
    tower = getattr(theirs, "vision_model", theirs)
    ours = load(save(theirs, tmp_path, "save_pretrained"))
    compare(lambda x: tower(x).pooler_output, ours.features)
    if act == "quick_gelu":
        (tmp_path / "config.json").unlink()
        compare(lambda x: tower(x).pooler_output, load(tmp_path / "model.safetensors").features)


@pytest.mark.parametrize("how", ["state_dict", "save_pretrained"])
def test_hugging_face_mae(tmp_path: Path, how: str) -> None:
    decoder = {"decoder_hidden_size": 16, "decoder_intermediate_size": 16}
    decoder |= {"decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
    theirs = restless(transformers.ViTMAEForPreTraining(
        transformers.ViTMAEConfig(**HF, intermediate_size=2 * WIDTH, mask_ratio=0.0, **decoder)))  # fmt: skip
    ours = load(save(theirs, tmp_path, how))
    noise = torch.arange(16.0).expand(2, -1)  # keeps the patches in their order
    compare(lambda x: theirs.vit(x, noise=noise).last_hidden_state, ours.forward_features)


def save(model: Any, folder: Path, how: str) -> Path:
    """As somebody has it: a state dict by torch.save, or the hub's model.safetensors."""
    if how == "state_dict":
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        return folder / "pytorch_model.bin"
    model.save_pretrained(folder)
    return folder / "model.safetensors"


@pytest.mark.parametrize("stacked", [False, True])
def test_google_npz(tmp_path: Path, stacked: bool) -> None:
    """Against timm's own reader of such files."""
    generator = np.random.default_rng(0)
    number, mlp, second = (0, 0, 1) if stacked else (1, 3, 2)
    heads, qkv = (HEADS, WIDTH // HEADS), ("query", "key", "value")
    attention, dense = f"MultiHeadDotProductAttention_{number}", f"MlpBlock_{mlp}/Dense"
    block: dict[str, tuple[int, ...]] = {
        "LayerNorm_0/scale": (WIDTH,), "LayerNorm_0/bias": (WIDTH,),
        f"LayerNorm_{second}/scale": (WIDTH,), f"LayerNorm_{second}/bias": (WIDTH,),
        **{f"{attention}/{n}/kernel": (WIDTH, *heads) for n in qkv}, **{f"{attention}/{n}/bias": heads for n in qkv},
        f"{attention}/out/kernel": (*heads, WIDTH), f"{attention}/out/bias": (WIDTH,),
        f"{dense}_0/kernel": (WIDTH, 4 * WIDTH), f"{dense}_0/bias": (4 * WIDTH,),
        f"{dense}_1/kernel": (4 * WIDTH, WIDTH), f"{dense}_1/bias": (WIDTH,),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "embedding/kernel": (8, 8, 3, WIDTH), "embedding/bias": (WIDTH,), "cls": (1, 1, WIDTH),
        "Transformer/encoder_norm/scale": (WIDTH,), "Transformer/encoder_norm/bias": (WIDTH,),
        "head/kernel": (WIDTH, K), "head/bias": (K,),
    }  # fmt: skip
    if stacked:
        shapes |= {"pos_embedding": (1, 17, WIDTH)}
        shapes |= {f"Transformer/encoderblock/{name}": (DEPTH, *shape) for name, shape in block.items()}
        shapes = {f"params/{name}": shape for name, shape in shapes.items()}
    else:
        shapes |= {"Transformer/posembed_input/pos_embedding": (1, 17, WIDTH)}
        shapes |= {f"Transformer/encoderblock_{i}/{n}": shape for i in range(DEPTH) for n, shape in block.items()}
    np.savez(tmp_path / "w.npz", **{n: 0.2 * generator.normal(size=s).astype(np.float32) for n, s in shapes.items()})
    theirs: Any = of_timm()
    theirs.load_pretrained(str(tmp_path / "w.npz"))
    compare(theirs, load(tmp_path / "w.npz"))
