"""For plugin authors: a contract suite per kind, to be subclassed in a plugin's own tests.

::

    from coral.testing.router import RouterContract

    class TestMyRouter(RouterContract):
        @pytest.fixture
        def router(self) -> Router:
            return build(MyOptions())

A suite says which fixtures it needs. Its tests are not to be overridden, except with a stated reason
(`coral.testing.contract.overrides_contract`).
"""

from __future__ import annotations

import sys

_SUITES = (
    "cloud",
    "engine",
    "executor",
    "generation",
    "planner",
    "profiler",
    "router",
    "solver",
    "workload",
)

if "pytest" in sys.modules:  # asserts of suites explain themselves as those of tests do
    sys.modules["pytest"].register_assert_rewrite(*(f"{__name__}.{suite}" for suite in _SUITES))
