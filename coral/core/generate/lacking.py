"""Why a model has no template: what is told where nothing can serve it."""

from __future__ import annotations

from coral.core.generate.library import TemplateLibrary
from coral.core.generate.manifest import Entry
from coral.errors import InfeasibleError
from coral.types.hardware import NodeType
from coral.types.model import ModelSpec


def check_servable(library: TemplateLibrary, model: ModelSpec) -> None:
    """Raises InfeasibleError where the library has no templates with which the model could be served:
    mixed ones, or both for prefill and for decode."""
    have = {phase for phase in model.phases if library.entry(model.name, phase).rows}
    if "mixed" in have or have >= {"prefill", "decode"}:
        return
    reasons = [_why(library.entry(model.name, phase), model) for phase in model.phases if phase not in have]
    raise InfeasibleError(
        "\n  ".join([f"no combination of nodes on offer can serve {model.name!r}", *reasons]),
        mend="relax the model's slo, raise generate.max_nodes or generate.memory_ratio, or have clouds that "
        "offer larger machines",
    )


def _why(entry: Entry, model: ModelSpec) -> str:
    largest: dict[str, tuple[int, str]] = {}
    for name, reason in entry.refused.items():
        kind = NodeType.parse(name)
        largest[kind.gpu] = max(largest.get(kind.gpu, (0, "")), (kind.count, reason))
    refused = "; ".join(reason for _, reason in largest.values())
    useful = ", ".join(entry.inputs["node_types"])
    if not useful:
        return f"{entry.phase}: no node holds a single layer ({refused or 'none is on offer'})"
    options = entry.inputs["options"]
    nodes = f"{options['max_nodes']} node" + "s" * (options["max_nodes"] > 1)
    told = f" ({refused})" if refused else ""
    return (
        f"{entry.phase}: {model.shape.layers} layers do not fit the SLO, {nodes} and "
        f"{options['memory_ratio']:g} times the model's memory, out of {useful}{told}"
    )
