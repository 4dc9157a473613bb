"""What is gone is refused by one sentence with the version that has it; what changes nothing is dropped."""

from __future__ import annotations

from typing import Any

import pytest

from vitmed.core import upgrade
from vitmed.core.errors import UsageError
from vitmed.core.load_config import build_config, load_config
from vitmed.core.targets import Target

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
            None, {"augment.policy": "none"} if field == "policy" else {}
        )
    for value in refused:
        with pytest.raises(UsageError, match=f"{key} = {value!r} is no longer there; vitmed 0.2.0 has it"):
            build_config({section: {field: value}})


@pytest.mark.parametrize(
    ("read", "content", "names"),
    [
        (upgrade.policy, SETS, "'raps'"),
        (upgrade.policy, {"findings": {"edema": SETS}}, "'raps'"),
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


def test_results_of_0_2_by_lac_are_read() -> None:
    found = upgrade.results({"conformal": {"score": "lac", "asked": 0.9}, "report": {"evaluate": {"conformal": "lac"}}})
    assert found == {"conformal": {"asked": 0.9}, "report": {"evaluate": {}}}
