"""The measured kernels of one GPU: AIConfigurator's database behind four questions.

`aiconfigurator-core` keeps times of single kernels by GPU, framework and version: matrix products over (m,
n, k), attention over (batch, length, heads), experts over (tokens, sizes, experts), collectives over
(bytes, GPUs). It interpolates between what was collected and refuses what it has nothing near of; only
measured kernels are asked for (its mode SILICON). Element-wise work (norms, activations, the embedding) is
memory traffic over bandwidth there too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from coral.errors import ProfileError

LOG = "aiconfigurator_core"


class Kernels:
    """Seconds of kernels on one GPU. Raises ProfileError for what was never measured."""

    def __init__(self, system: str, backend: str, version: str) -> None:
        from aiconfigurator_core.sdk import engine, perf_database

        log = logging.getLogger(LOG)
        if log.level == logging.NOTSET:
            log.setLevel(logging.ERROR)  # it warns of tables that are not asked for here
        try:
            database = perf_database.get_database_view(system, backend, version)
        except Exception as error:
            raise ProfileError(
                f"no tables of {backend} {version} on {system}: {error}", mend=_known(system, backend)
            ) from error
        if database is None:
            raise ProfileError(f"no tables of {backend} {version} on {system}", mend=_known(system, backend))
        self.version = str(database.version)
        self._database = database
        self._engine = engine
        self._handle = engine._probe_handle_for(self._database, "SILICON")

    def prepared(self, operators: Sequence[Any]) -> str:
        """Operators (of `aiconfigurator_core.sdk.operations`) in the form that is asked for many times."""
        self._engine._resolve_attention_lane_orders(operators, self._database, None)
        return str(self._engine.build_ops_json(operators))

    def seconds(self, operators: str, tokens: int) -> dict[str, float]:
        """By operator, for operators that depend on the number of tokens alone."""
        return self._ask(operators, is_context=True, batch_size=1, s=tokens, x=tokens)

    def prompts_s(self, attention: str, prompts: int, length: int, before: int) -> float:
        """Attention of prompts of `length` tokens each, after `before` tokens that are in the KV."""
        asked = self._ask(attention, is_context=True, batch_size=prompts, s=length, prefix=before)
        return sum(asked.values())

    def rows_s(self, attention: str, rows: int, length: int) -> float:
        """Attention of one new token each of `rows` requests, of `length` tokens together with it."""
        return sum(self._ask(attention, is_context=False, batch_size=rows, s=length).values())

    def _ask(self, operators: str, **how: Any) -> dict[str, float]:
        try:
            answers = self._handle.evaluate_ops_json(operators, **how)
        except Exception as error:
            raise ProfileError(
                f"not measured on {self._database.system} with {self._database.backend} {self.version}: "
                f"{str(error).splitlines()[0]}",
                mend="take another backend or version of the tables, or let another profiler answer",
            ) from error
        return {name: milliseconds / 1e3 for name, milliseconds, *_ in answers}


@cache
def kernels(system: str, backend: str, version: str) -> Kernels:
    """Opened once in a process: reading the tables takes a second or two."""
    return Kernels(system, backend, version)


def first_that_is_measured(names: Sequence[str], ask: Callable[[str], Any]) -> Any:
    """`ask(name)` of the first name that does not raise ProfileError; the last one's error otherwise."""
    for name in names[:-1]:
        try:
            return ask(name)
        except ProfileError:
            continue
    return ask(names[-1])


def _known(system: str, backend: str) -> str:
    from aiconfigurator_core.sdk import perf_database

    slots = perf_database.get_version_slots(system, backend) or {}
    listed = ", ".join(f"{name} ({version})" for name, version in slots.items() if version)
    return f"known versions of {backend} on {system}: {listed or 'none'}"
