"""Mixtures of experts: each expert runs once, over the rows that chose it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from coral_engine_torch.weights import Experts

Expert = Callable[[int, Tensor], Tensor]


def routed_experts(h: Tensor, experts: Experts, chosen: int, renormalise: bool) -> Tensor:
    """Qwen3-MoE: softmax over all experts, the `chosen` best, SwiGLU experts. h `[T, hidden]`."""
    probabilities = torch.softmax(linear(h, experts.router.weight, experts.router.bias).float(), -1)
    share, index = probabilities.topk(chosen, -1)
    if renormalise:
        share = share / share.sum(-1, keepdim=True)

    def expert(e: int, x: Tensor) -> Tensor:
        gate, up = linear(x, experts.gate_up.weight[e]).chunk(2, -1)
        return linear(silu(gate).mul_(up), experts.down.weight[e])

    return _dispatch(h, index, share.to(h.dtype), expert)


def interleaved_experts(h: Tensor, experts: Experts, chosen: int, alpha: float, limit: float) -> Tensor:
    """gpt-oss: the `chosen` best, softmax over them, clamped (up + 1) · gate · sigmoid(alpha · gate)."""
    best, index = linear(h, experts.router.weight, experts.router.bias).topk(chosen, -1)
    share = torch.softmax(best, -1)
    up_bias, down_bias = experts.gate_up.bias, experts.down.bias
    assert up_bias is not None
    assert down_bias is not None

    def expert(e: int, x: Tensor) -> Tensor:
        gate_up = torch.addmm(up_bias[e], x, experts.gate_up.weight[e])
        gate = gate_up[:, ::2].clamp(max=limit)
        up = gate_up[:, 1::2].clamp(-limit, limit)
        return torch.addmm(
            down_bias[e], (up + 1) * (gate * torch.sigmoid(gate * alpha)), experts.down.weight[e]
        )

    return _dispatch(h, index, share, expert)


def _dispatch(h: Tensor, index: Tensor, share: Tensor, expert: Expert) -> Tensor:
    """Sum over the chosen experts of share · expert(h); `index`, `share` are `[T, chosen]`."""
    out = torch.zeros_like(h)
    for e in torch.unique(index).tolist():
        rows, place = (index == e).nonzero(as_tuple=True)
        out.index_add_(0, rows, expert(e, h[rows]) * share[rows, place, None])
    return out
