"""A checkpoint is self-sufficient, plain, relative, and read without running anything."""

from __future__ import annotations

import os
import pickletools
import re
import resource
import shlex
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from checkpoints import Hostile, content, rewrite, save
from conftest import Trained, listing

from vitmed import train
from vitmed.core.errors import CheckpointError, DataError
from vitmed.core.load_config import load_config
from vitmed.core.run_folder import RunFolder, run_lock
from vitmed.data.samples import Sample, Splits
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.inference.checkpoint import (
    VERSION,
    add_policy,
    load_checkpoint,
    save_checkpoint,
    set_data_root,
    write_without_names,
)


def test_it_knows_all_that_evaluation_and_prediction_need(trained: Trained) -> None:
    saved = load_checkpoint(trained.best)
    assert saved.classes == ("amber", "blue", "green")
    assert saved.preprocessing == Preprocessing(16, 3, "pad", "imagenet")
    assert saved.config.model.stem == "residual" and saved.config.model.pool == "mean"  # no `auto` left
    assert saved.data_root().samefile(trained.data)
    assert {name: len(part) for name, part in saved.splits.samples.items()} == {"train": 36, "val": 12, "test": 18}
    assert [len(digests) for digests in saved.hashes.values()] == [36, 12, 18]
    assert saved.record["best"] and saved.training is None
    assert set(saved.versions) >= {"vitmed", "torch"}
    assert not saved.model().training


def test_last_holds_the_state_and_best_does_not(trained: Trained) -> None:
    last = load_checkpoint(trained.folder / "last.pt")
    assert last.training is not None and last.training["epoch"] == 6 and len(last.training["history"]) == 6
    assert (trained.folder / "last.pt").stat().st_size > trained.best.stat().st_size
    assert sorted(p.name for p in trained.folder.glob("epoch_*")) == [f"epoch_000{n}.pt" for n in (2, 4, 6)]


def test_it_is_made_of_plain_types(trained: Trained) -> None:
    """What the pickle inside names beyond literals: the makers of tensors, and nothing else."""
    with zipfile.ZipFile(trained.folder / "last.pt") as archive:
        pickled = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    named, strings = set(), []
    for code, argument, _ in pickletools.genops(pickled):
        if code.name == "GLOBAL":
            named.add(str(argument))
        elif "UNICODE" in code.name:
            strings.append(argument)
        elif code.name == "STACK_GLOBAL":
            named.add(" ".join(strings[-2:]))
    assert all(name.startswith(("torch", "collections OrderedDict")) for name in named), named


def test_no_absolute_path_leaves_the_lab(trained: Trained) -> None:
    place = str(trained.data.parent).encode()
    assert trained.best.is_relative_to(trained.folder) and trained.best.suffix == ".pt"
    for file in trained.folder.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            if file.suffix == ".pt":
                with zipfile.ZipFile(file) as archive:
                    data = b"".join(archive.read(name) for name in archive.namelist())
            assert place not in data and str(Path.home()).encode() + b"/" not in data, file
    assert yaml.safe_load((trained.folder / "config.yaml").read_text())["data"]["root"] == "../../data"


def test_run_and_data_may_move_together_or_apart(trained: Trained, tmp_path: Path) -> None:
    run = tmp_path / "elsewhere" / "runs" / "tiny"
    shutil.copytree(trained.folder, run)
    moved = load_checkpoint(run / "best.pt")
    with pytest.raises(DataError, match=r"data.*is missing") as error:
        moved.data_root()
    assert "--data" in error.value.fix
    shutil.copytree(trained.data, tmp_path / "elsewhere" / "data")
    assert moved.data_root().samefile(tmp_path / "elsewhere" / "data")


