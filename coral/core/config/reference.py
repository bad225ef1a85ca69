"""The reference page of the config, made from the schema: `docs/config.md` is what this writes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from coral.core.config.jsonschema import use_sections
from coral.core.config.schema import Config
from coral.core.config.shape import ShapeSection
from coral.core.config.use import Use
from coral.core.plugins import Registry
from coral.types.model import ModelShape

HEAD = """\
# The config

Made by `coral config reference > docs/config.md`; a test holds it to the schema.

A config is YAML, or TOML by the same keys. Unknown keys are refused with what was probably meant, and all
faults are listed at once, each with its path. `coral config check` lists them, `coral config show` shows
every value and its origin, `coral config schema` prints the JSON schema with all plugins' options.

- **Units**: a duration is `1800ms`, `30s`, `6m`, `1h30m`, or a number of seconds; a size is `24GiB`, `300MB`,
  or a number of bytes; a rate is `12.5GB/s`, `100Gbit/s`, or a number of bytes per second.
- **Paths** count from the folder of the config file; `~` is home.
- **Secrets** are references, `{env: NAME}` or `{file: path}`, never the secret itself.
- **Sections with `use`** are filled by a plugin: the keys below are core's own, beside those of the plugin
  that `use` names. `router: least-load` is short for `router: {use: least-load}`.
- **YAML** is read by the rules of YAML 1.2: `1e-4` is a number, `no` and `12:30` are text. A key given twice
  is a fault.

## Overrides

`--set PATH=VALUE` (repeatable) takes dotted paths, list items by index, quotes for keys with dots or spaces;
values are YAML: `--set models.0.slo.prefill=2s`, `--set 'engine.args."rope.scale"=2'`,
`--set 'clouds=[{use: local}]'`. An index one past the end appends.

Environment variables that begin with `CORAL__` do the same, two underscores between keys, which are
lower-cased: `CORAL__PLAN__EVERY=3m`, `CORAL__MODELS__0__SLO__PREFILL=2s`. The environment lies over the file,
`--set` over both.

## Keys

"""


def reference(registry: Registry) -> str:
    """The whole page, with the options of the plugins in the registry."""
    parts = [HEAD, _table(Config)]
    for path, section in _sections("", Config):
        parts.append(f"\n### `{path}`\n\n{_summary(section)}\n\n{_table(section)}")
    parts.append("\n## Options of plugins\n")
    own: dict[str, set[str]] = {}
    for section in use_sections():
        own[section.kind] = own.get(section.kind, set()) | section.own_keys()
    for kind in sorted(own):
        for name, offerings in registry.of_kind(kind).items():
            model, core = registry.options_model(kind, name), own[kind]
            parts.append(f"\n### {kind} `{name}`\n\n{_sentence(offerings[0].component.summary)}\n")
            if set(model.model_fields) - core:
                parts.append("\n" + _table(model, core))
                parts += [
                    f"\n`{path}`: {_summary(inner)}\n\n{_table(inner)}"
                    for path, inner in _sections("", model)
                ]
            else:
                parts.append("\nIt has no options.\n")
    return "".join(parts)


def _sections(path: str, section: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section below, with its path."""
    for key, field in section.model_fields.items():
        inner = _model(field.annotation)
        if inner is None or (key == "options" and issubclass(section, Use)):
            continue
        below = f"{path}.{key}" if path else key
        below += "[]" if _is_list(field.annotation) else ""
        yield below, inner
        yield from _sections(below, inner)


def _table(section: type[BaseModel], without: Collection[str] = ()) -> str:
    rows = ["| key | type | default | meaning |\n|---|---|---|---|\n"]
    for key, field in section.model_fields.items():
        if key in without or (key == "options" and issubclass(section, Use)):
            continue
        meaning = " ".join((field.description or "").split())
        if not meaning and key == "use":
            meaning = "Name of the component; `coral plugins` lists what is installed."
        if not meaning and (inner := _model(field.annotation)):
            meaning = _summary(inner)
        rows.append(f"| `{key}` | {_type(field)} | {_default(field)} | {meaning} |\n")
    return "".join(rows)


def _summary(section: type[BaseModel]) -> str:
    return " ".join((section.__doc__ or "").split("\n\n")[0].split())


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _plain(annotation: Any) -> list[Any]:
    """The alternatives of an annotation, None left out."""
    if get_origin(annotation) is not None and type(None) in get_args(annotation):
        return [one for one in get_args(annotation) if one is not type(None)]
    return [annotation]


def _model(annotation: Any) -> type[BaseModel] | None:
    (one, *_) = _plain(annotation)
    while get_origin(one) is not None and get_args(one):
        if get_origin(one) is dict:
            return None
        one = get_args(one)[0]
    if one is ModelShape:
        return ShapeSection
    return one if isinstance(one, type) and issubclass(one, BaseModel) and one.__name__ != "Secret" else None


def _is_list(annotation: Any) -> bool:
    return any(get_origin(one) is tuple for one in _plain(annotation))


_NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", dict: "mapping"}
_FORMATS = {"duration": "duration", "bytes": "size", "rate": "rate", "path": "path"}


def _type(field: FieldInfo) -> str:
    optional = type(None) in get_args(field.annotation)
    (one, *_) = _plain(field.annotation)
    metadata = [*field.metadata]
    while hasattr(one, "__metadata__"):
        metadata += one.__metadata__
        one = get_args(one)[0]
    for mark in metadata:
        if (schema := getattr(mark, "json_schema", None)) and schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]] + (" or null" if optional else "")
    return _named(one) + (" or null" if optional else "")


def _named(one: Any) -> str:
    origin = get_origin(one)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(one))
    if origin is tuple:
        return f"list of {_named(get_args(one)[0])}" if _model(one) is None else "list of sections"
    if hasattr(one, "__metadata__"):
        for mark in one.__metadata__:
            if (schema := getattr(mark, "json_schema", None)) and schema.get("format") in _FORMATS:
                return _FORMATS[schema["format"]]
        return _named(get_args(one)[0])
    if getattr(one, "__name__", "") == "Secret":
        return "secret"
    if _model(one) is not None:
        return "section"
    return _NAMES.get(origin or one, getattr(one, "__name__", str(one)).lower())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is PydanticUndefined:
        return "`local`" if _is_list(field.annotation) else ""
    if isinstance(field.default, BaseModel):
        return ""
    if field.default is None:
        return "null"
    shown = list(field.default) if isinstance(field.default, tuple) else field.default
    return f"`{shown if isinstance(shown, str) else json.dumps(shown, default=str).strip(chr(34))}`"
