"""A setting is declared once: the field gives flag, help, Python keyword, YAML key and docs row."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from conftest import Answer
from pydantic import Field
from typer.main import get_command

from vitmed.cli.commands import APPS, command
from vitmed.cli.entry import COMMANDS, app
from vitmed.core.base_models import PANELS, Flag, fields_of, flag_of, flags_of, spellings
from vitmed.core.config import EVALUATE_FLAGS, FLAGS, Config, PretrainConfig, RunConfig, TrainConfig
from vitmed.core.errors import UsageError
from vitmed.core.load_config import load_config, read_overrides
from vitmed.core.options import PRETRAIN_FLAGS, Argument, Fields, Option

RUN = Callable[..., Answer]
# Every flag of version 0.1.0, which scripts of users name.
OF_0_1_0 = """
check: --frame --group-regex --groups --json --labels --no-index --output --strict -o
compare: --json --output -o
evaluate:
  --allow-leakage --calibration --cost --coverage --data --device --fail-under --format --group-regex --groups
  --json --labels --map-images --max-risk --no-allow-leakage --no-show-names --no-youden --ordinal --output
  --prevalence --rater --resamples --show-names --split --subgroup --target-sensitivity --target-specificity
  --youden -o
predict: --checkpoint --csv --device --frame --json --plot --runs --top-k
summary: --channels --image-size --num-classes --patch-size
explain: --checkpoint --device --frame --json --method --output --runs --target -o
stress:
  --allow-leakage --corruption --data --device --group-regex --groups --images --json --labels
  --no-allow-leakage --output --seed --split -o
plan:
  --allow-leakage --augment --batch-size --channels --config --device --epochs --fold --folds --frame
  --freeze-blocks --group-regex --groups --image-size --json --labels --layer-decay --lora --lr --max-train
  --model --normalize --offline --output --patch-size --policy --set --weights --window -b -c -o
pretrain:
  --accumulate --allow-leakage --augment --batch-size --cache --cache-size --channels --config --device --epochs
  --fold --folds --frame --group-regex --groups --image-size --json --labels --lr --mask-ratio --max-train
  --model --name --no-cache --normalize --output --patch-size --policy --precision --resize --resume --seed
  --set --unlabelled --warmup-epochs --weight-decay --window --workers -b -c -j -o
train:
  --accumulate --allow-leakage --augment --balance --baseline --batch-size --cache --cache-size --calibration
  --channels --config --cost --coverage --cutmix --device --drop-path --ema --epochs --fail-under --fold --folds
  --format --frame --freeze --freeze-blocks --group-regex --groups --image-size --json --labels --layer-decay
  --lora --lr --map-images --max-risk --max-train --mixup --model --monitor --name --no-baseline --no-cache
  --no-ema --no-probe-first --no-show-names --no-youden --normalize --offline --ordinal --output --patch-size
  --patience --policy --pool --positions --positive --precision --prevalence --probe-first --rater --resamples
  --resize --resume --save-every --seed --set --show-names --smoothing --stem --subgroup --target-sensitivity
  --target-specificity --warmup-epochs --weight-decay --weights --window --workers --youden -b -c -j -o
probe:
  --allow-leakage --cache --cache-size --config --device --fail-under --fold --folds --frame --group-regex
  --groups --image-size --json --labels --max-train --name --no-cache --normalize --offline --output --positive
  --resize --set --weights --window -c -o
