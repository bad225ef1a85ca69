"""Tagged sections: `use:` picks a component of a plugin, which validates the section's other keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import (
    BaseModel,
    Field,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from coral.core.plugins import Registry
from coral.errors import PluginError
from coral.hookspecs.options import Options, named_unknown_keys

REGISTRY = "registry"
"""Key of the plugin registry in the validation context."""


class Use(Options):
    """A section that a plugin's component fills. `options` is the component's own validated model."""

    kind: ClassVar[str]

    use: str
    """Name of the component; `coral plugins` lists what is installed."""
    options: SerializeAsAny[BaseModel] = Field(exclude=True)

    @classmethod
    def own_keys(cls) -> set[str]:
        """Keys that core itself reads in this section, beside the plugin's."""
        return set(cls.model_fields) - {"options"}

    @model_validator(mode="wrap")
    @classmethod
    def _name_unknown_keys(
        cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            value = {"use": value}
        if not isinstance(value, Mapping):
            raise ValueError("expected a section, for example {use: name}, or the name alone")
        own = {key: value[key] for key in value if key in cls.own_keys()}
        rest = {key: value[key] for key in value if key not in own}
        details: list[InitErrorDetails] = []
        section: Self | None = None
        try:
            section = handler({**own, "options": Options()})
        except ValidationError as error:
            details = named_unknown_keys(error, cls.own_keys())
        name = own.get("use", cls.model_fields["use"].default)
        if isinstance(name, str):
            given = section.given() if section is not None else {}
            options, faults = _plugin_options(cls, name, {**given, **rest}, info)
            details += faults
            if section is not None:
                section = section.model_copy(update={"options": options})
        if details or section is None:
            raise ValidationError.from_exception_data(cls.__name__, details)
        return section

    def given(self) -> dict[str, Any]:
        """Core's own keys that have a value; a plugin that has an option of the same name is told it."""
        values = {key: getattr(self, key) for key in self.own_keys() - {"use"}}
        return {k: str(v) if isinstance(v, Path) else v for k, v in values.items() if v is not None}

    @model_serializer(mode="wrap")
    def _flat(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        own = handler(self)
        return {"use": self.use, **self.options.model_dump(mode="json"), **own}


def _plugin_options(
    section: type[Use], name: str, values: dict[str, Any], info: ValidationInfo
) -> tuple[BaseModel, list[InitErrorDetails]]:
    registry: Registry = (info.context or {})[REGISTRY]
    try:
        model = registry.options_model(section.kind, name)
    except PluginError as error:
        text = error.message + (f" ({error.mend})" if error.mend else "")
        kind = PydanticCustomError("coral", "{text}", {"text": text})
        return Options(), [InitErrorDetails(type=kind, loc=("use",), input=None)]
    own = section.own_keys()
    told = {key: value for key, value in values.items() if key not in own or key in model.model_fields}
    try:
        return model.model_validate(told, context=info.context), []
    except ValidationError as error:
        # Once more here, for options that do not derive from Options, and to know core's own keys too.
        return Options(), named_unknown_keys(error, own | set(model.model_fields))
