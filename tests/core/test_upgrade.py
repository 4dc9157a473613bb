"""What earlier versions had: an old name is refused by one sentence that says what to use; old files are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Answer

from vitmed.core.aliases import OldNameWarning
from vitmed.core.errors import UsageError
from vitmed.core.evaluate_config import EvaluateConfig
from vitmed.core.flags import evaluate_config
from vitmed.core.load_config import build_config
from vitmed.core.upgrade import results_without_gone
from vitmed.metrics.fixed_rates import FixedRates


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["lr-find", "."], "vitmed lr-find is no longer there; vitmed 0.2.0 has it\nFix: the plan sets the rate"),
        (
            ["export", ".", "--int8"],
            "--int8 is no longer there; vitmed 0.2.0 has it\nFix: export without it",
        ),
        (["bundle", ".", "--wheels", "w"], "--wheels is no longer there; vitmed 0.2.0 has it\nFix: PIP_NO_INDEX=1"),
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
    found = results_without_gone({"n": 3, "fixed_rates": rates})
    assert found == {"n": 3, "fixed_rates": {"positive": "ill", "sensitivity": [at], "band": []}}
    FixedRates.model_validate(found["fixed_rates"])
    with pytest.raises(ValueError, match="specificity"):
        FixedRates.model_validate(rates)
    assert results_without_gone({"n": 3}) == {"n": 3}


def test_a_stored_pdf_or_tensorboard_changed_no_result_and_is_left_out_with_a_note() -> None:
    """The checkpoint of a run that had one still predicts, and its run resumes."""
    stored = {"evaluate": {"format": "html, pdf"}, "train": {"track": ["tensorboard", "mlflow"]}}
    with pytest.warns(OldNameWarning) as told:
        config = build_config(stored)
    assert (config.evaluate.format, config.train.track) == ("html", ["mlflow"])
    assert str(told[0].message) == "evaluate.format pdf is no longer there: print report.html from any browser"
    with pytest.raises(UsageError, match="--format pdf is no longer there"):  # as `vitmed evaluate` reads its flags
        evaluate_config(EvaluateConfig(), {"format": "pdf"})
    with pytest.warns(OldNameWarning):
        assert build_config({"evaluate": {"format": "pdf"}}).evaluate.format == "html"
