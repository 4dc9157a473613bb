"""The ways to fine-tune and what they are compared with, from end to end on tiny drawn images."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import (
    BARE,
    TINY,
    TINY_ARGS,
    TINY_SETS,
    Answer,
    Recorder,
    Trained,
    draw_splits,
    interrupt_at,
    listing,
    once,
    recording,
)
from timm.layers import SwiGLUPacked
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer

from vitmed import VitmedError, explain, plan, train
from vitmed.core.messages import listening
from vitmed.inference.checkpoint import load_checkpoint
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.paired_comparison import ComparisonTest
from vitmed.metrics.predictions import Predictions
from vitmed.report.chapters import baseline_verdicts
from vitmed.report.results import Baseline, Results
from vitmed.studies.one_run import TrainResult

RUN = Callable[..., Answer]
FREE = {key: TINY[key] for key in ("batch_size", "policy", "workers", "device", "precision")}
BARE_RUN = {"report": False, "baseline": False, "resamples": 0}
HEAD_NAMES = {"head.weight", "head.bias"}
FREE |= {"probe_first": False, "map_images": 0}  # the plan would probe first
pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes, so that the head of weights for three is new."""
    return once(
        tmp_path_factory, "fine", lambda place: draw_splits(place / "data", 8, 4, 5, ("amber", "green"), seed=7)
    )


def run(data: Path, output: Path, weights: Path, **flags: Any) -> TrainResult:
    settings = FREE | {"epochs": 2, "lr": 1e-3, "drop_path": 0.0} | flags
    return train(data, output=output, name="a", weights=str(weights), **settings)


@pytest.fixture(scope="session")
def frozen(data: Path, trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainResult, Recorder]:
    """The head of `trained` fitted to the data, its network frozen."""
    ui = recording()
    return once(tmp_path_factory, "frozen", lambda place: (run(data, place, trained.best, freeze=True), ui))


@pytest.fixture(scope="session")
def tuned(data: Path, trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainResult, Recorder]:
    """`trained` tuned on the data."""
    ui = recording()
    return once(tmp_path_factory, "tuned", lambda place: (run(data, place, trained.best), ui))


