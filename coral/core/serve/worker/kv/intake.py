"""KV of one sequence as it comes in, from several senders, until all layers of the stage have a range.

Senders hold other cuts of the layers than this stage and are not equally far; one may also begin anew. Every
layer's sections follow one another; what a layer has already is dropped, what would leave a gap is refused.
Of a windowed layer a sender leaves out what nothing after the end of a message can attend to, so that it is
whole only up to where a message ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coral.core.serve.net.messages.handover import Kv, KvPart
from coral.errors import EngineError
from coral.types.stage import Buffer, KvPiece, KvSection


class _Layer:
    __slots__ = ("ends", "reach", "sections", "windowed")

    def __init__(self) -> None:
        self.reach = 0
        self.windowed = False
        self.ends: list[int] = []
        """Where messages ended, beyond what was taken."""
        self.sections: list[KvSection] = []


class Intake:
    """KV of the first `known` tokens of layers `[first, end)`."""

    def __init__(self, request: str, layers: tuple[int, int], known: int) -> None:
        self._request = request
        self._known = known
        self._layers = {layer: _Layer() for layer in range(*layers)}
        self.taken = 0
        """Tokens that have been given out."""

    @property
    def complete(self) -> bool:
        return self.taken == self._known

    def add(self, header: Kv, frames: Sequence[Buffer]) -> None:
        """`frames`: K and V of each part. Layers of other stages are ignored. Raises EngineError where
        tokens are missing before it."""
        if header.known != self._known:
            raise EngineError(f"KV of {header.known} tokens has come, {self._known} are known")
        reached = {layer: held.reach for layer, held in self._layers.items()}
        for number, part in enumerate(header.parts):
            held = self._layers.get(part.layer)
            if held is None or header.end <= reached[part.layer]:
                continue
            if header.start > reached[part.layer]:
                raise EngineError(
                    f"KV of layer {part.layer}: tokens [{reached[part.layer]}, {header.start}) are missing"
                )
            section = _section(part, frames[2 * number], frames[2 * number + 1])
            section = _after(section, reached[part.layer])
            held.windowed = part.kind == "window"
            held.sections.append(section)
            if held.reach < header.end:
                held.reach = header.end
                held.ends.append(header.end)

    def take(self) -> KvPiece | None:
        """The next tokens of which all layers are here, or None. Given out once."""
        end = self._end()
        if end <= self.taken:
            return None
        sections: list[KvSection] = []
        for held in self._layers.values():
            later = []
            for section in held.sections:
                if section.token_start + section.shape[0] <= end:
                    sections.append(section)
                elif section.token_start >= end:
                    later.append(section)
                else:
                    sections.append(_before(section, end))
                    later.append(_after(section, end))
            held.sections = later
            held.ends = [one for one in held.ends if one > end]
        self.taken = end
        return KvPiece(request=self._request, tokens=end, sections=tuple(s for s in sections if s.shape[0]))

    def _end(self) -> int:
        """How far all layers are whole."""
        reach = min(held.reach for held in self._layers.values())
        windowed = [held for held in self._layers.values() if held.windowed]
        if not windowed:
            return reach
        common = set(windowed[0].ends).intersection(*(held.ends for held in windowed[1:]))
        return max((end for end in common if end <= reach), default=0)


def _section(part: KvPart, k: Buffer, v: Buffer) -> KvSection:
    return KvSection(
        layer=part.layer,
        kind=part.kind,
        dtype=part.dtype,
        shape=part.shape,
        token_start=part.token_start,
        head_start=part.head_start,
        k=memoryview(k).cast("B"),
        v=memoryview(v).cast("B"),
    )


def _before(section: KvSection, end: int) -> KvSection:
    return _cut(section, 0, end - section.token_start)


def _after(section: KvSection, start: int) -> KvSection:
    """Itself where it begins no earlier."""
    skip = start - section.token_start
    return section if skip <= 0 else _cut(section, skip, section.shape[0])


def _cut(section: KvSection, low: int, high: int) -> KvSection:
    """Its tokens `[low, high)`, counted from its own start; no copy."""
    tokens, heads, width = section.shape
    each = len(section.k) // tokens if tokens else 0
    return msgspec.structs.replace(
        section,
        shape=(high - low, heads, width),
        token_start=section.token_start + low,
        k=section.k[low * each : high * each],
        v=section.v[low * each : high * each],
    )
