"""The plan: the first rule that fits decides, what was set by hand stays, and a file repeats it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import TINY_SETS, Answer, Trained, draw_classes, draw_splits, listing, recording

from vitmed import plan, train
from vitmed.core.config import Config, ModelConfig
from vitmed.core.load_config import build_config, load_config, with_values
from vitmed.imaging.augmentation import VIEWS, safe_views
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.models.weights.catalogue import DISTILLED, MASKED, SUPERVISED
from vitmed.training.plan.make_plan import from_scratch
from vitmed.training.plan.rules import SCRATCH, PlanInputs, describe, plan_settings, rules

RUN = Callable[..., Answer]
KINDS = (SCRATCH, SUPERVISED, MASKED, DISTILLED, "vitmed")
CASES = [
    PlanInputs(weights, images, images // 5, side, device, width, lora, ratio=images / 1000)
    for weights in KINDS
    for images in (20, 300, 1000, 1001, 5000, 30_000, 200_000)
    for side in (28, 64, 130, 1024)
    for device in ("cpu", "cuda", "mps")
    for width in (192, 768, 1024)
    for lora in ((False,) if weights == SCRATCH else (False, True))
]
CASES += [replace(CASES[0], views=views) for views in VIEWS]


def values(inputs: PlanInputs, **tree: Any) -> dict[str, Any]:
    return {d.field: d.value for d in plan_settings(build_config(tree), inputs)[0]}


def test_a_small_image_size_that_you_choose_has_small_patches() -> None:
    """At least 4 x 4 of them; 2 x 2 of 16 px tell hardly anything apart."""
    large = PlanInputs(SCRATCH, 300, 60, 224, "cpu", 192)
    patches = {size: values(replace(large, chosen=size))["model.patch_size"] for size in (None, 64, 48, 32)}
    assert patches == {None: 16, 64: 16, 48: 8, 32: 8}


def test_every_situation_gives_a_whole_and_valid_plan_and_every_rule_decides_somewhere() -> None:
    wanted = {
        "train.lr", "train.epochs", "train.warmup_epochs", "train.batch_size", "train.ema", "train.weight_decay",
        "augment.mixup", "augment.cutmix",
    }  # fmt: skip
    used, usual, configs = set(), Config(), dict[str, Config]()
    for inputs in CASES:
        decisions, _ = plan_settings(usual, inputs)
        used |= {(d.when, d.why) for d in decisions}
        found = {d.field: d.value for d in decisions}
        assert wanted <= set(found), inputs
        if inputs.weights != SCRATCH:
            assert {"train.layer_decay", "train.probe_first"} <= set(found), inputs
        if repr(found) not in configs:  # many situations have the same plan
            configs[repr(found)] = build_config(with_values(usual, found).model_dump())
        config = configs[repr(found)]
        assert config.model.image_size % config.model.patch_size == 0, inputs
        assert config.train.warmup_epochs <= config.train.epochs / 3
    assert [rule.when for rule in rules() if not rule.why or (rule.when, rule.why) not in used] == []


def test_how_the_weights_were_made_decides_the_learning_rate() -> None:
    """MAE, FINETUNE.md: base learning rate 5e-4 per 256 images, layer decay 0.65, for ViT-Base."""
    found = {kind: values(PlanInputs(kind, 3000, 600, 224, "cuda", 768)) for kind in KINDS[1:]}
    assert found[MASKED]["train.lr"] == pytest.approx(5e-4 * 64 / 256, rel=0.05)
    assert found[MASKED]["train.layer_decay"] == 0.65
    assert found[DISTILLED]["train.lr"] < found[SUPERVISED]["train.lr"] < found[MASKED]["train.lr"]
    lora = values(PlanInputs(SUPERVISED, 3000, 600, 224, "cuda", 768, lora=True))
    assert lora["train.lr"] == pytest.approx(10 * found[SUPERVISED]["train.lr"])
    assert values(PlanInputs(SUPERVISED, 3000, 600, 224, "cuda", 192))["train.lr"] > found[SUPERVISED]["train.lr"]


def test_good_weights_and_few_images_want_few_steps() -> None:
    for images in (200, 1000, 3000):
        found = values(PlanInputs(SUPERVISED, images, 600, 224, "cuda", 768))
        batch = found["train.batch_size"] * found["train.accumulate"]
        steps = found["train.epochs"] * images / batch
        assert 500 <= steps <= 2000, images


def test_few_validation_images_do_not_choose_the_epoch() -> None:
    found = {val: values(PlanInputs(SCRATCH, 3000, val, 130, "cpu", 192)) for val in (40, 60, 5000)}
    assert found[40]["train.choose"] == "last" and "train.patience" not in found[40]
    assert [found[val]["train.choose"] for val in (60, 5000)] == ["loss", "best"]
    for val in (60, 5000):
        assert found[val]["train.patience"] >= found[val]["train.warmup_epochs"] + 1
    without = values(PlanInputs(SCRATCH, 3000, 60, 130, "cpu", 192), train={"patience": None})
    assert "train.patience" not in without and without["train.choose"] == "loss"  # null turns early stopping off


def test_classes_far_apart_are_named_and_how_to_decide_then() -> None:
    near, far = (PlanInputs(SCRATCH, 300, 600, 130, "cpu", 192, ratio=ratio) for ratio in (5.0, 72.0))
    assert "train.balance" not in values(near) and "apart" not in str(near)
    assert values(far)["train.balance"] == "adjust" and str(far).startswith("from scratch, 300")
    apart = "300 training and 600 validation images of about 130 px, classes 72:1 apart, cpu"
    assert str(replace(far, weights=SUPERVISED)) == f"{SUPERVISED} weights, 192 wide, {apart}"
    assert values(replace(far, weights=SUPERVISED))["train.balance"] == "none"
    assert "train.balance" not in values(far, train={"balance": "sampler"})
    (line,) = [text for text in describe(plan_settings(Config(), far)[0]) if "train.balance" in text]
    assert "--balanced" in line and "more than 5:1" in line


@pytest.mark.parametrize(
    "policy, flips, views", [("medical", True, None), ("ultrasound", True, "mirror"), ("histology", False, "turns")]
)
def test_small_sets_from_scratch_take_the_views_that_the_policy_calls_safe(
    tmp_path: Path, policy: str, flips: bool, views: str | None
) -> None:
    data, found = draw_splits(tmp_path / "data", 6, 3, 3), {}
    plan(data, output=tmp_path / "a.yaml", policy=policy, sets=[f"augment.flips={flips}"], device="cpu")
    assert load_config(tmp_path / "a.yaml").augment.views == (views or "one")
    same = (28, "cpu", 192, False)  # what the views do not depend on
    for inputs in (case for case in CASES if (case.side, case.device, case.width, case.lora) == same):
        safe = safe_views(policy, flips)
        found[inputs.weights, inputs.images] = values(replace(inputs, views=safe)).get("augment.views")
    assert {found[SCRATCH, images] for images in (20, 5000)} == {views}
    assert {found[SCRATCH, 30_000], *(found[kind, 20] for kind in KINDS[1:])} == {None}
    chosen, _ = plan_settings(build_config({"augment": {"views": "one"}}), replace(CASES[0], views="all"))
    assert "augment.views" not in {setting.field for setting in chosen}  # set by hand


def test_crops_of_half_the_area_are_for_weights_and_few_images_under_the_policy_that_was_measured() -> None:
    def crop(weights: str, images: int, policy: str) -> Any:
        return values(PlanInputs(weights, images, 100, 130, "cpu", 192, policy=policy)).get("augment.crop")

    assert crop(SUPERVISED, 1000, "medical") == 0.5
    assert crop(SUPERVISED, 1001, "medical") is crop(SCRATCH, 500, "medical") is None
    assert crop(SUPERVISED, 500, "chest_xray") is None


def test_the_plan_names_the_policy_that_stands_for_an_unknown_modality(tmp_path: Path, vitmed: RUN) -> None:
    line = (
        "augment.policy medical: the modality is not known; --augment NAME for ultrasound, chest_xray, histology, ..."
    )
    data = draw_splits(tmp_path / "data", 4, 2, 2)
    shown = vitmed("plan", data, "--weights", "none", "-o", tmp_path / "plan.yaml").err
    assert "patients are unknown: one patient may be in two splits" in " ".join(shown.split())
    assert line in " ".join(shown.split()) and "policy: medical  # the modality" in (tmp_path / "plan.yaml").read_text()
    for policy in ("ultrasound", "medical"):  # chosen by hand
        shown = vitmed("plan", data, "--weights", "none", "--augment", policy, "-o", tmp_path / "own.yaml").err
        assert "the modality" not in shown + (tmp_path / "own.yaml").read_text()


def test_what_was_set_by_hand_stays() -> None:
    inputs = PlanInputs(SCRATCH, 300, 600, 130, "cpu", 192)
    found = values(inputs, train={"lr": 7e-4, "epochs": 3}, model={"image_size": 96})
    assert not {"train.lr", "train.epochs", "model.image_size"} & set(found)
    assert found["train.warmup_epochs"] == pytest.approx(0.3)  # of the epochs that were set
    assert not {"model.width", "model.depth", "model.heads"} & set(values(inputs, model={"name": "vit_small"}))
    assert "model.stem" not in values(inputs, model={"stem": "patch"})


@pytest.mark.usefixtures("no_figures")
def test_train_says_the_plan_and_follows_it(tmp_path: Path) -> None:
    data, ui = draw_splits(tmp_path / "data", 6, 3, 3), recording()
    flags = {
        "epochs": 1,
        "device": "cpu",
        "sets": ["model.width=48", "model.depth=2"],
        "report": False,
        "map_images": 0,
    }
    flags |= {"baseline": False, "resamples": 0}
    result = train(data, output=tmp_path, name="a", **flags)
    config = load_checkpoint(result.folder).config
    said = "\n".join(ui.said)
    assert "plan for from scratch, 12 training and 6 validation images of about 20 px, cpu (" in said
    assert (config.model.image_size, config.model.patch_size, config.model.width) == (32, 8, 48)
    assert config.train.epochs == 1
    assert f"train.lr {config.train.lr:g}" in said and "train.epochs" not in said
    again = recording()
    train(resume=result.folder, epochs=2)
    assert not any("plan for" in text for text in again.said)  # a run that goes on is not planned again


@pytest.mark.usefixtures("no_figures")
def test_a_config_replaces_the_plan(tmp_path: Path) -> None:
    data, ui = draw_splits(tmp_path / "data", 6, 3, 3), recording()
    file = tmp_path / "c.yaml"
    file.write_text("model: {image_size: 16, patch_size: 8, width: 16, depth: 1, heads: 2}\ntrain: {epochs: 1}\n")
    flags: dict[str, Any] = {"device": "cpu", "report": False, "baseline": False, "resamples": 0, "map_images": 0}
    result = train(data, config=file, output=tmp_path, name="a", **flags)
    assert load_checkpoint(result.folder).config.train.lr == Config().train.lr
    assert not any("plan for" in text for text in ui.said)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("weights", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_file_of_a_plan_trains_what_train_alone_does(tmp_path: Path, trained: Trained, weights: bool) -> None:
    data = draw_splits(tmp_path / "data", 6, 3, 3)
    flags: dict[str, Any] = {"policy": "none", "device": "cpu", "epochs": 1, "seed": 5, "report": False}
    flags |= {"baseline": False, "resamples": 0, "map_images": 0}
    flags |= {"weights": str(trained.best)} if weights else {"sets": TINY_SETS}
    before = listing(data)
    found = plan(data, output=tmp_path / "deep.yaml", **flags)
    assert found.file == tmp_path / "deep.yaml" and listing(data) == before and found.minutes > 0
    alone = train(data, output=tmp_path / "runs", name="alone", **flags)
    filed = train(config=found.file, output=tmp_path / "runs", name="filed")
    a, b = (load_checkpoint(r.folder) for r in (alone, filed))
    assert a.config == b.config
    assert all(torch.equal(a.weights[name], b.weights[name]) for name in a.weights)


def test_the_file_is_yaml_with_a_reason_behind_each_decision(tmp_path: Path, vitmed: RUN) -> None:
    data = draw_classes(tmp_path / "data", 12)
    args = ["plan", data, "-o", tmp_path / "plan.yaml", "--device", "cpu", "--json"]
    answer = vitmed(*args)
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    text = (tmp_path / "plan.yaml").read_text()
    tree = yaml.safe_load(text)
    for decision in told["plan"]:
        section, field = decision["field"].split(".")
        assert tree[section][field] == decision["value"]
        assert f"{field}: " in text and decision["why"] in text
    assert load_config(tmp_path / "plan.yaml").data.root == str(data) and "/" not in tree["data"]["root"]
    assert vitmed(*args).code == 0 and (tmp_path / "plan-2.yaml").read_text() == text


def test_a_plan_that_cannot_be(vitmed: RUN, tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "data", 12)
    assert vitmed("plan", tmp_path / "nowhere").code == 3
    assert vitmed("plan", data, "--set", "train.min_lr=0.5", "-o", tmp_path / "p.yaml").code == 2
    assert vitmed("plan", data, "-o", tmp_path / "no" / "p.yaml").code == 2
    assert not (tmp_path / "p.yaml").exists()


def test_freezing_trains_nothing_so_nothing_is_planned(tmp_path: Path, trained: Trained) -> None:
    found = plan(trained.data, weights=str(trained.best), freeze=True, output=tmp_path / "p.yaml")
    assert found.decisions == [] and found.minutes == 0


def test_auto_is_made_definite() -> None:
    model = from_scratch(Config()).model
    assert (model.stem, model.pool) == ("conv", "mean")
    asked = from_scratch(Config(model=ModelConfig(stem="patch", pool="cls"))).model
    assert (asked.stem, asked.pool) == ("patch", "cls")


def test_images_that_lose_their_detail_are_named(tmp_path: Path) -> None:
    data, ui = draw_classes(tmp_path / "data", 8, side=400), recording()
    plan(data, output=tmp_path / "plan.yaml", image_size=16, patch_size=8)
    said = [text for text in ui.warned if "shrunk" in text]
    assert len(said) == 1 and "images of about 400 px are shrunk to 16 px" in said[0] and "--image-size" in said[0]
    large = recording()
    plan(data, output=tmp_path / "plan.yaml", image_size=32, patch_size=8)
    assert not any("shrunk" in text for text in large.warned)