def weights_of(file: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(file).weights


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """Names of the tensors that are not the same, to the last bit."""
    assert set(before) == set(after)
    return {name for name in after if not torch.equal(before[name], after[name])}


SMALL = {"img_size": 16, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 1, "num_classes": 0}
SIGLIP = {"class_token": False, "global_pool": "map"}
ROTARY = {"rope_type": "dinov3", "rope_temperature": 100, "rope_rotate_half": True, "use_rot_pos_emb": True,
          "use_abs_pos_emb": False, "num_reg_tokens": 4, "init_values": 0.1, "global_pool": "token"}  # fmt: skip
PACKED = {"mlp_layer": SwiGLUPacked, "act_layer": torch.nn.SiLU, "reg_tokens": 4, "init_values": 0.1}


@pytest.mark.parametrize(
    ("donor", "way", "wanted"),
    [
        (partial(VisionTransformer, **SMALL, **PACKED), {"pool": "cls_mean"}, {"mlp": "swiglu", "pool": "cls_mean"}),
        pytest.param(
            *(partial(VisionTransformer, **SMALL, **SIGLIP), {"freeze": True}),
            {"class_token": False, "pool": "attention"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(partial(VisionTransformer, **SMALL, pre_norm=True), {"freeze_blocks": 1}),
            {"norm_pre": True, "pool": "cls"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(partial(Eva, **SMALL, **ROTARY), {"lora": 2}, {"positions": "rotary", "registers": 4}),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["SwiGLU", "attention pooling", "CLIP's norm", "DINOv3"],
)
def test_every_kind_of_network_is_tuned_evaluated_and_explained(
    data: Path, tmp_path: Path, donor: Callable[[], torch.nn.Module], way: dict[str, Any], wanted: dict[str, Any]
) -> None:
    """And a run that starts from its checkpoint has the same network."""
    torch.save(donor().state_dict(), tmp_path / "dinov3_vits16_pretrain_lvd1689m-0123abcd.pth")
    size = {"image_size": 16} | ({} if "freeze" in way else {"ema": False})
    first = run(data, tmp_path, tmp_path / "dinov3_vits16_pretrain_lvd1689m-0123abcd.pth", **size, **way)
    model = load_checkpoint(first.folder).config.model.model_dump()
    assert {name: model[name] for name in wanted} == wanted
    assert 0 <= first.test.metrics.overall["auroc"].value <= 1
    explained = explain(data / "test", checkpoint=first.checkpoint, output=tmp_path / "maps")
    assert explained is not None and (tmp_path / "maps").is_dir()
    again = run(data, tmp_path / "again", first.checkpoint, freeze=True)
    assert changed(weights_of(first.folder / "best.pt"), weights_of(again.folder / "best.pt")) <= HEAD_NAMES
    # Meta's name of the file states the licence, whose terms travel
    for folder in (first.folder, again.folder):
        told = load_checkpoint(folder).config.model
        assert told.licence == "LicenseRef-DINOv3" and "only under this licence and with a copy" in str(told.terms)
        card = " ".join((folder / "model_card.md").read_text().split())
        assert "only under this licence and with a copy of it, acknowledge DINOv3 in publications" in card
    assert "acknowledge DINOv3" in first.test.metrics["report"]["facts"]["Started from"]


def test_freeze_keeps_the_network_and_fits_the_head(frozen: tuple[TrainResult, Recorder], trained: Trained) -> None:
    result, ui = frozen
    before, after = weights_of(trained.result.checkpoint), weights_of(result.folder / "best.pt")
    assert changed(before, after) == {"head.weight", "head.bias"}
    policy = load_checkpoint(result.folder).policy
    assert policy is not None and policy.weights_hash == load_checkpoint(result.folder).weights_hash
    assert set(result.test.metrics["baselines"]) == {"colour_and_size"}
    assert not (result.folder / "last.pt").exists() and not (result.folder / "metrics.jsonl").exists()
    assert "inverse penalty C" in result.test.metrics["report"]["facts"]["Model choice"]
    assert any("a logistic regression on its" in text and "frozen parameters" in text for text in ui.said)


def test_the_frozen_head_reads_back_as_it_was_fitted(frozen: tuple[TrainResult, Recorder]) -> None:
    """The logits of the checkpoint are those of scikit-learn's regression on the features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from vitmed.data.loading import Images
    from vitmed.training.baselines import frozen_features

    result = frozen[0]
    saved = load_checkpoint(result.folder / "best.pt")
    part = {n: Images(saved.data_root(), saved.splits.samples[n], saved.preprocessing) for n in ("train", "test")}
    x = {n: frozen_features(saved.model(), images, n) for n, images in part.items()}
    model = make_pipeline(StandardScaler(), LogisticRegression(C=saved.record["C"], max_iter=5000, tol=1e-8))
    model.fit(x["train"], part["train"].labels)
    np.testing.assert_allclose(result.test.predictions.probabilities, model.predict_proba(x["test"]), atol=5e-3)


def test_training_is_compared_with_the_frozen_features(tuned: tuple[TrainResult, Recorder], trained: Trained) -> None:
    result, ui = tuned
    entry = json.loads((result.folder / "test" / "metrics.json").read_text())["baselines"]["frozen_features"]
    frozen = Predictions.from_csv(result.folder / "test" / "baseline_frozen_features.csv")
    ours = Predictions.from_csv(result.folder / "test" / "predictions.csv")
    assert frozen.paths == ours.paths
    accuracy = [(p.predicted == p.labels).mean() for p in (ours, frozen)]
    assert entry["overall"]["accuracy"]["value"] == pytest.approx(accuracy[1])
    assert entry["difference"]["accuracy"]["value"] == pytest.approx(accuracy[0] - accuracy[1])
    gap = entry["difference"]["accuracy"]
    assert gap["low"] <= accuracy[0] - accuracy[1] <= gap["high"]
    assert sum("a baseline, the " in text and "not fine-tuned" in text for text in ui.said) == 2  # val and test
    html = (result.folder / "test" / "report.html").read_text()
    assert "Comparison with baselines" in html
    before = weights_of(trained.result.checkpoint)
    assert changed(before, weights_of(result.folder / "baseline.pt")) == {"head.weight", "head.bias"}


def test_probe_first_starts_from_the_fitted_head(
    data: Path, tmp_path: Path, trained: Trained, frozen: tuple[TrainResult, Recorder]
) -> None:
    """With a learning rate of nearly nothing the result is the linear probe itself."""
    still = BARE_RUN | {"lr": 1e-12, "sets": ["train.min_lr=0"], "freeze_blocks": 0}  # and the stem's batch norm holds
    probed = run(data, tmp_path / "1", trained.result.checkpoint, probe_first=True, **still)
    fresh = run(data, tmp_path / "2", trained.result.checkpoint, **still)
    head = frozen[0].test.predictions.logits
    np.testing.assert_allclose(probed.test.predictions.logits, head, atol=1e-4)
    assert np.abs(fresh.test.predictions.logits - head).max() > 0.1
    assert fresh.test.metrics["baselines"] == {} and not (fresh.folder / "baseline.pt").exists()  # of `baseline=False`


def test_frozen_blocks_stay_and_the_others_move(tmp_path: Path) -> None:
    data = draw_splits(tmp_path / "data", 6, 3, 3)
    start = train(data, output=tmp_path, name="s", sets=("model.width=16", "model.depth=3", "model.heads=2"),
                  **BARE | {"epochs": 1})  # fmt: skip
    ui = recording()
    with listening(ui):
        result = run(data, tmp_path, start.folder / "best.pt", freeze_blocks=2, balance="adjust", **BARE_RUN)
    assert any("balance adjust changes nothing: the head comes from best.pt" in text for text in ui.warned)
    before, after = weights_of(start.folder / "best.pt"), weights_of(result.folder / "best.pt")
    moved = {re.sub(r"(blocks\.\d+|\w+)\..*", r"\1", name) for name in changed(before, after)}
    assert moved == {"blocks.2", "fc_norm", "head"}


def test_lora_moves_the_blocks_and_leaves_a_plain_checkpoint(data: Path, tmp_path: Path, trained: Trained) -> None:
    result = run(data, tmp_path, trained.result.checkpoint, lora=2, **BARE_RUN)
    before, after = weights_of(trained.result.checkpoint), weights_of(result.folder / "best.pt")
    adapted = {f"blocks.0.{m}.weight" for m in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")}
    assert changed(before, after) == adapted | {"head.weight", "head.bias"}
    change = after["blocks.0.attn.qkv.weight"] - before["blocks.0.attn.qkv.weight"]
    assert torch.linalg.matrix_rank(change, rtol=1e-3) <= 2


class PressesCtrlC(Recorder):
    """Interrupts when the baselines are said, before the first step."""

    def say(self, text: str) -> None:
        super().say(text)
        if text.startswith("baseline, logistic regression on the pretrained features"):
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("way", [{"lora": 2}, {"freeze_blocks": 0, "probe_first": True}])
def test_a_stopped_run_goes_on_bit_for_bit(data: Path, tmp_path: Path, trained: Trained, way: dict[str, Any]) -> None:
    """Stopped in the middle, and before its first step."""
    way = way | {"report": False, "resamples": 20}
    whole = run(data, tmp_path / "whole", trained.best, **way)
    stops = [(interrupt_at(4), "interrupted"), (PressesCtrlC(), "stopped at once")]
    for k, (ui, told) in enumerate(stops if "probe_first" in way else stops[:1]):
        with pytest.raises(VitmedError, match=told), listening(ui):
            run(data, tmp_path / str(k), trained.best, **way)
        parts = train(resume=tmp_path / str(k) / "a")
        assert changed(weights_of(whole.folder / "best.pt"), weights_of(parts.folder / "best.pt")) == set()
        assert set(parts.test.metrics["baselines"]) == {"frozen_features", "colour_and_size"}
        assert parts.test.metrics["baselines"] == whole.test.metrics["baselines"]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--freeze"], "--freeze keeps what a network has learned"),
        (["--lora", 2], "--lora keeps"),
        (["--probe-first"], "--probe-first keeps"),
        (["--freeze-blocks", 1], "--freeze-blocks keeps"),
        (["--freeze-blocks", "0"], "--freeze-blocks keeps"),
        (["--weights", "", "--freeze", "--lora", 2], "excludes every other way"),
        (["--weights", "", "--freeze-blocks", 9], "the network has 1"),
        (["--weights", "", "--lora", 16], "only 16 wide"),
        (["--weights", "", "--lora", 2, "--freeze-blocks", 1], "excludes --freeze-blocks"),
    ],
)
def test_ways_that_make_no_sense(
    vitmed: RUN, data: Path, tmp_path: Path, trained: Trained, args: list[Any], told: str
) -> None:
    """Random weights are not kept, and of learned ones there is one way to keep them."""
    size = () if "--weights" in args else TINY_ARGS
    answer = vitmed("train", data, "-o", tmp_path / "runs", *size, *(one or trained.best for one in args))
    assert answer.code == 2 and told in answer.err, answer.err
    assert not (tmp_path / "runs").exists()


def test_probe_with_weights(vitmed: RUN, data: Path, tmp_path: Path, trained: Trained) -> None:
    before = listing(data)
    answer = vitmed("probe", data, "--weights", trained.result.checkpoint, "-o", tmp_path, "--name", "p", "--json",
                    "--device", "cpu")  # fmt: skip
    assert answer.code == 0, answer.err
    said = json.loads(answer.out)
    assert set(said["test"]["baselines"]) == {"colour_and_size"}
    assert load_checkpoint(tmp_path / "p").classes == ("amber", "green")
    assert listing(data) == before


def test_probe_without_weights_names_what_to_use(vitmed: RUN, data: Path, tmp_path: Path) -> None:
    for given in ([], ["--weights", "none"], ["--weights", "auto"]):
        answer = vitmed("probe", data, "-o", tmp_path / "runs", *given)
        assert answer.code == 2 and "none are named" in answer.err and "vitmed check" in answer.err
    assert not (tmp_path / "runs").exists()


def test_probe_meets_a_gate_and_refuses_a_wrong_one(vitmed: RUN, data: Path, tmp_path: Path, trained: Trained) -> None:
    args = ["probe", data, "--weights", trained.result.checkpoint, "-o", tmp_path, "--device", "cpu"]
    assert vitmed(*args, "--fail-under", "log_loss=0").code == 6
    assert vitmed(*args, "--fail-under", "accurancy=0.9").code == 2


def test_a_report_made_again_keeps_its_baselines(
    vitmed: RUN, tmp_path: Path, tuned: tuple[TrainResult, Recorder]
) -> None:
    result = tuned[0]
    answer = vitmed("evaluate", result.folder / "test" / "predictions.csv", "-o", tmp_path / "again")
    assert answer.code == 0, answer.err
    again = json.loads((tmp_path / "again" / "metrics.json").read_text())
    assert again["baselines"] == result.test.metrics.to_dict()["baselines"]


def test_few_patients_give_no_verdict() -> None:
    def said(value: float, low: float, high: float, patients: int | None) -> str:
        test = ComparisonTest(statistic=None, p=None, method="delong")
        numbers = {"auroc": Estimate(value=0.5, low=0.4, high=0.6)}
        gap = {"auroc": Estimate(value=value, low=low, high=high)}
        tests = {"auroc": test, "accuracy": test}
        baseline = Baseline(text="a baseline", overall=numbers, difference=gap, tests=tests)
        own = {"auroc": Estimate(value=0.7, low=0.6, high=0.8)}
        metrics = Results.model_construct(n_groups=patients, overall=own, baselines={"colour_and_size": baseline})
        (text,) = baseline_verdicts(metrics)
        return text

    better = "The model is better than"
    assert said(0.1, 0.05, 0.2, None).startswith(better) and said(0.1, 0.05, 0.2, 10).startswith(better)
    assert said(0.1, 0.05, 0.2, 9).startswith("9 patients are too few")
    assert said(-0.1, -0.2, -0.05, 50).startswith("The model is worse than")
    assert "do not show that the model is better than" in said(0.1, -0.05, 0.2, 50)


@pytest.mark.slow
def test_a_frozen_run_has_nothing_to_go_on_from(data: Path, tmp_path: Path, trained: Trained) -> None:
    with pytest.raises(VitmedError, match="start again: vitmed train --config") as stopped, listening(PressesCtrlC()):
        run(data, tmp_path / "parts", trained.best, freeze=True)
    assert stopped.value.exit_code == 130
    again = train(config=tmp_path / "parts" / "a" / "config.yaml", output=tmp_path / "again")
    with pytest.raises(VitmedError, match="this run is finished"):
        train(resume=again.folder)


def test_what_means_nothing_to_a_frozen_network_is_told(data: Path, tmp_path: Path, trained: Trained) -> None:
    ui = recording()
    run(data, tmp_path, trained.best, freeze=True, mixup=0.2, **BARE_RUN)
    told = [text for text in ui.warned if "have no effect" in text]
    assert len(told) == 1 and "train.epochs" in told[0] and "augment.mixup" in told[0]
    assert not any("calibration" in text for text in ui.warned)
    again, whole = recording(), tmp_path / "a" / "config.yaml"  # it names all settings: those count that are unusual
    plan(config=whole, output=tmp_path / "one.yaml")
    plan(config=whole, output=tmp_path / "two.yaml", sets=("model.drop_path=0.1", "train.warmup_epochs=7"))
    first, second = (text for text in again.warned if "have no effect" in text)
    assert "augment.mixup" in first and "warmup" not in first and "train.threads" not in first
    assert "model.drop_path, " in second and "train.warmup_epochs" in second


def test_with_every_block_frozen_what_acts_in_blocks_does_nothing(data: Path, tmp_path: Path, trained: Trained) -> None:
    given = {"weights": str(trained.best), "drop_path": 0.2, "layer_decay": 0.5, "sets": TINY_SETS}
    for blocks in (0, 1):  # of one
        ui = recording()
        plan(data, freeze_blocks=blocks, output=tmp_path / f"{blocks}.yaml", **given)
        told = "freezes every block, so these have no effect: model.drop_path, train.layer_decay"
        assert any(told in text for text in ui.warned) == (blocks == 1)
