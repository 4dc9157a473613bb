"""The configuration: strict, ordered, told in words when it is wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from vitmed.core.config import Config, EvaluateConfig, PretrainConfig
from vitmed.core.errors import UsageError
from vitmed.core.load_config import build_config, evaluate_config, find_config, load_config, recipes, with_values
from vitmed.training.plan.make_plan import check_names


def told(**given: object) -> str:
    with pytest.raises(UsageError) as error:
        load_config(**given)  # type: ignore[arg-type]
    assert error.value.exit_code == 2
    return str(error.value)


def test_defaults_file_sets_flags_in_that_order(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("train:\n  lr: 0.1\n  epochs: 7\n  seed: 1\n")
    config = load_config(file, {"train.lr": 0.3, "train.seed": None}, ["train.lr=0.2", "train.epochs=8"])
    assert (config.train.lr, config.train.epochs, config.train.seed) == (0.3, 8, 1)
    assert config.train.batch_size == Config().train.batch_size
    file.write_text("# nothing\n")
    assert load_config(file) == Config()


def test_a_written_config_reads_back_the_same_in_plain_values(tmp_path: Path) -> None:
    for config in (
        Config(),
        load_config(None, {"model.width": 20, "train.patience": 3, "data.root": str(tmp_path)}, ["train.lr=1e-4"]),
    ):
        (tmp_path / "config.yaml").write_text(config.to_yaml())
        assert load_config(tmp_path / "config.yaml") == config
    tree = yaml.safe_load(Config().to_yaml())
    assert list(tree) == list(Config.model_fields) and build_config(tree) == Config()
    numbers = [v for fields in tree.values() for v in fields.values() if isinstance(v, float)]
    assert all(math.isfinite(v) for v in numbers)


def test_a_section_without_fields_is_refused_also_where_a_flag_names_weights(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    for text in ("model:\n", "model: 3\n"):
        file.write_text(text)
        for flags in ({}, {"model.weights": "none"}, {"train.lr": 0.1}):
            assert f"{file}: config section 'model' holds" in told(file=file, overrides=flags)


def test_other_weights_than_those_of_a_run_bring_their_own_licence_and_normalisation(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    model = "model: {weights: a.pth, licence: CC-BY-NC-4.0, terms: cite us, patch_size: 16"
    file.write_text(f"{model}, weights_sha256: '{'0' * 64}'}}\ndata: {{normalize: half, interpolation: bicubic}}\n")
    other = load_config(file, {"model.weights": "b.pth", "data.interpolation": "bicubic"}, ["train.epochs=3"])
    assert (other.model.licence, other.model.terms, other.model.weights_sha256) == (None, None, None)
    assert other.model.patch_size == 16 and "normalize" not in other.data.model_fields_set
    assert other.data.interpolation == "bicubic"  # named with them
    assert load_config(file).data.normalize == "half" and load_config(file).model.licence == "CC-BY-NC-4.0"
    for same in ("a.pth", "none"):  # these, and none at all, expect nothing else
        assert (
            load_config(file, {"model.weights": str(tmp_path / same) if same != "none" else same}).data.normalize
            == "half"
        )
    assert load_config(
        file, {"model.weights": "b.pth", "data.mean": [0.5], "data.std": [0.5], "data.normalize": "given"}
    )
    file.write_text(file.read_text().replace("half", "given, mean: [0.4], std: [0.2]"))
    assert load_config(file, {"model.weights": "b.pth", "data.normalize": "half"}).data.mean is None
    assert load_config(file, {"model.weights": "b.pth", "data.normalize": "given"}).data.mean == [0.4]
    file.write_text(file.read_text().replace("given, mean: [0.4], std: [0.2]", "image"))  # which no weights expect
    assert load_config(file, {"model.weights": "b.pth"}).data.normalize == "image"
    file.write_text(f"{model}}}\ndata: {{normalize: half}}\n")  # by hand, before there are weights
    assert load_config(file, {"model.weights": "b.pth"}).data.normalize == "half"


def test_a_finding_that_is_no_name_is_refused_by_its_flag() -> None:
    assert told(overrides={"data.findings": ["edema", 1]}).startswith("--finding 1: ")


def test_the_root_in_a_file_is_relative_to_that_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    file = tmp_path / "sub" / "a.yaml"
    file.write_text("data:\n  root: ../images\n")
    assert load_config(file).data.root == str(tmp_path / "images")
    file.write_text(f"data:\n  root: {tmp_path}\n")
    assert load_config(file).data.root == str(tmp_path)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("train.lr=1e-4", "lr", 1e-4),
        ("train.lr=1", "lr", 1.0),
        ("train.ema=false", "ema", False),
        ("train.patience=null", "patience", None),
        ("train.warmup_epochs=0", "warmup_epochs", 0.0),
        (" train.seed = 5", "seed", 5),
    ],
)
def test_set_reads_values_as_yaml(text: str, field: str, value: object) -> None:
    found = getattr(load_config(sets=[text]).train, field)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("train.leraning_rate=1", ["leraning_rate", "'train'", "warmup_epochs", "batch_size"]),
        ("train.epoch=1", ["did you mean 'epochs'"]),
        ("train.learning_rate=1", ["did you mean 'lr'"]),  # as other tools call it
        ("trian.lr=1", ["trian", "data, model, augment, train", "did you mean 'train'"]),
        ("train.lr=fast", ["train.lr", "fast", "expected a number, found a text"]),
        ("train.lr=-1", ["train.lr", "-1", "greater than 0"]),
        ("train.lr=.inf", ["train.lr", "finite"]),
        ("train.lr=.nan", ["train.lr"]),
        ("train.epochs=1.5", ["train.epochs", "1.5"]),
        ("train.epochs='3'", ["train.epochs"]),
        ("train.ema=1", ["train.ema"]),
        ("model.channels=5", ["model.channels", "4"]),
        ("data.resize=stretch", ["data.resize", "'pad', 'squash' or 'crop'"]),
        ("train.lr=1e-7", ["train.min_lr 1e-06 is above train.lr 1e-07"]),
        ("train=1", ["section.field"]),
        ("train.lr", ["section.field=value"]),
        ("train.lr=[", ["not valid YAML"]),
    ],
)
def test_what_is_wrong_is_named_with_what_is_accepted(text: str, names: list[str]) -> None:
    message = told(sets=[text])
    assert all(name in message for name in names), message


def test_the_lowest_learning_rate_is_compared_with_the_one_that_is_used() -> None:
    """The plan decides the learning rate of training where it is not set; that of pretraining is the default."""
    config = load_config(sets=["train.min_lr=1"])
    assert build_config(with_values(config, {"train.lr": 1.0}).model_dump()).train.min_lr == 1
    with pytest.raises(UsageError, match=r"train.min_lr 1 is above train.lr 0.5"):
        build_config(with_values(config, {"train.lr": 0.5}).model_dump())
    assert "train.min_lr 1 is above train.lr 0.0005" in told(sets=["train.min_lr=1"], kind=PretrainConfig)


@pytest.mark.parametrize(
    ("text", "name"),
    [("- a\n", "list"), ("train: 5\n", "train"), ("a: [\n", "YAML"), ("\x00", "YAML"), ("5: {a: 1}\n", "section '5'")],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str, name: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    message = told(file=file)
    assert name in message and ("bad.yaml" in message or "section" in message), message


def test_a_config_that_is_not_there(tmp_path: Path) -> None:
    assert "no such config file" in told(file=tmp_path / "none.yaml")
    message = told(file="malari")
    assert "did you mean 'malaria'" in message and "mnist" in message
    assert find_config("malaria") == recipes()["malaria"]


def test_a_name_that_stands_in_no_table() -> None:
    check_names(Config())
    for key, value in (("model.name", "vgg"), ("augment.policy", "lihgt"), ("train.monitor", "auroc_maxro")):
        with pytest.raises(UsageError, match=value):
            check_names(load_config(None, {key: value}))


def test_every_field_is_described() -> None:
    for name, section in Config.model_fields.items():
        for field, info in section.annotation.model_fields.items():  # type: ignore[union-attr]
            assert info.description and info.description.strip()[-1] in ".", f"{name}.{field}"


@pytest.mark.parametrize(
    ("overrides", "sets", "message"),
    [
        ({"train.balance": "foo"}, [], "--balance foo: "),
        ({"train.lr": 1.0}, ["train.balance=foo"], "config train.balance = 'foo'"),
        ({}, ["train.balance=foo"], "config train.balance = 'foo'"),
        ({"data.groups": "g.csv"}, ["data.group_regex=x"], "--groups and data.group_regex both define the patients"),
        ({"data.fold": 2}, [], "--fold needs --folds"),
        ({"data.window": "5"}, [], "--window '5': expected"),
        ({"evaluate.ordinal": ["a,b,b,c"]}, [], "--ordinal names 'b' twice"),
        ({}, ["evaluate.ordinal=[a, b, a]"], "evaluate.ordinal names 'a' twice"),
    ],
)
def test_an_error_names_what_the_user_typed(overrides: dict[str, object], sets: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        load_config(None, overrides, sets)
    assert error.value.problem.startswith(message)


def test_another_operating_point_replaces_that_of_the_run_and_one_taken_back_leaves_it() -> None:
    run = EvaluateConfig(cost="5:1")
    assert evaluate_config(run, {"youden": False}).cost == "5:1"
    chosen = evaluate_config(run, {"youden": True})
    assert chosen.youden and chosen.cost is None


def test_an_operating_point_of_the_command_line_replaces_that_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("evaluate: {target_sensitivity: 0.9, coverage: 0.8}")
    found = load_config(tmp_path / "c.yaml", {"evaluate.youden": True}).evaluate
    assert found.youden and found.target_sensitivity is None and found.coverage == 0.8
    assert load_config(tmp_path / "c.yaml", {"evaluate.youden": False}).evaluate.target_sensitivity == 0.9
