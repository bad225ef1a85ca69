"""One switch shows every hook call: `coral --trace-hooks`, or CORAL_TRACE_HOOKS=1 for all processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pluggy

SWITCH = "CORAL_TRACE_HOOKS"
_LONGEST = 120


def traced(env: Mapping[str, str] = os.environ) -> bool:
    """Whether the switch is on."""
    return env.get(SWITCH, "") not in ("", "0")


def trace_hooks(
    manager: pluggy.PluginManager, write: Callable[[str], object] | None = None
) -> Callable[[], None]:
    """Write a line before and after every hook call; returns what ends it. Default: standard error."""
    out = write or (lambda line: print(line, file=sys.stderr, flush=True))

    def before(hook: str, implementations: Sequence[pluggy.HookImpl], arguments: Mapping[str, Any]) -> None:
        given = ", ".join(f"{name}={_short(value)}" for name, value in arguments.items())
        told = ", ".join(one.plugin_name for one in implementations) or "nobody"
        out(f"hook {hook}({given}) -> {told}")

    def after(
        outcome: pluggy.Result[Any],
        hook: str,
        implementations: Sequence[pluggy.HookImpl],
        arguments: Mapping[str, Any],
    ) -> None:
        error = outcome.exception
        said = f"raised {_short(error)}" if error else f"returned {_short(outcome.get_result())}"
        out(f"hook {hook} {said}")

    return manager.add_hookcall_monitoring(before, after)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
