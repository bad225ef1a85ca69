"""Options of the `ray` executor."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from coral.hookspecs.options import Options


class RayOptions(Options):
    """Which Ray cluster builds templates."""

    address: Annotated[str, Field(min_length=1)] | None = None
    """A cluster that runs already, `HOST:PORT` or `ray://HOST:PORT`; its machines need Coral as it is
    here. Where not given, one is started on this machine, bound to loopback, and ended with the work."""
    num_cpus: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Cores of the cluster that is started here; as many as this process may use where not given."""
    runtime_env: dict[str, Any] = Field(default_factory=dict)
    """Ray's runtime environment of the workers, for example `{env_vars: {OMP_NUM_THREADS: "1"}}`."""

    @model_validator(mode="after")
    def _one_cluster(self) -> Self:
        if self.address is not None and self.num_cpus is not None:
            raise ValueError("num_cpus is for a cluster that is started here; the one at address has its own")
        return self