def test_the_weights_come_back_to_the_last_bit(trained: Trained, tmp_path: Path) -> None:
    saved = load_checkpoint(trained.best)
    images = saved.splits, saved.hashes
    save_checkpoint(tmp_path / "copy.pt", saved.config, *images, weights=saved.weights, record=saved.record)
    again = load_checkpoint(tmp_path / "copy.pt")
    assert all(torch.equal(again.weights[name], tensor) for name, tensor in saved.weights.items())
    assert (again.classes, again.preprocessing, again.hashes, again.record) == (
        saved.classes, saved.preprocessing, saved.hashes, saved.record,
    )  # fmt: skip
    assert again.splits.samples == saved.splits.samples
    assert again.data_root().samefile(trained.data)


def test_names_that_are_no_unicode_survive(tmp_path: Path) -> None:
    odd = os.fsdecode(b"a/caf\xe9.png")
    splits = Splits(tmp_path, ("a", "b"), {"train": (Sample(odd, 0, None),)}, {})
    save_checkpoint(tmp_path / "c.pt", load_config(), splits, {}, weights={}, record={})
    assert torch.load(tmp_path / "c.pt", weights_only=True)["data"]["splits"]["train"]["paths"] == [odd]


def told(file: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(file)
    assert error.value.exit_code == 4 and str(file) in str(error.value)
    return str(error.value)


def test_what_is_no_checkpoint(trained: Trained, tmp_path: Path) -> None:
    assert "no such file" in told(tmp_path / "none.pt")
    assert "is a folder" in told(tmp_path)
    for name, data in {"empty.pt": b"", "text.pt": b"hello", "zip.pt": b"PK\x03\x04" + bytes(50)}.items():
        (tmp_path / name).write_bytes(data)
        told(tmp_path / name)
    shutil.copy(trained.data / "train" / "amber" / "amber_0.png", tmp_path / "image.pt")
    told(tmp_path / "image.pt")
    torch.save({"head.weight": torch.zeros(2, 2)}, tmp_path / "weights.pt")
    assert "not a vitmed checkpoint" in told(tmp_path / "weights.pt") and "--weights" in told(tmp_path / "weights.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    told(tmp_path / "list.pt")
    whole = trained.best.read_bytes()
    for share in (0.1, 0.5, 0.9, 0.999):
        (tmp_path / "cut.pt").write_bytes(whole[: int(len(whole) * share)])
        text = told(tmp_path / "cut.pt")
        assert "copy it again" in text or "damaged" in text
    message = told(rewrite(trained.best, tmp_path / "v.pt", version=VERSION + 1))
    assert f"version {VERSION + 1}" in message and f"reads {VERSION}" in message


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": None},
        {"config": {"model": {"widht": 3}}},
        {"config": []},
        {"data": {"root": "x"}},
        {"preprocessing": {"side": 3}},
        {"preprocessing": Preprocessing(16, 3, "crop", "imagenet").to_dict()},  # not what its config says
        {"classes": [0, 1, 2]},
        {"classes": ["amber", "blue", "blue"]},
        {"weights": 5},
        {"record": None},
    ],
)
def test_one_that_lacks_something(trained: Trained, tmp_path: Path, changes: dict[str, object]) -> None:
    told(rewrite(trained.best, tmp_path / "odd.pt", **changes))


def test_numbers_that_are_not_finite_are_named(trained: Trained, tmp_path: Path) -> None:
    """And weights that do not fit their config."""
    weights = dict(load_checkpoint(trained.best).weights)
    odd = weights | {"head.bias": torch.tensor([torch.nan, 0, 0])}
    saved = load_checkpoint(rewrite(trained.best, tmp_path / "nan.pt", weights=odd, policy=None))
    with pytest.raises(CheckpointError, match=r"nan\.pt: head\.bias holds numbers that are not finite"):
        saved.model()
    weights.pop("head.bias")
    saved = load_checkpoint(rewrite(trained.best, tmp_path / "w.pt", weights=weights, policy=None))
    with pytest.raises(CheckpointError, match=r"w\.pt: the weights do not fit"):
        saved.model()


