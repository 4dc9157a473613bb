"""The bill of materials of a bundle, by the JSON schema of CycloneDX 1.6 as its own library holds it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vitmed.commands.bundle_archive import bill_of_materials
from vitmed.commands.bundle_packages import Package

schema: Any = pytest.importorskip("cyclonedx.schema", reason="pip install '.[test]'")
validation: Any = pytest.importorskip("cyclonedx.validation.json", reason="pip install '.[test]'")


def test_it_fits_the_schema() -> None:
    packages = [
        Package("vitmed", "0.2.0", "vitmed.whl", "0" * 64, "Apache-2.0", True, {}, ("torch", "numpy")),
        Package("torch", "2.15.0+cpu", "torch.whl", "1" * 64, "BSD-3-Clause AND (MIT OR BSL-1.0)", True, {}),
        Package("numpy", "2.4.6", "numpy.whl", "2" * 64, "BSD License", False, {}),
        Package("tiny", "1.0", "tiny.whl", "3" * 64, "", False, {}),
    ]
    model = {
        "type": "machine-learning-model", "bom-ref": "model", "name": "first",
        "hashes": [{"alg": "SHA-256", "content": "4" * 64}], "licenses": [{"license": {"name": "CC BY-NC"}}],
    }  # fmt: skip
    content = bill_of_materials(packages, model, "first")
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(content)) is None
    content["components"][1]["hashes"][0]["content"] = "no hash"
    assert validator.validate_str(json.dumps(content)) is not None
