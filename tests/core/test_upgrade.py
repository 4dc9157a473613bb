"""What is gone names what replaces it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Answer

RUN = Callable[..., Answer]


@pytest.mark.parametrize(("flag", "value"), [("--dicom-port", 11112), ("--to", "pacs:104:PACS"), ("--output", "out")])
def test_the_flags_of_the_dicom_node_name_orthanc(vitmed: RUN, flag: str, value: object) -> None:
    answer = vitmed("serve", "run", flag, value)
    assert answer.code == 2 and f"{flag} is no longer there; vitmed 0.2.0 has it" in answer.err
    assert "docs/orthanc.md" in answer.err
    assert "no longer there" not in vitmed("monitor", "run", "--to", "x").err  # which never had it
