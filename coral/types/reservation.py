"""How much KV a request is given: one rule for scheduler, planner and simulator."""

from __future__ import annotations

from msgspec import Struct


class ReservationRule(Struct, frozen=True, kw_only=True):
    """At admission a request reserves KV for its prompt and the output it is expected to need.

    `expected_output_tokens` is the model's demand figure. When a request reaches what it has, it is
    extended by `extend_tokens` at a time.
    """

    expected_output_tokens: int
    extend_tokens: int = 64

    def reserve(self, known_tokens: int, left_tokens: int) -> int:
        """Tokens to reserve for a request that knows `known_tokens` and may generate `left_tokens`."""
        return known_tokens + max(1, min(left_tokens, self.expected_output_tokens))

    def extend(self, reserved: int, total_tokens: int) -> int:
        """The next reservation after `reserved`, never above the request's own total."""
        return min(total_tokens, reserved + self.extend_tokens)


def blocks(tokens: int, block_size: int) -> int:
    """KV blocks that hold `tokens` tokens."""
    return -(-tokens // block_size)
