"""Known sets by their file names: each card recognises its own set, also in part and renamed, and no other."""

from __future__ import annotations

import csv
import hashlib
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Recorder
from PIL import Image

from vitmed.core.data_config import DataConfig
from vitmed.data.dataset_cards import cards
from vitmed.data.known_sets import find_known_set, report_known_set
from vitmed.data.patient_names import class_folder
from vitmed.data.patients import suggest_groups
from vitmed.data.splits import make_splits

N = range(1, 13)
HEX = [hashlib.sha1(str(i).encode()).hexdigest() for i in N]
# Card -> paths as the owner of the set publishes them.
PUBLISHED: dict[str, list[str]] = {
    "aptos_2019": [f"{i % 5}/{HEX[i - 1][:12]}.png" for i in N],
    "brain_tumor_mri": [f"{k}/Te-{k[:2]}{t}_{i:04}.jpg" for k in ("glioma", "notumor") for t in ("", "Tr") for i in N],
    "breakhis": [f"{k}/SOB_{s}-14-{2000 + i}-100-0{i:02}.png" for k, s in (("b", "B_TA"), ("m", "M_DC")) for i in N],
    "busi": [f"{k}/{k} ({i}).png" for k in ("benign", "malignant", "normal") for i in N],
    "covid19_radiography": [f"{k}/images/{k}-{i}.png" for k in ("COVID", "Lung_Opacity", "Viral Pneumonia") for i in N],
    "ham10000": [f"{k}/ISIC_00{24305 + i}.jpg" for k in ("nv", "mel") for i in N],
    "herlev_pap": [f"normal_columnar/15395644{i % 9}-153956458-{i:03}.BMP" for i in N],
    "isic_2019": [f"{k}/ISIC_00000{i:02}{e}.jpg" for k, e in (("NV", "_downsampled"), ("MEL", "")) for i in N],
    "isic_2020": [f"{k}/ISIC_{n}{i:02}.jpg" for k, n in (("benign", "00157"), ("malignant", "99998")) for i in N],
    "kermany_chest_xray": [
        f"{path}.jpeg"
        for i in N
        for path in (
            f"train/PNEUMONIA/person{i}_bacteria_{2 * i}",
            f"test/PNEUMONIA/person{i}_virus_{i}",
            f"train/NORMAL/IM-{i:04}-0001",
            f"test/NORMAL/NORMAL2-IM-{i:04}-0001-0002",
        )
    ],
    "kermany_oct": [f"test/{k}/{k}-{1016042 + i}-{i}.jpeg" for k in ("CNV", "DME", "DRUSEN", "NORMAL") for i in N],
    "knee_oa": [f"train/{i % 5}/90{i:02}175{side}.png" for side in "LR" for i in N],
    "lc25000": [f"{k}/{k.replace('_', '')}{i}.jpeg" for k in ("lung_aca", "lung_n", "lung_scc") for i in N],
    "nct_crc_he": [f"{k}/{k}-{chr(64 + i) * 8}.tif" for k in ("ADI", "TUM") for i in N],
    "nih_chestxray14": [f"{k}/{i:08}_000.png" for k in ("Effusion", "No Finding") for i in N],
    "nih_malaria": [f"Uninfected/C{i}NThinF_IMG_20150614_124212_cell_{i}.png" for i in N],
    "oscc_histology": [f"{k}/{k}_{m}x_{i}.jpg" for k in ("Normal", "OSCC") for m in (100, 400) for i in N],
    "pad_ufes_20": [f"{k}/PAT_{i}_{i + 7}_{i * 31}.png" for k in ("BCC", "MEL") for i in N],
    "pbc_blood": [f"{k}/{k}_{i}78141.jpg" for k in ("MMY", "SNE", "LY") for i in N],
}  # fmt: skip
BY_SIZE = {"pcam"}  # recognised with the pixels
UNNAMED = {"cifar10", "mnist", "medmnist_plus"}  # their files are numbers


def write(file: Path, grey: int, side: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side), grey, np.uint8)).save(file)


def recognised(paths: list[str], root: Path = Path("nowhere")) -> str | None:
    known = find_known_set(root, paths, [class_folder(path) for path in paths])
    return known and known.card.name


