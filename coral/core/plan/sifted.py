"""What is known of a large program after a solve: a solution, a bound, and whose bound it is."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from coral.core.plan.check import Checked, claimed

Whose = Literal["ours", "both", "solver"]
"""Whose the bound is: proved here alone, proved here with the solver's bound of a small program, or the
solver's own of the whole."""


class Sifted(Struct, frozen=True, kw_only=True, eq=False):
    """`columns` of the largest program that a solver was given."""

    answer: Checked
    columns: int
    whose: Whose


def better(first: Sifted, second: Sifted) -> Sifted:
    """Of two answers to one program the cheaper one, with the higher bound: either's bound holds for both."""
    cheaper = second if second.answer.cost <= first.answer.cost else first
    tighter = second if second.answer.bound > first.answer.bound else first
    bound = claimed(tighter.answer.bound, cheaper.answer.cost)
    return replace(tighter, answer=replace(cheaper.answer, bound=bound))
