"""The data cards: complete, consistent with vitmed's own tables, and their patient patterns find the patients."""

import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import Recorder, recording
from PIL import Image
from timm.models.vision_transformer import VisionTransformer

from vitmed.core.config import Config, PretrainConfig
from vitmed.core.dataset_cards import card_like, cards, read_card
from vitmed.core.errors import DataError
from vitmed.core.load_config import build_config, load_config
from vitmed.data.splits import make_splits
from vitmed.imaging.augmentation import POLICIES
from vitmed.models.weights.catalogue import entry_of, public_weights, weight_path
from vitmed.training.plan.make_plan import make_plan

ROOT = Path(__file__).parents[2]
CARDS = sorted((ROOT / "datasets").glob("*.yaml"))
FIELDS = (
    "name title modality task source citation licence images classes size_px checksum checksum_note download by_hand "
    "layout columns group_regex group_note examples augmentation pitfalls published"
)
MAY_BE_EMPTY = {"checksum", "download", "by_hand", "columns", "group_regex", "examples", "published"}


def read(card: Path) -> dict[str, Any]:
    return yaml.safe_load(card.read_text(encoding="utf-8"))


def group(pattern: str, path: str) -> str | None:
    """The patient as the config field data.group_regex promises: the first bracket that matches, or the whole match."""
    match = re.search(pattern, path)
    return match and (next(filter(None, match.groups()), None) if match.re.groups else match[0])


def test_all_cards_are_there() -> None:
    assert len(CARDS) == 23
    assert not (ROOT / "datasets" / "__init__.py").exists(), "it would shadow Hugging Face's `datasets`"


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.stem)
def test_a_card_has_every_field(card: Path) -> None:
    tree = read(card)
    assert " ".join(tree) == FIELDS
    assert tree["name"] == card.stem
    assert [field for field in tree if not tree[field] and field not in MAY_BE_EMPTY] == []
    assert tree["source"].startswith("http")
    for row in tree["published"]:
        assert set(row) == {"figure", "split", "source"}
    lengths = {"md5": 32, "sha256": 64}
    for file, checksum in (tree["checksum"] or {}).items():
        kind, _, digest = checksum.partition(":")
        assert re.fullmatch(r"[0-9a-f]+", digest) and len(digest) == lengths[kind], file

    suggested = tree["augmentation"]
    assert set(suggested.values() if isinstance(suggested, dict) else [suggested]) <= set(POLICIES)
    assert bool(tree["examples"]) == (tree["group_regex"] is not None)
    for path, patient in tree["examples"].items():
        assert group(tree["group_regex"], path) == patient, path
    found = read_card(card)
    assert bool(found.download) != bool(found.by_hand)
    if found.download is not None:
        files = [file for part in found.sets.values() for file in part]
        assert set(files) | set(found.download.bytes) <= set(found.checksum or {})


def test_a_card_that_the_model_does_not_allow(tmp_path: Path) -> None:
    card = ROOT / "datasets" / "nih_malaria.yaml"
    for name, changes in {
        "sise_px": {"sise_px": 3},
        "images": {"images": "many"},
        "download.url": {"download": {"url": "http://x/{file}", "layout": "folders"}},
        "title": {"title": None},
        "columns.age": {"columns": {"age": "x"}},
    }.items():
        (tmp_path / "card.yaml").write_text(yaml.safe_dump(read(card) | changes))
        with pytest.raises(DataError, match=re.escape(f"card.yaml: {name}")):
            read_card(tmp_path / "card.yaml")
    (tmp_path / "card.yaml").write_text("a: [")
    with pytest.raises(DataError, match="not a readable card"):
        read_card(tmp_path / "card.yaml")


def test_the_collection_names_every_class_of_its_sets() -> None:
    card = read_card(ROOT / "datasets" / "medmnist_plus.yaml")
    assert isinstance(card.classes, dict) and isinstance(card.images, dict)
    assert list(card.classes) == list(card.images)
    counts = {"PathMNIST": 9, "ChestMNIST": 14, "DermaMNIST": 7, "OCTMNIST": 4, "PneumoniaMNIST": 2, "RetinaMNIST": 5}
    counts |= {"BreastMNIST": 2, "BloodMNIST": 8, "TissueMNIST": 8} | {f"Organ{x}MNIST": 11 for x in "ACS"}
    assert {name: len(set(names)) for name, names in card.classes.items()} == counts
    sizes = ("", "_64", "_128", "_224")
    assert sorted(card.sets) == sorted(f"{name.lower()}{size}" for name in counts for size in sizes)
    assert len(set((card.checksum or {}).values())) == 48