demo: --cells --device --fail-under --json --output --seed -o
data list: --json
data get: --json --offline
data import: --json
weights list: --json
weights fetch: --json --offline --to
"""
ROOT = Path(__file__).parents[2]
TABLES: dict[str, tuple[type[RunConfig], dict[str, str]]] = {  # the commands that take whole sections
    "train": (Config, FLAGS),
    "plan": (Config, FLAGS),
    "evaluate": (Config, EVALUATE_FLAGS),
    "probe": (Config, flags_of(Config, "data", "evaluate")),
    "pretrain": (PretrainConfig, PRETRAIN_FLAGS),
}


def page() -> Any:
    """docs/configuration.py as a module."""
    spec = importlib.util.spec_from_file_location("configuration_page", ROOT / "docs" / "configuration.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words_of(kind: type[RunConfig], keyword: str, place: str) -> list[str]:
    section, _, name = place.partition(".")
    return [word for text in spellings(keyword, fields_of(kind, section)[name]) for word in text.split("/")]


@pytest.mark.parametrize("name", TABLES)
def test_every_flag_stands_in_the_help_of_its_command_and_beside_its_field_in_the_docs(vitmed: RUN, name: str) -> None:
    shown = vitmed(name, "--help").out.split()
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    kind, fields = TABLES[name]
    for keyword, place in fields.items():
        words = words_of(kind, keyword, place)
        assert all(word in shown or f"{word}," in shown for word in words), words
        spelled, field = ", ".join(f"`{word}`" for word in words), place.partition(".")[2]
        if name in ("train", "pretrain"):
            assert re.search(rf"^\| `{field}` \| {re.escape(spelled)} \|", text, re.M), place


def values() -> dict[str, object]:
    """For every flag a value that is not the default."""
    return {
        "model": "vit_small", "weights": "w.pt", "image_size": 48, "patch_size": 6, "channels": 1, "stem": "patch",
        "pool": "mean", "positions": "sincos_2d", "drop_path": 0.1, "resize": "crop", "normalize": "image",
        "max_train": 99, "positive": "blue", "policy": "oct", "views": "mirror", "mixup": 0.3, "cutmix": 0.4,
        "epochs": 3, "batch_size": 5, "accumulate": 2, "lr": 0.002, "weight_decay": 0.1, "layer_decay": 0.5,
        "time": 1200.0, "micro_batch": 3, "grad_checkpointing": True, "autotune": False,
        "compile": True,
        "warmup_epochs": 1.5, "smoothing": 0.2, "balance": "loss", "ema": False, "monitor": "mcc", "patience": 4,
        "probe_first": True, "freeze_blocks": 1, "baseline": False, "window": [40.0, 400.0], "frame": 2,
        "cache": False, "on_bad_file": "skip", "cache_size": 3.5,
        "labels": "l.csv", "split_column": "part",
        "target": "findings", "finding": ["edema"], "uncertain": "ones", "unit": "years",
        "groups": "g.csv", "folds": 5, "fold": 2, "repeats": 3, "hold_out": 0.2, "test": False,
        "allow_leakage": True, "resplit": True,
        "subgroup": ["site"], "rater": ["reader"], "rater_score": ["score"], "ordinal": ["mild", "severe"],
        "calibration": "temperature", "youden": True, "balanced": True, "target_sensitivity": 0.95,
        "target_specificity": 0.9, "cost": "10:1",
        "prevalence": 0.02, "coverage": 0.8, "max_risk": 0.03,
        "resamples": 50, "map_images": 7, "report": False,
        "shard_model": True, "save_every": 2, "seed": 9, "device": "cpu", "precision": "bf16",
        "workers": 1,
    }  # fmt: skip


# These go with few others.
ALONE = {"sites": "hospital", "track": ["mlflow"], "freeze": True, "lora": 4, "group_regex": "(P.)", "card": "busi"}
ALONE |= {"format": "html,md", "show_names": True}  # of a report


def test_every_flag_is_a_keyword_and_its_field_a_yaml_key(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    given = {**values(), **ALONE}
    for keyword, place in FLAGS.items():
        section, _, name = place.partition(".")
        value = given[keyword]
        assert read_overrides({"epochs": None, keyword: value}, FLAGS, "train") == {place: value}
        beside = {"folds": 5} if name in ("fold", "repeats", "hold_out") else {}
        file.write_text(yaml.safe_dump({section: {**beside, name: value}}))
        read = getattr(getattr(load_config(file), section), name)
        assert read == value or Path(read) == tmp_path / str(value), place  # a path is relative to the file


def test_every_flag_of_train_reaches_the_config(vitmed: RUN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitmed.studies.one_run import OneRun

    assert {*values(), *ALONE} == set(FLAGS), "a value for each flag"
    seen: dict[str, Any] = {}

    def catch(self: OneRun, config: Config, *_: Any) -> None:
        seen.update(config.model_dump())
        raise KeyboardInterrupt

    monkeypatch.setattr(OneRun, "new", catch)
    args: list[object] = []
    for flag, value in values().items():
        if isinstance(value, bool):
            args.append(f"--{'' if value else 'no-'}{flag.replace('_', '-')}")
        else:
            texts: dict[str, object] = {"window": "40,400", "ordinal": "mild,severe", "time": "20m"}
            one = value[0] if isinstance(value, list) else value
            args += [f"--{flag.replace('_', '-')}", texts.get(flag, one)]
    assert vitmed("train", tmp_path, *args).code == 130
    defaults = Config().model_dump()
    for flag, value in values().items():
        section, field = FLAGS[flag].split(".")
        assert seen[section][field] == value != defaults[section][field], flag
    assert seen["data"]["root"] == str(tmp_path)
    for args in (["--freeze"], ["--lora", 4], ["--group-regex", "(P.)"], ["--format", "html,md"], ["--show-names"]):
        assert vitmed("train", tmp_path, *args).code == 130
        flag = str(args[0]).removeprefix("--").replace("-", "_")
        section, field = FLAGS[flag].split(".")
        assert seen[section][field] == ALONE[flag]
    monkeypatch.setattr(OneRun, "new", lambda self, config, *_: seen.update(config.model_dump()) or 1 / 0)
    assert (
        vitmed("train", tmp_path, "-b", 7, "-j", 0, "--augment", "light", "-c", "mnist", "--set", "model.depth=2").code
        == 1
    )
    assert (seen["train"]["batch_size"], seen["train"]["workers"], seen["augment"]["policy"]) == (7, 0, "light")
    assert seen["model"]["depth"] == 2 and seen["model"]["channels"] == 1  # from --set, and from the recipe


def test_every_flag_of_0_1_0_is_still_there() -> None:
    commands: Any = get_command(app)
    named = re.findall(r"^([a-z][a-z -]*):((?: -\S+|\n  .*)*)$", OF_0_1_0, re.M)
    assert len(named) == 17  # `weights where` has none
    for name, flags in named:
        found = commands
        for word in name.split():
            found = found.get_command(None, word)
        has = {word for param in found.params for word in (*param.opts, *param.secondary_opts)}
        assert set(flags.split()) <= has, name


class Shining(TrainConfig):
    """The optimisation, and a field that somebody has just added."""

    shine: Annotated[float, Flag(also="-s", metavar="LUX")] = Field(0.5, ge=0, description="How bright. Not more.")


class ShiningConfig(Config):
    train: Shining = Shining()  # type: ignore[call-arg]


def test_a_field_added_in_one_place_appears_everywhere(tmp_path: Path) -> None:
    """Flag with its help and panel, Python keyword, YAML key, --set, range and docs row: from the declaration above."""
    fields = flags_of(ShiningConfig)
    assert {**fields} == {**FLAGS, "shine": "train.shine"}
    assert read_overrides({"shine": 2.0}, fields, "train") == {"train.shine": 2.0}
    seen: dict[str, Any] = {}

    def shine(**flags: Annotated[Any, Fields(ShiningConfig, flags_of(ShiningConfig))]) -> None:
        seen.update(flags)

    added: Any = get_command(command(shine, ""))
    with added.make_context("train", ["--shine", "2"]) as context:
        added.invoke(context)
        training = re.split(r"^Training:$", added.get_help(context), flags=re.M)[1].partition("\n\n")[0]
    assert seen == {"shine": 2.0}
    assert re.search(r"-s, --shine LUX +How bright\.$", training, re.M) and "Not more" not in training
    file = tmp_path / "c.yaml"
    file.write_text("train: {shine: 3.5}\n")
    kind: Any = ShiningConfig
    assert load_config(file, kind=kind).train.shine == 3.5
    assert load_config(sets=["train.shine=4"], kind=kind).train.shine == 4.0
    with pytest.raises(UsageError, match=r"train\.shine = -1.*greater than or equal to 0"):
        load_config(sets=["train.shine=-1"], kind=kind)
    row = "| `shine` | `--shine`, `-s` | number, >= 0 | `0.5` | How bright. Not more. |"
    assert row in "".join(page().sections(ShiningConfig))


def test_an_option_declared_in_a_signature_is_parsed_and_helped() -> None:
    seen: dict[str, Any] = {}

    def shine(
        lamps: Annotated[Sequence[Path | str], Argument("The lamps.")],
        *,
        bulb: Annotated[str | Path, Option("A bulb.", "--bulb -u", metavar="BULB")] = "old",
        watts: Annotated[int | None, Option("How strong.", max=9)] = None,
        seen_by: int = 0,  # of Python alone
    ) -> None:
        seen.update(lamps=lamps, bulb=bulb, watts=watts)

    added: Any = get_command(command(shine, ""))
    with added.make_context("shine", ["a", "b", "--watts", "3", "-u", "new"]) as context:
        added.invoke(context)
        text = added.get_help(context)
    assert seen == {"lamps": [Path("a"), Path("b")], "bulb": "new", "watts": 3}
    assert re.search(r"-u, --bulb BULB +A bulb\.", text) and "seen" not in text
    with pytest.raises(Exception, match="less than or equal to 9"):
        added.make_context("shine", ["a", "--watts", "10"])


def test_help_stands_in_panels_with_ten_flags_first(vitmed: RUN) -> None:
    text = vitmed("train", "--help").out
    headings = re.findall(r"^([A-Z][a-z ]+):$", text, re.M)
    assert headings == ["Arguments", *PANELS]
    first = text.partition("Most used:\n")[2].partition("\n\n")[0]
    flags = re.findall(r"^  (?:-\w, )?--([\w-]+)", first, re.M)
    assert len(flags) == 10
    assert {"config", "output", "weights", "epochs", "batch-size", "lr", "group-regex"} < set(flags)


@pytest.mark.parametrize("name", ["", *(name for group in COMMANDS.values() for name in group)])
def test_help_fits_the_terminal(vitmed: RUN, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        answer = vitmed(*([name] if name else []), "--help")
        lines = answer.out.split("\n")
        assert answer.code == 0 and max(map(len, lines)) <= width
        assert width == 80 or name in ("data", "weights", "") or max(map(len, lines)) > 80  # uses the room that it has
        assert "..." not in re.sub(r"CLASS,\.\.\.|FORMAT,\.\.\.|[\]}Sst]\.\.\.", "", answer.out), "a line is cut off"


def test_every_command_stands_in_the_list_of_commands() -> None:
    assert set(APPS) == {name for group in COMMANDS.values() for name in group}
    with pytest.raises(UsageError, match="pretrain has no option smoothing"):
        read_overrides({"smoothing": 0.1}, PRETRAIN_FLAGS, "pretrain")
    with pytest.raises(UsageError, match="did you mean epochs"):
        read_overrides({"epoch": 2}, PRETRAIN_FLAGS, "pretrain")
    with pytest.raises(UsageError, match="did you mean image_size, warmup_epochs"):
        read_overrides({"imgsz": 32, "warmup": 2}, PRETRAIN_FLAGS, "pretrain")


def test_a_flag_is_the_same_in_every_section() -> None:
    """No two fields share a flag, and the first sentence of a description is short enough for --help."""
    for kind in (Config, PretrainConfig):
        found = flags_of(kind)
        places = [
            f"{section}.{name}"
            for section in kind.model_fields
            for name, field in fields_of(kind, section).items()
            if flag_of(field)
        ]
        assert sorted(found.values()) == sorted(places)
        for place in places:
            section, _, name = place.partition(".")
            help_text = str(fields_of(kind, section)[name].description).partition(". ")[0]
            assert len(help_text) <= 130, place
