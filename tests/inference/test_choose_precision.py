"""`--precision`: fp32 unless bf16 is asked for, or the comparison after training accepted it on this kind of device."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import rewrite
from conftest import BARE, TINY_SETS, Recorder, Trained, recording

from vitmed import evaluate, merge, predict, predict_shard, train
from vitmed.core.errors import CheckpointError, DataError
from vitmed.core.run_folder import RunFolder
from vitmed.decisions.calibration import Calibration
from vitmed.decisions.evaluation_folder import find_evaluation
from vitmed.decisions.operating_points import LIKELIEST, PolicyPoints
from vitmed.decisions.out_of_distribution import scores_of
from vitmed.decisions.policy import (
    DecisionPolicy,
    FindingPolicy,
    NumberPolicy,
    ReducedPrecision,
    changed,
    compare_precision,
)
from vitmed.inference import predict as module
from vitmed.inference.checkpoint import Checkpoint, add_policy, load_checkpoint
from vitmed.inference.open_model import ImageFiles
from vitmed.inference.predict import TorchNetwork, choose_precision
from vitmed.inference.saved_model import Outputs
from vitmed.metrics.predictions import Predictions
from vitmed.models.hardware import Precision
from vitmed.training import finetune

CPU, BF16 = torch.device("cpu"), Precision("bf16", torch.bfloat16, "supported by this CPU")
GOOD = ReducedPrecision(
    precision="bf16", device="cpu", speedup=2.3, images=9, largest=4e-4, deviations=(0.05,) * 6, accepted=True
)
BAD = GOOD.model_copy(update={"flipped": 1, "largest": 0.02, "accepted": False})


@pytest.fixture(autouse=True)
def fast_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every CPU computes fast in bf16."""
    for place in (module, finetune):
        monkeypatch.setattr(place, "pick_precision", lambda name, device: BF16)


def known(trained: Trained, comparison: ReducedPrecision | None) -> Checkpoint:
    return replace(load_checkpoint(trained.best), reduced_precision=comparison)


@pytest.mark.parametrize(
    "comparison, chosen, told",
    [
        (GOOD, "bf16", "bf16 instead of fp32: on 9 validation images no decision flips, 0 % are near a border and"),
        (BAD, "fp32", "fp32, not bf16: on 9 validation images 1 decision flips, 0 % are near a border and"),
        (None, "fp32", "fp32, not bf16: no comparison of the two is known for this checkpoint"),
        (GOOD.model_copy(update={"device": "cuda"}), "fp32", "fp32, not bf16: no comparison of the two is known"),
        (GOOD.model_copy(update={"precision": "fp16"}), "fp32", "fp32, not bf16: no comparison of the two is known"),
    ],
)
def test_auto_takes_what_the_comparison_accepted(
    trained: Trained, comparison: ReducedPrecision | None, chosen: str, told: str, ui: Recorder
) -> None:
    saved = known(trained, comparison)
    assert choose_precision("auto", saved, saved.policy, CPU).name == chosen
    assert len(ui.said) == 1 and ui.said[0].startswith(told) and not ui.warned
    assert saved.policy is not None  # the comparison holds for one decision policy
    other = recording()
    assert choose_precision("auto", saved, saved.policy.model_copy(), CPU).name == "fp32"
    assert "no comparison of the two is known" in other.said[0]


