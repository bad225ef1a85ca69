"""What a stage knows of one request: its tokens, its blocks, how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field

from coral.types.request import GenerateRequest


@dataclass(slots=True)
class Sequence:
    """`computed` positions have keys in `blocks`; `generated` grows by sampling or feeding."""

    request: GenerateRequest
    blocks: list[int]
    reserved: int
    computed: int = 0
    imported: int = 0
    generated: list[int] = field(default_factory=list)

    @property
    def known(self) -> int:
        return len(self.request.prompt_ids) + len(self.generated)

    def tokens(self, start: int, n: int) -> tuple[int, ...]:
        """Known token ids at positions [start, start + n)."""
        prompt = self.request.prompt_ids
        if start >= len(prompt):
            start -= len(prompt)
            return tuple(self.generated[start : start + n])
        head = prompt[start : start + n]
        return (*head, *self.generated[: n - len(head)])
