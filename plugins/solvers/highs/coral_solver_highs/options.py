"""Options of the `highs` solver."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class HighsOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    threads: int = Field(default=1, ge=1, le=256, description="threads of one solve; 1 is reproducible")
    random_seed: int = Field(default=0, ge=0, lt=2**31)
    presolve: Literal["choose", "on", "off"] = "choose"
    log: bool = Field(default=False, description="print HiGHS' own log to standard output")
