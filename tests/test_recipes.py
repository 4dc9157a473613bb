"""The recipes: each loads, says what it is for, holds only what differs, and builds its network."""

import re

import pytest
import torch
import yaml

from vitmed.core.config import Config
from vitmed.core.load_config import load_config, recipes
from vitmed.models.vit import ViT
from vitmed.training.plan.make_plan import check_names

RECIPES = recipes()
# From outside: counted by hand from the shapes for MNIST; timm's count for ViT-Base at 224 px and 1000 classes.
PARAMETERS = {"mnist": (10, 139_018), "vit_base_224": (1000, 86_567_656)}


def test_all_recipes_are_there() -> None:
    networks = "cifar10_patch4 cifar10_patch8 mnist sincos_224 vit_base_224"
    tasks = "demo knee_grades knee_number malaria malaria_gray50 nih_findings"
    assert set(RECIPES) == set(f"{networks} {tasks}".split())


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_opens_with_its_header(name: str) -> None:
    lines = RECIPES[name].read_text(encoding="utf-8").splitlines()
    header = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
    found = re.findall(r"^# (Data|Cost|Command|This should give): \S", "\n".join(header), re.M)
    assert found == ["Data", "Cost", "Command", "This should give"]
    command = next(line for line in header if line.startswith("# Command: "))
    assert re.search(rf"vitmed train .*--config {name}\b", command)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_holds_only_what_differs_and_builds_its_network(name: str) -> None:
    defaults = Config().model_dump()
    given = yaml.safe_load(RECIPES[name].read_text(encoding="utf-8"))
    same = [f"{s}.{key}" for s, fields in given.items() for key, value in fields.items() if defaults[s][key] == value]
    assert same == []
    check_names(load_config(name))
    config = load_config(name).model
    classes, parameters = PARAMETERS.get(name, (10, None))
    with torch.device("meta"):
        model = ViT(config, classes).eval()
        logits = model(torch.zeros(1, config.channels, config.image_size, config.image_size))
    assert parameters in (None, sum(p.numel() for p in model.parameters())) and logits.shape == (1, classes)
