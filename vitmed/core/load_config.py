"""From YAML files, --set and flags to a configuration: defaults < YAML file < --set < flags."""

import copy
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from vitmed.core.base_models import SHARE, fields_of, flag_of, flags_of
from vitmed.core.config import EVALUATE_FLAGS, GROUP_WORDS, PATHS, Config, EvaluateConfig, PretrainConfig, RunConfig
from vitmed.core.errors import UsageError, nearest, unknown_key
from vitmed.core.files import why_unreadable
from vitmed.core.run_folder import find_path, store_path
from vitmed.core.text_files import YamlError, packaged, parse_yaml, read_yaml
from vitmed.core.upgrade import gone, without_gone

AnyConfig = TypeVar("AnyConfig", Config, PretrainConfig)
recipes = partial(packaged, "configs")  # name -> file of the recipes in `configs/`
SHARES = [name for name, field in EvaluateConfig.model_fields.items() if flag_of(field) is SHARE]  # between 0 and 1
WORDS = {"float_type": "a number", "int_type": "a whole number", "bool_type": "true or false", "string_type": "a text"}
NORM = {"normalize", "mean", "std"}  # fields of data that go together
POINTS = {"youden", "balanced", "target_sensitivity", "target_specificity", "cost"}  # that choose the operating point


def load_config(
    file: str | Path | None = None,  # a YAML file, or the name of a recipe in the package (malaria)
    overrides: dict[str, Any] | None = None,  # {"section.field": value}; None (a flag that was not given) is skipped
    sets: Sequence[str] = (),  # "section.field=value" texts; the value is parsed as YAML
    kind: type[AnyConfig] = Config,  # type: ignore[assignment]
) -> AnyConfig:
    """Build the configuration: defaults < YAML file < `sets` < `overrides`. Raises UsageError for an unknown key, a
    wrong type or a value out of range, which states what is accepted."""
    path = None if file is None else find_config(file)
    tree: dict[str, Any] = {} if path is None else read_config(path)
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    values = dict[str, Any]()
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: expected section.field=value", "for example --set train.lr=1e-4")
        try:
            values[key.strip()] = _number(parse_yaml(value))
        except YamlError:
            raise UsageError(f"--set {text[:200]}: the value is not valid YAML", "quote it") from None
        if not key.strip().partition(".")[2]:
            fix = f"sections are {', '.join(kind.model_fields)}"
            raise UsageError(f"--set {key.strip()}: expected section.field", fix)
    values |= given
    if any(values.get(f"evaluate.{key}") for key in POINTS) and isinstance(own := tree.get("evaluate"), dict):
        tree["evaluate"] = {key: value for key, value in own.items() if key not in POINTS}  # another in their place
    named = {f"{tree['model'].get('weights')}" if isinstance(tree.get("model"), dict) else "", "none"}
    for key, value in values.items():
        section, _, field = key.partition(".")
        if isinstance(fields := tree.setdefault(section, {}), dict):
            fields[field] = str(value) if isinstance(value, Path) else value
    if "model.weights" in values and isinstance(model := tree.get("model"), dict):  # other weights than the file states
        about = {"model": {"weights_sha256", "weights_reason", "licence", "terms"}}
        if model.get("weights_sha256") is not None and f"{values['model.weights']}" not in named:
            about["data"] = {"interpolation", *NORM}  # a run wrote what its weights expect of an image
        for section, names in about.items():
            if isinstance(fields := tree.get(section), dict):
                how = values.get("data.normalize", "given" if {"data.mean", "data.std"} & values.keys() else "")
                names -= NORM if how == "given" or fields.get("normalize") == "image" else set()
                tree[section] = {k: v for k, v in fields.items() if k not in names or f"{section}.{k}" in values}
    try:
        return build_config(tree, kind, given)
    except UsageError as error:
        if path is not None:
            try:
                build_config(read_config(path), kind)
            except UsageError as own:  # the same without --set and flags: it is in the file
                if own.problem == error.problem:
                    raise UsageError(f"{path}: {error.problem}", error.fix) from None
        raise


