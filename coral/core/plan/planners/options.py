"""Options of the `coral` planner."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class CoralOptions(BaseModel):
    """`plan: {planner: {use: coral, ...}}`; the switches of the formulation itself lie in `plan:`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: Literal["coral", "paper"] = Field(
        default="coral",
        description="`paper` writes the paper's program word for word, without reductions, to check against; "
        "it needs `slices: false` and `couple_phases: false`",
    )
    reductions: bool = Field(default=True, description="drop what provably cannot improve a plan")
    sift_above: int = Field(
        default=500,
        ge=0,
        description="above so many columns the program is solved over what can matter, with a certificate "
        "for the rest",
    )
    headroom: bool = Field(
        default=False,
        description="among plans of equal cost prefer the one with more throughput to spare (one more solve)",
    )
