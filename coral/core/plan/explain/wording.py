"""Explanations in words."""

from __future__ import annotations

from collections.abc import Mapping

from coral.core.plan.explain.figure import Figure
from coral.types.hardware import NodeType
from coral.types.placement import Template


def nodes_in_words(nodes: Mapping[NodeType, int]) -> str:
    """`2× L40S x1 + A10G x2`."""
    return " + ".join(f"{n}× {kind}" if n > 1 else str(kind) for kind, n in sorted(nodes.items()))


def nodes_of(template: Template) -> str:
    return nodes_in_words(template.nodes)


def in_words(figure: Figure) -> str:
    """What a re-solved figure says, and no more than it can say."""
    if figure.usd_h is None:
        return _served(figure)
    if figure.least_usd_h is None or figure.most_usd_h is None:
        return f"{_change(figure.usd_h)}, between two plans that are not proven"
    if not figure.told_apart:
        far = max(abs(figure.least_usd_h), abs(figure.most_usd_h))
        if far < 5e-5:
            return "no change"
        return f"not told apart from no change: up to {far:,.4f} USD/h would be hidden by the gaps"
    lowest, highest = sorted((abs(figure.least_usd_h), abs(figure.most_usd_h)))
    sure = "" if highest - lowest < 5e-5 else f" (proven: {lowest:,.4f} to {highest:,.4f})"
    return _change(figure.usd_h) + sure


def _change(usd_h: float) -> str:
    if abs(usd_h) < 5e-5:
        return "no change"
    return f"{abs(usd_h):,.4f} USD/h {'more' if usd_h > 0 else 'less'}"


def _served(figure: Figure) -> str:
    if not (figure.served or figure.unkept):
        return "serves no more and no less"
    served = ", ".join(f"{one.model} {one.phase} {one.before:.1%} → {one.after:.1%}" for one in figure.served)
    return "; ".join([*([f"served: {served}"] if served else []), *figure.unkept])
