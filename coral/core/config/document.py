"""Read a config file, YAML or TOML, into plain data, with the line of every key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from coral.core.config.faults import Keys, dotted
from coral.errors import ConfigError, Fault

MOST_VALUES = 100_000
"""Values of a document, aliases counted each time: far more than any config has, less than a trap needs."""
TOO_DEEP = "is nested too deeply"


@dataclass
class Document:
    """A file's content. `lines` maps the path of a key to its line, 0 where the format does not tell it."""

    tree: Any
    source: str
    folder: Path
    lines: dict[Keys, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


def read_document(path: Path) -> Document:
    """Read a file by its suffix. Raises ConfigError where it cannot be read or parsed at all; keys given
    twice are faults of the document."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        mend = "name another with --config" if isinstance(error, FileNotFoundError) else None
        raise ConfigError([Fault("", f"cannot read {path}: {error.strerror}", mend)], str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Fault("", f"is not UTF-8 text: {error}")], str(path)) from error
    if path.suffix == ".toml":
        return _toml(text, path)
    if path.suffix in (".yaml", ".yml", ""):
        return parse_yaml(text, str(path), path.parent)
    raise ConfigError([Fault("", f"unknown format {path.suffix}", "use .yaml or .toml")], str(path))


def _toml(text: str, path: Path) -> Document:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([Fault("", f"is not TOML: {error}")], str(path)) from error
    except RecursionError as error:
        raise ConfigError([Fault("", TOO_DEEP)], str(path)) from error
    return Document(tree, str(path), path.parent, dict.fromkeys(paths_in(tree), 0))


def paths_in(tree: Any, path: Keys = ()) -> Iterator[Keys]:
    """The path of everything in plain data, its own first."""
    if path:
        yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from paths_in(value, (*path, key))


def parse_yaml(text: str, source: str = "", folder: Path = Path()) -> Document:
    """Parse YAML by the rules of YAML 1.2's core schema: `1e-4` is a number, `no` and `12:30` are text."""
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        document = Document(None, source, folder)
        if node is not None:
            document.tree = _Reader(loader, document).value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or error.context or "malformed"
        raise ConfigError([Fault(where, f"is not YAML: {problem}")], source or None) from error
    except yaml.YAMLError as error:
        raise ConfigError([Fault("", f"is not YAML: {error}")], source or None) from error
    except RecursionError as error:
        raise ConfigError([Fault("", TOO_DEEP)], source or None) from error
    finally:
        if loader is not None:
            loader.dispose()
    return document


class _Loader(yaml.SafeLoader):
    """The safe loader with YAML 1.2's scalars."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


_SCALARS: tuple[tuple[str, str, str], ...] = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),
)
for _tag, _pattern, _first in _SCALARS:
    _first_characters = ["" if c == "\0" else c for c in _first]
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first_characters
    )


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, 0) if text.startswith(("0o", "0x")) else int(text)


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


class _Reader:
    """Turns nodes into plain data, noting lines and keys given twice."""

    def __init__(self, loader: _Loader, document: Document) -> None:
        self._loader = loader
        self._document = document
        self._open: list[yaml.Node] = []
        self._values = 0

    def value(self, node: yaml.Node, path: Keys) -> Any:
        self._values += 1
        if self._values > MOST_VALUES:
            problem = f"more than {MOST_VALUES:,} values, aliases counted each time"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        if any(node is one for one in self._open):
            raise yaml.constructor.ConstructorError(
                None, None, "an alias inside what it names", node.start_mark
            )
        self._open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self._noted(item, (*path, i)) for i, item in enumerate(node.value)]
            return self._scalar(node)
        finally:
            self._open.pop()

    def _scalar(self, node: yaml.Node) -> Any:
        """A scalar that is not what its tag says (`!!int abc`, 5,000 digits) is malformed YAML."""
        try:
            return self._loader.construct_object(node)
        except (ValueError, KeyError, AttributeError) as error:
            problem = f"{str(node.value)[:40]!r} is no {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def _noted(self, node: yaml.Node, path: Keys) -> Any:
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        return self.value(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Keys) -> dict[str, Any]:
        first: dict[str, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key, line = str(self._scalar(key_node)), key_node.start_mark.line + 1
            if key in first:
                message = f"given twice, in line {first[key]} and in line {line}"
                self._document.faults.append(Fault(dotted((*path, key)), message, "keep one of them"))
            first.setdefault(key, line)
        self._loader.flatten_mapping(node)
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(self._scalar(key_node))
            self._document.lines[(*path, key)] = key_node.start_mark.line + 1
            result[key] = self.value(value_node, (*path, key))
        return result