@pytest.mark.parametrize("inside", [False, True])
def test_a_hostile_pickle_does_not_run(trained: Trained, tmp_path: Path, inside: bool) -> None:
    mark, file = tmp_path / "ran", tmp_path / "hostile.pt"
    payload = Hostile(f"touch {mark}")
    torch.save(content(trained.best) | {"record": payload} if inside else payload, file)
    assert "could run code" in told(file)
    assert not mark.exists()
    torch.load(file, weights_only=False)  # the payload is a real one
    assert mark.exists()


def test_a_run_without_a_classifier_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "splits.csv").touch()
    with pytest.raises(CheckpointError, match=r"a run without best\.pt"):
        load_checkpoint(tmp_path)
    (tmp_path / "encoder.pt").touch()
    with pytest.raises(CheckpointError, match="a pretraining run, which has no classifier"):
        load_checkpoint(tmp_path)


def test_every_tensor_and_entry_has_a_digest(trained: Trained, tmp_path: Path) -> None:
    """Files saved again after a change have right CRCs; their digests reveal the change, and name what differs."""
    for source in (trained.best, trained.folder / "last.pt"):
        saved = content(source)
        for name in ("cls_token", "blocks.0.attn.qkv.weight", "head.bias"):
            tensor = saved["weights"][name]
            saved["weights"][name] = -tensor - 1
            torch.save(saved, tmp_path / "c.pt")
            assert f"c.pt: damaged: weights.{name} is not what was saved" in told(tmp_path / "c.pt")
            saved["weights"][name] = tensor
        torch.save(saved | {"classes": saved["classes"][::-1]}, tmp_path / "c.pt")
        assert "classes is not what was saved" in told(tmp_path / "c.pt")
    for part in ("model", "ema", "optimiser"):
        saved = content(trained.folder / "last.pt")
        tree = saved["training"][part]
        tree = tree["state"][0] if part == "optimiser" else tree
        name = next(key for key, value in tree.items() if value.ndim)
        tree[name] = tree[name] * 2 + 1
        torch.save(saved, tmp_path / "last.pt")
        assert re.search(
            rf"damaged: (weights|training\.{part})\..*{name} is not what was saved", told(tmp_path / "last.pt")
        )


def test_a_flipped_sign_in_the_file_is_noticed(trained: Trained, tmp_path: Path) -> None:
    for source in (trained.best, trained.folder / "last.pt"):
        data = bytearray(source.read_bytes())
        weight = content(source)["weights"]["head.weight"].numpy().tobytes()
        data[data.index(weight) + 3] ^= 0x80
        (tmp_path / source.name).write_bytes(data)
        assert "the checksum of its member archive/data/" in told(tmp_path / source.name)


def test_a_file_without_digests_is_read_and_keeps_its_hash(trained: Trained, tmp_path: Path) -> None:
    """As a checkpoint without digests; also after the policy or the place of the data is stored in it."""
    plain = {name: entry for name, entry in content(trained.best).items() if name not in ("digests", "policy")}
    torch.save(plain, tmp_path / "old.pt")
    before = load_checkpoint(tmp_path / "old.pt")
    policy = load_checkpoint(trained.best).policy
    assert policy is not None and before.weights_hash == policy.weights_hash
    add_policy(tmp_path / "old.pt", policy.model_copy(update={"weights_hash": before.weights_hash}))
    set_data_root(tmp_path / "old.pt", trained.data)
    assert load_checkpoint(tmp_path / "old.pt").weights_hash == before.weights_hash


