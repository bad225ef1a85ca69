"""A model's shape given inline in the config: the fields of `ModelShape`, all faults at once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field, GetPydanticSchema, Strict, model_validator
from pydantic_core import core_schema

from coral.hookspecs.options import Options
from coral.types.model import ModelShape, MoeShape

Dtype = Literal["float32", "bfloat16", "float16", "float8", "int8", "mxfp4", "nvfp4", "int4"]
Count = Annotated[int, Strict(), Field(gt=0)]


class MoeSection(Options):
    """Experts of a mixture-of-experts model."""

    experts: Count
    experts_per_token: Count
    intermediate: Count
    shared_intermediate: Annotated[int, Strict(), Field(ge=0)] = 0


class ShapeSection(Options):
    """What a step's cost and memory depend on."""

    architecture: str
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    intermediate: Count
    vocab: Count
    max_positions: Count
    tied_embeddings: bool = False
    gated_mlp: bool = True
    moe: MoeSection | None = None
    windows: tuple[Annotated[int, Strict(), Field(ge=0)], ...] = ()
    weight_dtype: Dtype = "bfloat16"
    kv_dtype: Dtype = "bfloat16"
    activation_dtype: Dtype = "bfloat16"

    @model_validator(mode="after")
    def _fits_together(self) -> ShapeSection:
        if self.windows and len(self.windows) != self.layers:
            raise ValueError(f"windows has {len(self.windows)} entries for {self.layers} layers")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is no multiple of kv_heads ({self.kv_heads})")
        return self


def _shape(section: ShapeSection) -> ModelShape:
    fields = section.model_dump(exclude={"moe"})
    moe = MoeShape(**section.moe.model_dump()) if section.moe else None
    return ModelShape(**fields, moe=moe)


def _schema(_: Any, handler: Any) -> core_schema.CoreSchema:
    return core_schema.no_info_after_validator_function(
        _shape,
        handler(ShapeSection),
        serialization=core_schema.plain_serializer_function_ser_schema(msgspec.to_builtins),
    )


Shape = Annotated[ModelShape, GetPydanticSchema(_schema)]
"""A `ModelShape`, validated through `ShapeSection`."""
