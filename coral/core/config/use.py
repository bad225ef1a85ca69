"""Tagged sections: `use:` picks a component of a plugin, which validates the section's other keys."""

from __future__ import annotations

from collections.abc import Mapping
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
        options: BaseModel = Options()
        name = own.get("use", cls.model_fields["use"].default)
        if isinstance(name, str):
            options, details = _plugin_options(cls.kind, name, rest, cls.own_keys(), info)
        try:
            section = handler({**own, "options": options})
        except ValidationError as error:
            details = named_unknown_keys(error, cls.own_keys()) + details
        if details:
            raise ValidationError.from_exception_data(cls.__name__, details)
        return section

    @model_serializer(mode="wrap")
    def _flat(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {**handler(self), **self.options.model_dump(mode="json")}


def _plugin_options(
    kind: str, name: str, rest: dict[str, Any], own: set[str], info: ValidationInfo
) -> tuple[BaseModel, list[InitErrorDetails]]:
    registry: Registry = (info.context or {})[REGISTRY]
    try:
        model = registry.options_model(kind, name)
    except PluginError as error:
        text = error.message + (f" ({error.mend})" if error.mend else "")
        kind_of_error = PydanticCustomError("coral", "{text}", {"text": text})
        return Options(), [InitErrorDetails(type=kind_of_error, loc=("use",), input=None)]
    try:
        return model.model_validate(rest, context=info.context), []
    except ValidationError as error:
        # Once more here, for options that do not derive from Options, and to know core's own keys too.
        return Options(), named_unknown_keys(error, [*own, *model.model_fields])
