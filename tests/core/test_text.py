"""Texts that several messages share."""

import pytest

from vitmed.core.text import identity, now


def test_the_date_is_that_of_source_date_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert now() == "2023-11-14T22:13:20+00:00"
    for wrong in ("", "yesterday", "-1", "9" * 40):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        assert now() > "2026" and now().endswith("+00:00")


def test_the_identity_of_a_report_has_what_is_known() -> None:
    date = "2026-11-22T09:41:07+00:00"
    assert identity("cells", date, "0123456789abcdef") == "run cells, 2026-11-22 09:41 UTC, weights 0123456789ab"
    assert identity("cells", None, None, date) == "run cells, rebuilt 2026-11-22 09:41 UTC"
    assert identity("", None, None) == ""
