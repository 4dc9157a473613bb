"""Read YAML that somebody else wrote: duplicate keys, deep nesting and aliases that multiply are errors."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import yaml

from vitmed.core.files import why_unreadable

MOST_BYTES = 1_000_000
MOST_DEPTH = 20
MOST_NODES = 100_000  # with every alias written out


class YamlError(ValueError):
    """Text that is not YAML as vitmed reads it; `fix` says how to mend it."""

    def __init__(self, problem: str, fix: str = "correct the file"):
        super().__init__(problem)
        self.fix = fix


def read_yaml(path: Path) -> Any:
    """The plain values in a file. Raises YamlError if it cannot be read, is no UTF-8 text or no YAML."""
    if reason := why_unreadable(path):
        raise YamlError(*reason)
    if path.stat().st_size > MOST_BYTES:
        raise YamlError(f"{path.stat().st_size:,} bytes, expected at most {MOST_BYTES:,}", "name a configuration file")
    try:
        return parse_yaml(path.read_bytes().decode())
    except UnicodeDecodeError as error:
        raise YamlError(f"not UTF-8 text (byte {error.start})", "save it as UTF-8") from None
    except OSError as error:
        raise YamlError(str(error.strerror), "check the disk") from None


def packaged(folder: str) -> dict[str, Path]:
    """Name -> YAML file, sorted, of a folder inside the wheel, else beside the package."""
    here = Path(__file__).parents[1]
    place = here / folder if (here / folder).is_dir() else here.parent / folder
    return {file.stem: file for file in sorted(place.glob("*.yaml"))}


def parse_yaml(text: str) -> Any:
    """The plain values in a text. Raises YamlError, which names the line."""
    if yaml.__with_libyaml__:  # seven times as fast, but it names the line where a text ends, not where it went wrong
        with contextlib.suppress(yaml.YAMLError, ValueError, LookupError):
            return _parse(text, yaml.CSafeLoader)
    try:
        return _parse(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise YamlError(f"{place}{error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, LookupError) as error:  # dates and numbers that do not exist
        raise YamlError(str(error).partition("\n")[0] or type(error).__name__) from None


def _parse(text: str, kind: Any) -> Any:
    """The values, by a kind of loader. Raises yaml.YAMLError, ValueError or LookupError."""
    depth, events = 0, yaml.parse(text, kind)  # type: Any, Any
    for event in events:  # before the loader calls itself once for each level
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth >= MOST_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MOST_DEPTH} levels", problem_mark=event.start_mark)
    loader = kind(text)
    node = loader.get_single_node()
    if node is None:
        return None
    _count(node, {})
    return loader.construct_document(node)


def _count(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """The number of nodes with every alias written out. Raises MarkedYAMLError for a key that is there twice."""
    if node not in known:
        known[node] = MOST_NODES + 1  # what a node counts that lies inside itself
        total, keys = 1, dict[tuple[str, str], int]()
        for part in node.value if isinstance(node, yaml.CollectionNode) else ():
            key, value = part if isinstance(node, yaml.MappingNode) else (None, part)
            if isinstance(key, yaml.ScalarNode):
                if first := keys.get((key.tag, key.value)):
                    twice = f"the key '{key.value}' is there twice, first in line {first}"
                    raise yaml.MarkedYAMLError(problem=twice, problem_mark=key.start_mark)
                keys[key.tag, key.value] = key.start_mark.line + 1
            total += _count(value, known) + (0 if key is None else _count(key, known))
        known[node] = total
    if known[node] > MOST_NODES:
        raise yaml.MarkedYAMLError(
            problem=f"more than {MOST_NODES:,} values, with aliases written out", problem_mark=node.start_mark
        )
    return known[node]