def read_overrides(flags: dict[str, Any], known: dict[str, str], command: str) -> dict[str, Any]:
    """{"epochs": 5} -> {"train.epochs": 5}, without flags that are None (not given). Raises UsageError."""
    if unknown := set(flags) - set(known):
        words = [f"--{flag.replace('_', '-')}" for flag in sorted(unknown)]
        problem = f"{command} has no option {', '.join(sorted(unknown))}"
        near = [match for flag in sorted(unknown) if (match := nearest(flag, [*known, "config", "sets"], cutoff=0.75))]
        fix = f"did you mean {', '.join(near)}?" if len(near) == len(unknown) else "see docs/configuration.md"
        raise gone(words, " ".join(words)) or UsageError(problem, fix)
    given = {known[flag]: value for flag, value in flags.items() if value is not None}
    return {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}


def evaluate_config(own: EvaluateConfig, flags: dict[str, Any]) -> EvaluateConfig:
    """The settings of the run, overridden by the flags of `EVALUATE_FLAGS`. UsageError for a wrong flag or value."""
    given = read_overrides(flags, EVALUATE_FLAGS, "evaluate")
    values, former = {key.partition(".")[2]: value for key, value in given.items()}, own.model_dump()
    if any(values.get(key) for key in POINTS):  # a new operating point replaces the one of the run
        former = {key: value for key, value in former.items() if key not in POINTS}
    return build_config({"evaluate": former | values}, given=given).evaluate


def paths_in(tree: Mapping[str, Any], folder: str | Path = ".") -> Iterator[tuple[str, str, str]]:
    """Section, field and value of the paths in the tree of a configuration in `folder`, without keywords."""
    for section, field in PATHS:
        value = fields.get(field) if isinstance(fields := tree.get(section), dict) else None
        if not isinstance(value, str) or (field == "groups" and value in GROUP_WORDS):
            continue
        # Names of public weights have neither folder nor suffix.
        bare = field == "weights" and len(Path(value).parts) == 1 and not Path(value).suffix
        if not bare or Path(folder, value).is_file():
            yield section, field, value