def test_every_card_is_tried() -> None:
    assert set(PUBLISHED) | BY_SIZE == {name for name, card in cards().items() if card.recognise is not None}
    assert {name for name, card in cards().items() if card.recognise is None} == UNNAMED


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_set_is_recognised_as_itself(name: str) -> None:
    paths = PUBLISHED[name]
    assert recognised(paths) == name
    fits = [other for other, files in PUBLISHED.items() if recognised(files) == name]
    assert fits == [name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_also_renamed_resaved_and_augmented(name: str) -> None:
    """Split folders above, another format, lower case, one foreign image in fifty, copies of Roboflow and by hand."""
    folders = ("Training", "dev", "testing")
    split = [path.rpartition("/") for path in PUBLISHED[name]]
    classes = [class_folder(path) for path in PUBLISHED[name]]
    moved = [f"{folders[i % 3]}/{classes[i]}/{file}" for i, (_, _, file) in enumerate(split)]
    assert recognised(moved) == name
    assert recognised([path.rpartition(".")[0] + ".tif" for path in PUBLISHED[name]]) == name
    assert recognised([f"{folder}/{file.lower()}" for folder, _, file in split]) == name
    assert recognised([*PUBLISHED[name] * 4, f"{classes[0]}/holiday.png"]) == name
    for mark in ("_flip", "_jpg.rf.0123456789abcdef", " - Copy"):
        copies = [f"{folder}/{file.rpartition('.')[0]}{mark}.jpg" for folder, _, file in split]
        assert recognised([*PUBLISHED[name], *copies]) == name, mark


@pytest.mark.parametrize(
    "shape",
    [
        lambda i: f"{'ab'[i % 2]}/IM-{i:04}.png",
        lambda i: f"{'ab'[i % 2]}/IM-{i:04}-0001.dcm",  # names of a DICOM viewer
        lambda i: f"PNEUMONIA/person{i}_bacteria_{i}.jpeg",  # one shape of three
        lambda i: f"{'ab'[i % 2]}/{i:08}_000.png",  # zero-padded patients of anybody
        lambda i: f"{i % 2}/{HEX[i % 12][:12]}.png",
        lambda i: f"{i % 2}/{HEX[i % 12]}.png",
        lambda i: f"{('benign', 'malignant')[i % 2]}/ISIC_{i:07}.jpg",  # of an earlier year
        lambda i: f"{('benign', 'malignant')[i % 2]}/{('benign', 'malignant')[i % 2]}_{i + 1000}.png",
        lambda i: f"{('normal', 'tumour')[i % 2]}/normal ({i}).png",
        lambda i: f"{'ab'[i % 2]}/PAT_{i}_1_2.png",
        lambda i: f"{'ab'[i % 2]}/Normal-{i}.png",
        lambda i: f"{'ab'[i % 2]}/C{i}_cell_{i}.png",
        lambda i: f"{'ab'[i % 2]}/{9000000 + i}L.png",
        lambda i: f"{i % 10}/{i}.png",
    ],
)
def test_foreign_sets_are_not_recognised(shape: Callable[[int], str]) -> None:
    assert recognised([shape(i) for i in range(1, 60)]) is None


def test_a_set_has_no_more_images_than_its_card() -> None:
    assert recognised([f"{k}/{k} ({i}).png" for k in ("benign", "malignant") for i in range(1, 300)]) is None
    assert recognised([f"{k}/{k} ({i}).png" for k in ("benign", "malignant") for i in range(1, 200)]) == "busi"
    assert recognised([f"{k}/{k} (1).png" for k in ("benign", "malignant")]) is None  # too few to tell


def test_the_size_of_the_images_where_names_say_little(tmp_path: Path) -> None:
    for side, name in ((96, "pcam"), (224, None)):
        for i, digest in enumerate(HEX):
            write(tmp_path / f"{side}/{i % 2}/{digest}.png", i, side)
        paths = [f"{i % 2}/{digest}.png" for i, digest in enumerate(HEX)]
        assert recognised(paths, tmp_path / str(side)) == name


def test_the_patients_of_a_card_are_suggested() -> None:
    """The example of the issue: pneumonia by person, normal by series, in one set."""
    paths = PUBLISHED["kermany_chest_xray"]
    guess = suggest_groups(Path("nowhere"), paths)
    assert guess is not None and guess.patients == 24 and guess.examples == ("IM-0001", "IM-0002", "IM-0003")
    assert guess.expression == cards()["kermany_chest_xray"].group_regex


def test_the_report_names_set_warnings_and_flag(tmp_path: Path, ui: Recorder) -> None:
    for k, path in enumerate(PUBLISHED["kermany_chest_xray"]):
        write(tmp_path / path, k, 8)
    config = DataConfig(root=str(tmp_path), cache=False)
    report_known_set(make_splits(config), ui)
    assert "looks like kermany_chest_xray" in ui.warned[0] and "48 of 5,856 images" in ui.warned[0]
    assert len(ui.warned) == 1 and not ui.said, "one line; vitmed check prints the card"
    assert ui.warned[0].endswith(r"; patients: --group-regex 'person\d+|IM-\d+'")
    assert f"vitmed check {tmp_path} shows 6 pitfalls" in ui.warned[0]
    known = Recorder()
    report_known_set(make_splits(config.model_copy(update={"groups": "names", "allow_leakage": True})), known)
    assert not any("--group-regex" in line for line in known.warned)


def test_all_27_558_malaria_cells(data_dir: Path) -> None:
    with (data_dir / "malaria_gray50_patients.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    paths = [row["path"] for row in rows]
    known = find_known_set(data_dir, paths, [class_folder(path) for path in paths])
    assert known is not None and known.card.name == "nih_malaria" and known.images == known.card.total == len(rows)
    guess = suggest_groups(data_dir, paths)
    assert guess is not None and guess.patients == len({row["patient"] for row in rows})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("archive", "name", "images"),
    [
        ("busi", "busi", 780),
        ("herlev_pap", "herlev_pap", 917),
        ("knee_oa_kl", "knee_oa", 4482),
        ("oscc_histology", "oscc_histology", 1224),
        ("pbc_blood", "pbc_blood", 3200),
        ("nih_cxr_multilabel", None, 0),  # no class folder: only its table of labels shows which set it is
    ],
)
def test_the_development_sets(data_dir: Path, archive: str, name: str | None, images: int) -> None:
    if not (data_dir / f"{archive}.tar.gz").is_file():
        pytest.skip(f"no {archive}.tar.gz")
    with tarfile.open(data_dir / f"{archive}.tar.gz") as tar:
        files = [member.name.partition("/")[2] for member in tar if member.isfile()]
    paths = sorted(path for path in files if path.endswith((".png", ".jpg")))
    known = find_known_set(data_dir, paths, [class_folder(path) for path in paths])
    assert (known and (known.card.name, known.images)) == (name and (name, images))
