"""The config of the demand that is planned for while serving: the section `plan.demand`."""

from __future__ import annotations

import importlib.util
from typing import Annotated, Literal

from pydantic import Field, field_validator

from coral.core.config.strict import Float
from coral.hookspecs.options import Duration, Options


class DemandUse(Options):
    """Whose demand is planned for while serving. It is measured in any case, and shown beside the plan."""

    use: Literal["config", "measured", "forecast"] = "config"
    """`config`: each model's own section `demand`. `measured`: rates and request sizes as they are seen at
    the front door, what was refused included. `forecast`: the rate that is to come by exponential smoothing
    with a daily season, which needs `pip install 'coral-llm[forecast]'`; measured until there is history."""
    half_life: Annotated[Duration, Field(gt=0)] = 600.0
    """What was measured so long ago counts half; the config stands in for what has not been seen yet."""
    floor_share: Annotated[Float, Field(ge=0)] = 0.25
    """Share of the config's requests per second that is planned for at least."""

    @field_validator("use")
    @classmethod
    def _can_forecast(cls, use: str) -> str:
        if use == "forecast" and importlib.util.find_spec("statsmodels") is None:
            mend = "pip install 'coral-llm[forecast]'"
            raise ValueError(f"forecast needs statsmodels, which is not installed ({mend})")
        return use
