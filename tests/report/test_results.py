"""metrics.json is `Results`: the file reads back to itself, fits the schema in docs/, and nothing unknown is taken."""

import json
from pathlib import Path

import pytest
from conftest import Trained
from pydantic import ValidationError

from vitmed.metrics.estimates import Estimate
from vitmed.report.results import Results

SCHEMA = Path(__file__).parents[2] / "docs" / "metrics.schema.json"


@pytest.mark.parametrize("split", ["val", "test"])
def test_metrics_json_reads_back_to_itself(trained: Trained, split: str) -> None:
    text = (trained.folder / split / "metrics.json").read_text(encoding="utf-8")
    found = Results.model_validate_json(text)
    assert json.dumps(found.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n" == text
    assert found.overall["accuracy"].value == json.loads(text)["overall"]["accuracy"]["value"]


def test_a_run_fits_the_schema(trained: Trained) -> None:
    schema, content = (
        json.loads(file.read_text(encoding="utf-8")) for file in (SCHEMA, trained.folder / "test" / "metrics.json")
    )
    assert set(schema["required"]) <= set(content) <= set(schema["properties"])
    import jsonschema  # a second, which every process of the tests would take

    jsonschema.validate(content, schema)


def test_fields_are_read_only_and_keys_still_work(trained: Trained) -> None:
    found = trained.result.test.metrics
    assert found["overall"]["auroc"]["value"] == found.overall["auroc"].value
    assert "calibration" in found and "folds" not in found and found.folds is None
    with pytest.raises(ValidationError, match="frozen"):
        found.n = 3
    with pytest.raises(KeyError, match="prevalance"):
        found["prevalance"]


@pytest.mark.parametrize("wrong", [{"high": float("inf")}, {"extra": 1}, {"value": "much"}])
def test_what_is_no_number_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Estimate.model_validate({"value": 0.5, "low": None, "high": None, **wrong})