def find_paths(tree: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The tree of a configuration in `folder`, with its paths as seen from here; the inverse of `store_paths`."""
    for section, field, value in paths_in(tree, folder):
        tree[section][field] = str(find_path(value, folder))
    return tree


def store_paths(config: AnyConfig, folder: Path) -> AnyConfig:
    """The configuration with its paths as `store_path` names them in a folder."""
    paths = paths_in(config.model_dump())
    return with_values(config, {f"{section}.{field}": store_path(value, folder) for section, field, value in paths})


def without_places(config: AnyConfig) -> AnyConfig:
    """The configuration for a file that leaves the machine: no folder, no table, and of weights the name alone."""
    values: dict[str, Any] = {f"{part}.{field}": None for part, field in PATHS if hasattr(getattr(config, part), field)}
    weights = config.model.start
    if config.data.groups in GROUP_WORDS:  # which is no place
        del values["data.groups"]
    values |= {"data.group_regex": None, "model.weights": None if weights is None else Path(weights).name}
    return with_values(config, values)


def with_values(config: AnyConfig, values: Mapping[str, Any]) -> AnyConfig:
    """The configuration updated with "section.field" values, which are not validated."""
    for key, value in values.items():
        section, _, field = key.partition(".")
        config = config.model_copy(update={section: getattr(config, section).model_copy(update={field: value})})
    return config


def build_config(
    tree: dict[str, Any],
    kind: type[AnyConfig] = Config,  # type: ignore[assignment]
    given: Collection[str] = (),  # "section.field" of values that came from flags
) -> AnyConfig:
    """Validate a plain tree of values. Raises UsageError, which names the key, or its flag, and what is accepted."""
    tree = with_card(without_gone(tree, given), kind)
    for section, fields in tree.items():
        if section not in kind.model_fields:
            raise unknown_key("config section", str(section), kind.model_fields)
        if not isinstance(fields, dict):
            raise UsageError(f"config section '{section}' holds {fields!r}, expected fields", f"write {section}.field")
        for key in fields:
            if key not in fields_of(kind, section):
                raise unknown_key("key", str(key), fields_of(kind, section), f" in section '{section}'")
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key, field = (".".join(str(part) for part in first["loc"][:most]) for most in (None, 2))
        fix = f"see {field} in docs/configuration.md" if "." in field else "change or omit one of them"
        if first["type"] == "value_error":  # our own: a field, or fields that contradict each other
            problem = str(first["ctx"]["error"])
        else:
            value, is_share = first["input"], first["loc"][-1] in SHARES
            shown = f"{value:g}" if isinstance(value, float) and is_share else repr(value)
            if is_share and isinstance(value, int | float):
                expected = "expected a share above 0 and below 1"
                expected += f" (for {value:g} %: {value / 100:g})" if 2 <= value < 100 else ""
            elif first["type"] in WORDS:
                expected = f"expected {WORDS[first['type']]}" + ", found a text" * isinstance(value, str)
            else:
                expected = str(first["msg"])
            problem = f"config {key} = {shown}: {expected}"
        named = set(re.findall(r"\b[a-z]+\.[a-z_]+\b", problem))
        # If a field in the message came from a flag, flags stand for its fields, but for those of the tree alone.
        for keyword, place in flags_of(kind).items() if named & set(given) else ():
            section, _, name = place.partition(".")
            if place in named and (place in given or name not in tree.get(section, {})):
                flag = f"--{keyword.replace('_', '-')}"
                for quoted in ("'(.*)'", "(.*?)"):
                    problem = re.sub(rf"^config {place}(?:\.\d+)* = {quoted}: ", rf"{flag} \1: ", problem)
                problem = re.sub(rf"\b{place}\b", flag, problem)
        raise UsageError(problem, fix) from None


def with_card(tree: dict[str, Any], kind: type[RunConfig]) -> dict[str, Any]:
    """The tree with the patients and the policy of the card that it names, where it names none itself."""
    data = tree.get("data")
    if not isinstance(data, dict) or not isinstance(data.get("card"), str):
        return tree
    from vitmed.core.dataset_cards import find_card, of_set  # here, since downloads are slow to import

    card, tree = find_card(data["card"]), copy.deepcopy(tree)
    if card.group_regex is not None and not {"group_regex", "groups"} & set(data):
        tree["data"]["group_regex"] = card.group_regex
    policy, augment = of_set(card.augmentation, data["card"]), tree.setdefault("augment", {})
    if policy is not None and kind is Config and isinstance(augment, dict):
        augment.setdefault("policy", policy)
    return tree


def find_config(name: str | Path) -> Path:
    """The YAML file at that path, or the recipe of that name in the package."""
    path, bundled = Path(name), recipes()
    if (reason := why_unreadable(path)) is None:
        return path
    if str(name) in bundled:
        return bundled[str(name)]
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        problem, fix = reason
        if problem == "no such file":
            problem, fix = "no such config file", f"name a YAML file, or one of: {', '.join(bundled)}"
        raise UsageError(f"{path}: {problem}", fix)
    raise unknown_key("config", str(name), bundled)


def read_config(path: Path) -> dict[str, Any]:
    """The sections of a file, with its relative paths found from its folder."""
    try:
        tree = read_yaml(path)
    except YamlError as error:
        raise UsageError(f"{path}: not a readable YAML file ({error})", error.fix) from None
    tree = {} if tree is None else _number(tree)
    if not isinstance(tree, dict):
        sections = "write data:, model:, augment:, train:"
        raise UsageError(f"{path}: holds {type(tree).__name__}, expected sections", sections)
    return find_paths(tree, path.parent)


def _number(value: Any) -> Any:
    """Convert text such as `1e-4`, which YAML does not read as a number."""
    if isinstance(value, dict):
        return {key: _number(item) for key, item in value.items()}
    if isinstance(value, str):
        try:
            return float(value) if "e" in value.lower() and value.strip()[0] in "+-.0123456789" else value
        except ValueError:
            return value
    return value