def test_auto_is_fp32_on_a_device_made_for_it(trained: Trained, ui: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Precision("fp32", torch.float32, "this CPU has no bf16 instructions")
    monkeypatch.setattr(
        module, "pick_precision", lambda name, device: plain if name == "auto" else replace(BF16, reason="as asked")
    )
    saved = known(trained, GOOD)
    assert choose_precision("auto", saved, saved.policy, CPU).name == "fp32"
    assert ui.said == ["fp32: this CPU has no bf16 instructions"]
    assert choose_precision("bf16", saved, saved.policy, CPU).name == "bf16"
    assert ui.warned == ["--precision bf16: this CPU has no bf16 instructions, so it is slower than fp32"]


@pytest.mark.parametrize("comparison, warnings", [(GOOD, 0), (BAD, 1), (None, 1)])
def test_bf16_is_used_when_asked_with_a_warning(
    trained: Trained, comparison: ReducedPrecision | None, warnings: int, ui: Recorder
) -> None:
    saved = known(trained, comparison)
    assert choose_precision("bf16", saved, saved.policy, CPU).dtype is torch.bfloat16
    assert len(ui.warned) == warnings and len(ui.said) == 1 - warnings
    assert choose_precision("fp32", saved, saved.policy, CPU).dtype is torch.float32


def test_an_unknown_precision(trained: Trained, vitmed: Callable[..., Any]) -> None:
    for command in ("predict", "evaluate"):
        given = [trained.data / "test", "--checkpoint"] if command == "predict" else []
        answer = vitmed(command, *given, trained.best, "--precision", "bf61")
        assert answer.code == 2 and "unknown precision 'bf61'" in answer.err and "did you mean 'bf16'?" in answer.err


def test_predictions_in_bf16_are_close_alone_and_among_others(trained: Trained) -> None:
    """Those that are not computed again."""
    saved = known(trained, GOOD.model_copy(update={"deviations": None}))
    exact, whole = (predict(trained.data / "test", checkpoint=saved, precision=name) for name in ("fp32", "auto"))
    assert 0 < np.abs(exact.logits - whole.logits).max() < 0.1
    assert np.unique(whole.logits.view(np.uint32) << 16).size > 1  # not rounded to 16 bits: no new ties
    one = predict(whole.paths[3], checkpoint=saved)
    assert np.abs(exact.logits[3] - one.logits).max() < 0.1
    one = predict(whole.paths[3], checkpoint=saved, precision="fp32")
    np.testing.assert_allclose(one.probabilities, exact.probabilities[3:4], atol=1e-5, rtol=0)


def test_a_report_in_bf16_says_so_and_no_policy_rests_on_it(
    trained: Trained, tmp_path: Path, no_figures: None, ui: Recorder
) -> None:
    folder = shutil.copytree(trained.folder, tmp_path / "run")
    shutil.rmtree(folder / "val")
    done = evaluate(folder, data=trained.data, split="val", precision="bf16", output=folder / "val")
    numbers = json.loads((done.folder / "metrics.json").read_text())
    assert numbers["report"]["precision"] == "bf16"
    assert numbers["report"]["facts"]["Device of this evaluation"].endswith(", bf16")
    assert any(note.startswith("Predicted in bf16, not in fp32: ") for note in numbers["notes"])
    assert any(text.startswith("bf16 instead of fp32: ") for text in ui.warned)
    assert "Predicted in bf16" in (done.folder / "report.html").read_text()
    again = evaluate(done.folder / "predictions.csv", output=tmp_path / "again")
    assert again.metrics.report.precision == "bf16"
    saved = load_checkpoint(folder)
    assert find_evaluation(RunFolder(folder), "val", saved.weights_hash) is None
    assert find_evaluation(RunFolder(folder), "test", saved.weights_hash) is not None
    card = (folder / "model_card.md").read_text()
    assert evaluate(folder, data=trained.data, precision="bf16", report=False).folder.name == "test-2"
    assert (folder / "model_card.md").read_text() == card


def test_evaluate_is_fp32_unless_asked(trained: Trained, tmp_path: Path, no_figures: None) -> None:
    policy = load_checkpoint(trained.best).policy
    assert policy is not None
    add_policy(Path(shutil.copy(trained.best, tmp_path)), policy, GOOD)
    assert load_checkpoint(tmp_path / "best.pt").reduced_precision == GOOD
    for given, name in (({}, "fp32"), ({"precision": "auto"}, "bf16")):
        done = evaluate(tmp_path / "best.pt", data=trained.data, split="test", output=tmp_path / name, **given)
        assert done.metrics.report.precision == name


def test_training_compares_once_and_stores_it(
    trained: Trained, tmp_path: Path, no_figures: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetune, "speedup", lambda *args: 2.345)
    monkeypatch.setattr(finetune, "MOST_COMPARED", 5)
    ui = recording()
    done = train(trained.data, output=tmp_path, name="one", sets=TINY_SETS, **BARE)
    found = load_checkpoint(done.folder).reduced_precision
    assert found is not None and (found.precision, found.device, found.images) == ("bf16", "cpu", 5)
    assert 0 < found.largest < 0.1
    assert found.flipped == 0 and found.accepted == (found.speedup >= 1.1) and 0 <= found.twice <= 1
    assert found.speedup == pytest.approx(1 / (1 / 2.345 + found.twice), abs=0.01)  # of 2.35, as stored
    assert found.deviations is not None and 0 < min(found.deviations) < max(found.deviations) < 1
    assert f"precision of vitmed predict on this kind of device: {found.choice}" in ui.said


def test_a_network_that_overflows_in_16_bits_is_not_accepted(
    trained: Trained, tmp_path: Path, no_figures: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = TorchNetwork.outputs

    def overflow(network: TorchNetwork, *args: Any, **options: Any) -> Outputs:
        if network.precision != "fp32":
            raise CheckpointError("its logits are not finite")
        return honest(network, *args, **options)

    monkeypatch.setattr(finetune, "speedup", lambda *args: 2.0)
    monkeypatch.setattr(TorchNetwork, "outputs", overflow)
    done = train(trained.data, output=tmp_path, name="one", sets=TINY_SETS, **BARE)
    found = load_checkpoint(done.folder).reduced_precision
    assert found is not None and not found.accepted and found.images == 12
    assert found.choice.startswith("fp32, not bf16: on 12 validation images the outputs are not finite in bf16")


def opened(run: Path) -> tuple[Checkpoint, Any, Predictions, Predictions]:
    """A run's checkpoint, how its training images are read, and what it predicts for them in fp32 and in bf16, raw."""
    saved = load_checkpoint(run)
    files = [saved.data_root() / sample.path for sample in saved.splits.samples["train"]]
    images = ImageFiles(list(map(str, files)), saved.preprocessing)
    networks = (TorchNetwork(saved, saved.policy, CPU, arithmetic) for arithmetic in (module.FP32, BF16))
    return (
        saved,
        images,
        *(images.predictions(saved, network.outputs(images.read, len(images))) for network in networks),
    )


def with_a_border_between(saved: Checkpoint, exact: Predictions, reduced: Predictions) -> DecisionPolicy:
    """The policy of the checkpoint with a border that bf16 moves the image across which it moves farthest."""
    policy = saved.policy
    if isinstance(policy, NumberPolicy):
        assert policy.ood_score is not None
        scores = np.stack([scores_of(exact), scores_of(reduced)])
        image = np.abs(scores[0] - scores[1]).argmax()
        scale = policy.ood_score.scale * scores[:, image].mean() ** 2
        return policy.model_copy(update={"ood_score": policy.ood_score.model_copy(update={"scale": scale})})
    if isinstance(policy, FindingPolicy):
        name = exact.classes[0]
        moved = with_a_border_between(replace(saved, policy=policy.findings[name]), exact.of(name), reduced.of(name))
        return policy.model_copy(update={"findings": policy.findings | {name: moved}})
    logits = np.stack([exact.logits, reduced.logits]).astype(np.float64)
    gaps = logits[..., 1] - logits[..., 0]
    image = np.abs(gaps[0] - gaps[1]).argmax()
    bias = np.full(logits.shape[-1], -50.0)  # of other classes than the first two
    bias[:2] = gaps[:, image].mean(), 0
    calibration = Calibration(method="vector", scale=(1.0,) * len(bias), bias=tuple(bias.tolist()))
    points = PolicyPoints(
        positive=policy.operating.positive, chosen="default", points={"default": LIKELIEST}, costs=None, notes=()
    )
    usual = {"calibration": calibration, "operating": points, "prediction_sets": None, "abstention": None}
    return policy.model_copy(update=usual)


@pytest.mark.parametrize("kind", ["trained", "findings", "graded", "ages"])
def test_what_bf16_decides_otherwise_is_computed_again_in_fp32(kind: str, request: pytest.FixtureRequest) -> None:
    saved, images, exact, reduced = opened(request.getfixturevalue(kind).folder)
    policy = with_a_border_between(saved, exact, reduced)

    def predicted(arithmetic: Precision, known: ReducedPrecision | None) -> Any:
        of = replace(saved, policy=policy, reduced_precision=known)
        found = TorchNetwork(of, policy, CPU, arithmetic).outputs(images.read, len(images))
        return policy.apply(saved.predictions(exact.paths, found.logits, found.columns))

    plain, without = predicted(module.FP32, None), predicted(BF16, None)
    assert changed(plain, without).any()
    known = compare_precision(GOOD, policy, plain, without)
    mended = predicted(BF16, known)
    assert known.flipped == 0 and known.largest > 0 and not changed(plain, mended).any()
    again = (mended.logits != without.logits).any(axis=1)  # most images are not computed again
    assert 0 < again.mean() < 0.5 and np.abs(mended.logits - plain.logits)[again].max() < 1e-5


def test_an_output_that_is_not_finite_is_computed_again(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = module.logits_of

    def overflow(model: Any, features: torch.Tensor) -> torch.Tensor:
        found = honest(model, features)
        return found * torch.inf if torch.is_autocast_enabled("cpu") else found

    saved = known(trained, GOOD)
    exact = predict(trained.data / "test", checkpoint=saved, precision="fp32")
    monkeypatch.setattr(module, "logits_of", overflow)
    found = predict(trained.data / "test", checkpoint=saved)
    np.testing.assert_allclose(found.probabilities, exact.probabilities, atol=1e-5, rtol=0)


def test_an_older_comparison_counts_as_none(trained: Trained, tmp_path: Path) -> None:
    """One that was made before the borders were compared."""
    older = GOOD.model_dump(exclude={"deviations", "twice", "number"}) | {"mae": None}
    file = rewrite(trained.best, tmp_path / "best.pt", reduced_precision=older)
    assert load_checkpoint(file).reduced_precision is None
    slow = older | {"images": 0, "accepted": False, "speedup": 0.9}
    file = rewrite(trained.best, tmp_path / "slow.pt", reduced_precision=slow)
    assert "0.9 times as fast" in load_checkpoint(file).reduced_precision.choice


def test_parts_of_different_precision_do_not_mix(trained: Trained, tmp_path: Path) -> None:
    images, saved = trained.data / "test", known(trained, GOOD)
    for number, name in ((1, "auto"), (2, "fp32")):
        given = {"shard": f"{number}/2", "checkpoint": saved, "precision": name}
        predict_shard(images, output=tmp_path / name, **given)
    for file in (tmp_path / "fp32").glob("*.parquet"):
        shutil.copy(file, tmp_path / "auto")
    with pytest.raises(DataError, match="different precision"):
        merge(tmp_path / "auto")
