"""The JSON schema of the config, with the options of the installed plugins: in a `use:` section each plugin
is one branch of a `oneOf`."""

from __future__ import annotations

import copy
from typing import Any

from coral.core.config import schema as sections
from coral.core.config.schema import Config
from coral.core.config.use import Use
from coral.core.plugins import Registry
from coral.errors import PluginError

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def config_schema(registry: Registry) -> dict[str, Any]:
    """The schema as plain data. Plugins that cannot be loaded are left out."""
    whole = Config.model_json_schema(mode="validation")
    definitions: dict[str, Any] = whole.setdefault("$defs", {})
    for section in use_sections():
        name = section.__name__
        own = definitions.pop(name)
        own["properties"].pop("options", None)
        branches = []
        for use, offerings in registry.of_kind(section.kind).items():
            if len(offerings) == 1:
                branch = _branch(section, own, use, registry, definitions)
                if branch is not None:
                    branches.append(branch)
        definitions[name] = _tagged(own, branches)
    return {"$schema": DIALECT, **whole}


def use_sections() -> list[type[Use]]:
    """The sections of the config that a plugin fills."""
    return [
        value
        for value in vars(sections).values()
        if isinstance(value, type) and issubclass(value, Use) and value is not Use
    ]


def _branch(
    section: type[Use], own: dict[str, Any], use: str, registry: Registry, definitions: dict[str, Any]
) -> dict[str, Any] | None:
    try:
        model = registry.options_model(section.kind, use)
    except PluginError:
        return None  # shown by `coral plugins`, with its error
    prefix = f"{section.kind}-{use}-"
    options = model.model_json_schema(mode="validation", ref_template=f"#/$defs/{prefix}{{model}}")
    for name, definition in options.pop("$defs", {}).items():
        definitions[prefix + name] = definition
    branch = copy.deepcopy(own)
    branch["title"] = f"{section.kind} {use}"
    branch["description"] = registry.component(section.kind, use).summary
    branch["properties"] = {
        **options.get("properties", {}),
        **branch["properties"],
        "use": {"const": use, "type": "string"},
    }
    required = [key for key in branch.get("required", []) if key not in ("use", "options")]
    has_default = section.model_fields["use"].default == use
    branch["required"] = ([] if has_default else ["use"]) + required + options.get("required", [])
    return branch


def _tagged(own: dict[str, Any], branches: list[dict[str, Any]]) -> dict[str, Any]:
    names = [branch["properties"]["use"]["const"] for branch in branches]
    alone = {
        "type": "string",
        "enum": [n for n, b in zip(names, branches, strict=True) if set(b["required"]) <= {"use"}],
        "description": "The name alone, where the plugin needs no options.",
    }
    summary = own.get("description", "")
    return {"description": summary, "oneOf": [*branches, alone] if alone["enum"] else branches}
