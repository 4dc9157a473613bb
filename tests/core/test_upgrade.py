"""What is gone is refused by one sentence with the version that has it; what changes nothing is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import Answer

from vitmed.core import upgrade
from vitmed.core.base_models import Target
from vitmed.core.config import EvaluateConfig, PretrainConfig
from vitmed.core.errors import UsageError
from vitmed.core.load_config import build_config, evaluate_config, load_config
from vitmed.metrics.areas import FixedRates

RUN = Callable[..., Answer]
SETS = {"prediction_sets": {"score": "raps"}}


@pytest.mark.parametrize(
    ("key", "kept", "refused"),
    [
        ("train.pretrain", [False], [True]),
        ("train.pretrain_epochs", [None], [3]),
        ("train.pretrain_also", [None], ["more"]),
        ("train.loss", ["auto", "cross_entropy", "binary", "gaussian"], ["laplace", "asymmetric"]),
        ("model.head", ["auto", "linear"], ["ordinal"]),
        ("evaluate.conformal", ["lac"], ["aps", "raps"]),
        ("augment.policy", ["none"], ["views"]),
    ],
)
def test_settings_of_losses_and_pretraining(key: str, kept: list[object], refused: list[object]) -> None:
    section, _, field = key.partition(".")
    for value in kept:
        assert build_config({section: {field: value}}) == load_config(
            None, {key: value} if key in upgrade.VALUES else {}
        )
    for value in refused:
        with pytest.raises(UsageError, match=f"{key} = {value!r} is no longer there; vitmed 0.2.0 has it"):
            build_config({section: {field: value}})


@pytest.mark.parametrize(
    ("read", "content", "names"),
    [
        (upgrade.check_policy, SETS, "'raps'"),
        (upgrade.check_policy, {"findings": {"edema": SETS}}, "'raps'"),
        (upgrade.results, {"conformal": {"score": "aps"}}, "'aps'"),
        (upgrade.results, {"report": {"policy": SETS}}, "'raps'"),
        (upgrade.results, {"report": {"evaluate": {"conformal": "raps"}}}, "'raps'"),
        (upgrade.results, {"target": {"kind": "number", "distribution": "laplace"}}, "'laplace'"),
        (Target.model_validate, {"kind": "number", "distribution": "laplace"}, "'laplace'"),
        (upgrade.settings, {"train": {"loss": "asymmetric"}}, "'asymmetric'"),
        (
            upgrade.checkpoint,
            {"format": "vitmed pretraining", "data": {}, "config": {"model": {"stem": "residual"}}},
            "'residual'",
        ),
    ],
)
def test_files_that_need_what_is_gone(read: Any, content: dict[str, Any], names: str) -> None:
    with pytest.raises(UsageError, match=r"vitmed 0\.2\.0 has") as error:
        read(content)
    assert names in error.value.problem and error.value.fix


def test_grades_of_0_2_are_read_though_they_state_the_distribution_of_a_number() -> None:
    assert Target.model_validate({"kind": "grades", "distribution": "laplace"}) == Target(kind="grades")


def test_resamples_that_are_recorded_no_more_are_left_out() -> None:
    found = upgrade.results(
        {
            "resamples": 2000,
            "patient_level": {"mean": {"resamples": 2000}},
            "subgroups": {"site": {"cut": "", "resamples": 30}},
            "error_by_range": {"resamples": None},
        }
    )
    assert found == {"patient_level": {"mean": {}}, "subgroups": {"site": {"cut": ""}}, "error_by_range": {}}


def test_results_of_0_2_by_lac_are_read() -> None:
    found = upgrade.results({"conformal": {"score": "lac", "asked": 0.9}, "report": {"evaluate": {"conformal": "lac"}}})
    assert found == {"conformal": {"asked": 0.9}, "report": {"evaluate": {}}}


@pytest.mark.parametrize(("flag", "value"), [("--dicom-port", 11112), ("--to", "pacs:104:PACS"), ("--output", "out")])
def test_the_flags_of_the_dicom_node_name_orthanc(vitmed: RUN, flag: str, value: object) -> None:
    answer = vitmed("serve", "run", flag, value)
    assert answer.code == 2 and f"{flag} is no longer there; vitmed 0.2.0 has it" in answer.err
    assert "docs/orthanc.md" in answer.err
    assert "no longer there" not in vitmed("monitor", "run", "--to", "x").err  # which never had it


@pytest.mark.parametrize(
    ("words", "name", "fix"),
    [
        (["sweep", "DIR", "--grid", "model.heads=2,4"], "vitmed sweep", "vitmed tune DIR --grid"),
        (["tune", "--join", "runs/t"], "--join", "vitmed train --folds N --fold K"),
        (["cross-validate", "--join", "runs/t"], "--join", "--parallel N"),
    ],
)
def test_what_trained_many_runs_says_what_replaces_it(
    words: list[str], name: str, fix: str, vitmed: Callable[..., Answer]
) -> None:
    answer = vitmed(*words)
    assert answer.code == 2 and f"{name} is no longer there; vitmed 0.2.0 has it" in answer.err and fix in answer.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["lr-find", "."], "vitmed lr-find is no longer there; vitmed 0.2.0 has it\nFix: the plan sets the rate"),
        (
            ["export", ".", "--int8"],
            "--int8 is no longer there; vitmed 0.2.0 has it\nFix: export without it",
        ),
        (["bundle", ".", "--wheels", "w"], "--wheels is no longer there; vitmed 0.2.0 has it\nFix: PIP_NO_INDEX=1"),
        (
            ["runs", ".", "--html", "p.html"],
            "--html is no longer there; vitmed 0.2.0 has it\nFix: --json has",
        ),
        (
            ["evaluate", ".", "--unlike", "d"],
            "--unlike is no longer there; vitmed 0.2.0 has it\nFix: vitmed predict DIR",
        ),
        (["bundle", ".", "--report"], "--report is no longer there; vitmed 0.2.0 has it\nFix: copy report.html"),
        (["train", ".", "--track", "tensorboard,mlflow"], "--track tensorboard is no longer there; vitmed 0.2.0"),
        (["train", ".", "--format", "html,pdf"], "--format pdf is no longer there; vitmed 0.2.0 has it\nFix: print"),
    ],
)
def test_what_left_the_machine_or_drew_a_page_says_what_replaces_it(
    vitmed: Callable[..., Answer], words: list[str], expected: str
) -> None:
    answer = vitmed(*words)
    assert answer.code == 2 and expected in answer.err, answer.err


def test_results_of_0_2_0_are_read_without_the_specificity_at_a_fixed_sensitivity() -> None:
    at = {"fixed": 0.9, "reached": {"value": 0.8, "low": None, "high": None}, "too_few": True}
    rates = {"positive": "ill", "sensitivity": [at], "specificity": [at], "band": []}
    found = upgrade.results({"n": 3, "fixed_rates": rates})
    assert found == {"n": 3, "fixed_rates": {"positive": "ill", "sensitivity": [at], "band": []}}
    FixedRates.model_validate(found["fixed_rates"])
    ways = {"mean": {"text": "the mean", "at_threshold": {"threshold": 0.5}}, "max": {"text": "the highest"}}
    left = upgrade.results({"n": 3, "patient_level": ways})["patient_level"]
    assert left == {"mean": {"text": "the mean"}, "max": {"text": "the highest"}}
    with pytest.raises(ValueError, match="specificity"):
        FixedRates.model_validate(rates)
    assert upgrade.results({"n": 3}) == {"n": 3}


def test_a_stored_pdf_or_tensorboard_changed_no_result_and_is_left_out_with_a_note() -> None:
    """The checkpoint of a run that had one still predicts, and its run resumes."""
    stored = {"evaluate": {"format": "html, pdf"}, "train": {"track": ["tensorboard", "mlflow"]}}
    with pytest.warns(upgrade.OldNameWarning) as told:
        config = build_config(stored)
    assert (config.evaluate.format, config.train.track) == ("html", ["mlflow"])
    gone = "evaluate.format pdf is no longer there: print report.html from any browser; --format paper has the figures"
    assert str(told[0].message) == f"{gone} as PDF"
    with pytest.raises(UsageError, match="--format pdf is no longer there"):  # as `vitmed evaluate` reads its flags
        evaluate_config(EvaluateConfig(), {"format": "pdf"})
    with pytest.warns(upgrade.OldNameWarning):
        assert build_config({"evaluate": {"format": "pdf"}}).evaluate.format == "html"


def test_readers_of_0_2_0_have_numbers_without_intervals() -> None:
    from vitmed.metrics.readers import ReaderComparison

    test = {"difference": {"value": 0.1, "low": None, "high": None}, "statistic": None, "degrees": None, "p": None}
    row = {"number": "auroc", "n": 9, "model": 0.9, "mean": 0.8, "readers": {"ann": 0.8, "bob": None}}
    stored = {"readers": [row | {"random_readers": None, "fixed_readers": test}]}
    new = ReaderComparison.model_validate(upgrade.results(stored)["readers"][0])
    assert (new.model.value, new.model.low, new.readers["ann"].value, new.readers["bob"].value) == (
        0.9,
        None,
        0.8,
        None,
    )
    assert upgrade.results({"readers": [new.model_dump()]})["readers"] == [new.model_dump()]


def test_a_model_that_chose_what_is_gone_is_read() -> None:
    """0.2.0 stored the device on every GPU beside few cores; the scales of a vector scaling stand in the policy."""
    with pytest.warns(upgrade.OldNameWarning, match="evaluate.calibration vector"):
        found = upgrade.settings({"train": {"augment_on": "device"}, "evaluate": {"calibration": "vector"}})
    assert found == {"train": {}, "evaluate": {}}
    with pytest.raises(UsageError, match="--calibration vector is no longer there"):
        load_config(None, {"evaluate.calibration": "vector"})


@pytest.mark.parametrize(
    ("field", "kept", "refused"),
    [*((f"decoder_{part}", None, 16) for part in ("width", "depth", "heads")), ("normalise_patches", True, False)],
)
def test_settings_of_the_decoder_of_pretraining(field: str, kept: object, refused: object) -> None:
    assert build_config({"mae": {field: kept}}, PretrainConfig) == PretrainConfig()
    with pytest.raises(UsageError, match=f"mae.{field} = {refused!r} is no longer there; vitmed 0.2.0 has it"):
        build_config({"mae": {field: refused}}, PretrainConfig)
