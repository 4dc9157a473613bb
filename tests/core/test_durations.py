"""Durations: what people write is read, what is wrong is refused, and what is printed can be typed again."""

from __future__ import annotations

import pytest

from vitmed.core.config import Config, read_duration
from vitmed.core.errors import UsageError
from vitmed.core.load_config import build_config, load_config
from vitmed.core.text import about, duration_text, round_up


@pytest.mark.parametrize(
    "text, seconds",
    [("90s", 90), ("20m", 1200), ("2h", 7200), ("1h30m", 5400), ("1.5h", 5400), ("1d2h", 93_600), (" 45s ", 45)],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds
    assert load_config(None, {"train.time": text}).train.time == seconds
    assert load_config(None, sets=[f"train.time={text}"]).train.time == seconds


@pytest.mark.parametrize("text", ["20", "", "m", "30m1h", "1h 30", "-5m", "20 minutes", "1e3s", "nan"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match=r"--time .* is not a duration: expected a number and its .*90s") as caught:
        load_config(None, {"train.time": text})
    assert "train.time" in caught.value.fix and "omit one of them" not in caught.value.fix


def test_a_time_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="greater than 0"):
        load_config(None, {"train.time": "0s"})


def test_a_number_is_in_seconds_so_that_a_written_configuration_is_read_again() -> None:
    config = load_config(None, {"train.time": "1h30m"})
    assert config.model_dump()["train"]["time"] == 5400.0
    assert build_config(config.model_dump()) == config and build_config({"train": {"time": 90}}).train.time == 90
    assert Config().train.time is None


def test_what_is_printed_can_be_typed() -> None:
    texts = {45: "45s", 90: "1m30s", 1200: "20m", 3599.7: "1h", 5400: "1h30m", 86_400: "1d", 0.2: "0s"}
    for seconds, text in texts.items():
        assert duration_text(seconds) == text
        assert read_duration(text) == pytest.approx(seconds, abs=0.5)


def test_an_estimate_is_rounded() -> None:
    texts = {0.3: "1 s", 14.4: "14 s", 47: "50 s", 135: "2.2 min", 5400: "90 min", 9000: "2.5 h"}
    texts |= {72_000: "20 h", 432_000: "120 h"}
    assert {seconds: about(seconds) for seconds in texts} == texts


def test_a_duration_is_rounded_up_to_one_that_people_name() -> None:
    assert [round_up(s) for s in (1, 31, 60, 61, 1300, 28_801)] == [30, 45, 60, 90, 1800, 32_400]