def test_the_readme_explains_every_field() -> None:
    text = (ROOT / "datasets" / "README.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert re.findall(r"`(\w+)`", " ".join(rows)) == FIELDS.split()


# --- --card NAME


def draw(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(zlib.crc32(file.name.encode())).integers(0, 256, (8, 8), np.uint8)).save(file)


def test_a_card_gives_patients_and_policy_and_what_you_set_wins() -> None:
    found = load_config(overrides={"data.card": "nih_malaria"})
    assert found.data.group_regex == r"(?:^|/)(C\d+)[^/]*$" and found.augment.policy == "blood_smear"
    own = load_config(overrides={"data.card": "nih_malaria", "data.groups": "names", "augment.policy": "light"})
    assert (own.data.groups, own.data.group_regex, own.augment.policy) == ("names", None, "light")
    assert load_config(overrides={"data.card": "bloodmnist_64"}).augment.policy == "blood_smear"
    assert load_config(overrides={"data.card": "medmnist_plus"}).augment.policy == Config().augment.policy
    pretrain = load_config(overrides={"data.card": "nih_malaria"}, kind=PretrainConfig)
    assert pretrain.augment.policy == "mae" and pretrain.data.group_regex == found.data.group_regex
    again = build_config(found.model_dump())  # as a run stores it
    assert again == found
    changed = found.model_dump()
    changed["data"]["group_regex"] = None
    assert build_config(changed).data.group_regex is None


def test_an_unknown_card_lists_the_known_ones(vitmed: Any, tmp_path: Path) -> None:
    answer = vitmed("train", tmp_path, "--card", "nih_malari")
    assert answer.code == 2 and "did you mean 'nih_malaria'" in answer.err
    answer = vitmed("check", tmp_path, "--card", "unheard_of")
    assert answer.code == 2 and all(name in answer.err for name in ("aptos_2019", "pcam"))


def test_the_columns_of_a_card(tmp_path: Path) -> None:
    """HAM10000: the class in dx, the lesion in lesion_id, which groups the images."""
    rows = ["lesion_id,image_id,dx,age"]
    for i in range(40):
        draw(tmp_path / f"images/ISIC_{i:07}.jpg")
        rows.append(f"HAM_{i // 2},ISIC_{i:07},{('nv', 'mel')[i // 2 % 2]},{i}")
    table = tmp_path / "HAM10000_metadata"
    table.write_text("\n".join(rows))
    config = load_config(
        overrides={"data.root": str(tmp_path / "images"), "data.labels": str(table), "data.card": "ham10000"}
    )
    splits = make_splits(config.data)
    assert splits.classes == ("mel", "nv") and splits.unit == "lesion_id group" and not splits.shared()
    assert not make_splits(config.data.model_copy(update={"card": None})).grouped
    table.write_text(table.read_text().replace("dx", "diagnostic").replace("image_id", "img_id"))
    with pytest.raises(DataError, match="no column for the"):
        make_splits(config.data)
    other = config.data.model_copy(update={"card": "pad_ufes_20"})
    assert make_splits(other).classes == ("mel", "nv")


def test_training_takes_them_and_prints_the_warnings(tmp_path: Path, ui: Recorder) -> None:
    for i in range(60):
        draw(tmp_path / f"data/{('Parasitized', 'Uninfected')[i % 2]}/C{i // 2}P1_cell_{i}.png")
    config = load_config(overrides={"data.root": str(tmp_path / "data"), "data.card": "nih_malaria"})
    prepared = make_plan(config, plans=False)
    assert prepared.splits.grouped and prepared.config.augment.policy == "blood_smear"
    assert not any("was made with" in text for text in ui.warned)
    pitfalls = cards()["nih_malaria"].pitfalls
    assert ui.warned[0].startswith("the card of nih_malaria") and all(f"  - {text}" in ui.said for text in pitfalls)


def test_weights_that_have_seen_the_set_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))
    for i in range(30):
        draw(tmp_path / f"data/{('a', 'b')[i % 2]}/{i}.png")
    names = VisionTransformer(img_size=32, patch_size=16, embed_dim=64, depth=1, num_heads=1).state_dict()
    file = weight_path("retfound_cfp")
    file.parent.mkdir(parents=True)
    torch.save(names, file)
    monkeypatch.setitem(public_weights(), "retfound_cfp", entry_of("retfound_cfp")._replace(size=None, seen=("busi",)))
    warned = {}
    for card in ("busi", "breastmnist_224", "ham10000", None):
        ui = recording()
        changes = {"data.root": str(tmp_path / "data"), "data.card": card, "model.weights": "retfound_cfp"}
        make_plan(load_config(overrides=changes), plans=False)
        warned[card] = [text for text in ui.warned if "was made with" in text]
    assert warned["ham10000"] == warned[None] == []
    for card in ("busi", "breastmnist_224"):
        assert len(warned[card]) == 1 and f"the images of {card} among those" in warned[card][0]
    for i in range(60):  # without a card, but with the classes of one
        draw(tmp_path / f"oct/{('CNV', 'DME', 'DRUSEN', 'NORMAL')[i % 4]}/{i}.png")
    seen = entry_of("retfound_cfp")._replace(size=None, seen=("kermany_oct",))
    monkeypatch.setitem(public_weights(), "retfound_cfp", seen)
    ui = recording()
    changes = {"data.root": str(tmp_path / "oct"), "model.weights": "retfound_cfp"}
    make_plan(load_config(overrides=changes), plans=False)
    assert sum("the classes are those of kermany_oct" in text for text in ui.warned) == 1


def test_a_folder_is_recognised_by_its_classes_and_few_classes_also_by_their_images() -> None:
    assert card_like(["CNV", "DME", "DRUSEN", "Normal"], 400) == "kermany_oct"  # a part of it, written otherwise
    assert card_like(["Uninfected", "Parasitized"], 27_558) == "nih_malaria"
    assert card_like(["benign", "malignant"], 7_900) == "breakhis"  # ISIC 2020 has the same classes
    assert card_like(["Uninfected", "Parasitized"], 2_000) is None  # anybody's cells
    assert card_like(["0", "1", "2", "3", "4"], 100) is None  # grades of anything
    assert card_like(["benign", "malignant", "other"], 7_900) is None