@pytest.mark.parametrize(
    "sizes", [{"width": 8192, "heads": 8, "depth": 128}, {"width": 10**9}, {"image_size": 2048, "patch_size": 1}]
)
def test_an_enormous_config_takes_no_memory(trained: Trained, tmp_path: Path, sizes: dict[str, int]) -> None:
    config = content(trained.best)["config"]
    config["model"] |= sizes
    config["model"]["stem"] = "patch"
    how = content(trained.best)["preprocessing"] | {"side": config["model"]["image_size"]}
    file = rewrite(trained.best, tmp_path / "wide.pt", config=config, preprocessing=how)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=r"wide\.pt"):
        load_checkpoint(file).model()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KB


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (("epoch",), -1), (("history",), [1, 2]), (("best_epoch",), 7), (("model",), {}), (("optimiser",), 3),
        (("optimiser", "state", 0, "exp_avg"), torch.zeros(3)),
        *(
            pytest.param(*wrong, marks=pytest.mark.slow)
            for wrong in (
                (("epoch",), "2"), (("history",), []), (("running",), {}), (("running",), None), (("batch",), 1.5),
                (("ema",), None), (("optimiser", "state", 0), {}), (("optimiser", "param_groups"), []),
                (("optimiser", "state", 0, "step"), torch.zeros(5)),
            )
        ),
    ],
)  # fmt: skip
def test_a_tampered_training_state_is_refused(
    trained: Trained, tmp_path: Path, place: tuple[Any, ...], wrong: Any
) -> None:
    """Even with right digests: exit 4 before anything in the run folder is changed."""
    run = shutil.copytree(trained.folder, tmp_path / "run")
    saved = content(run / "last.pt")
    saved.pop("digests")
    tree = saved["training"]
    for key in place[:-1]:
        tree = tree[key]
    tree[place[-1]] = wrong
    save(saved, run / "last.pt")
    before = listing(run)
    with pytest.raises(CheckpointError, match=r"last\.pt: its training state does not fit"):
        train(trained.data, resume=run, epochs=5)
    assert listing(run) == before


def test_a_copy_without_names_keeps_what_decides(trained: Trained, tmp_path: Path) -> None:
    data: Any = content(trained.best)["data"]
    for name, part in data["splits"].items():
        part["groups"] = [f"Mueller-{name}-{i % 3}" for i in range(len(part["paths"]))]
        part["columns"] = [["Aachen"] for _ in part["paths"]]
    named = rewrite(trained.best, tmp_path / "named.pt", data=data | {"columns": ["town"]})
    copy = tmp_path / "copy.pt"
    write_without_names(named, copy)
    for text in (b"Mueller", b"Aachen", b"town", b"_0.png"):
        assert text not in copy.read_bytes(), text
    assert b"Mueller" in named.read_bytes() and b"_0.png" in named.read_bytes()
    before, after = load_checkpoint(named), load_checkpoint(copy)
    assert before.policy is not None and after.policy is not None
    assert (after.policy.to_json(), after.policy.weights_hash) == (before.policy.to_json(), before.weights_hash)
    assert (after.weights_hash, after.hashes) == (before.weights_hash, before.hashes)
    assert (after.fingerprints, after.preprocessing) == (before.fingerprints, before.preprocessing)
    for split, samples in before.splits.samples.items():  # who shares a patient still does
        groups = {old.group: new.group for old, new in zip(samples, after.splits.samples[split], strict=True)}
        assert len(groups) == len(set(groups.values())) == 3
        assert [s.label for s in samples] == [s.label for s in after.splits.samples[split]]
    with pytest.raises(DataError, match="at an unknown place"):
        after.data_root()


def test_a_run_that_is_being_trained_is_not_called_stopped(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.splits.write_text("path,split\n")
    with pytest.raises(CheckpointError, match="stopped before its first epoch") as error:
        load_checkpoint(tmp_path)
    assert error.value.fix == "train first"
    with run_lock(run), pytest.raises(CheckpointError, match="it is being trained") as error:
        load_checkpoint(tmp_path)
    assert "vitmed runs" in error.value.fix


def test_a_command_in_a_fix_can_be_run_as_it_stands(tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    folder.mkdir()
    (folder / "encoder.pt").touch()
    with pytest.raises(CheckpointError, match="no classifier") as error:
        load_checkpoint(folder)
    assert shlex.split(error.value.fix) == ["vitmed", "train", "DIR", "--weights", str(folder / "encoder.pt")]
