"""Grouped-query attention of a ragged batch over paged keys and values."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from coral_engine_torch.batch import Batch, DecodeGroup, Piece


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    batch: Batch,
    window: int,
    sinks: Tensor | None,
) -> Tensor:
    """Writes k, v `[T, kv_heads, D]` to the cache of one layer and attends with q `[T, heads, D]`.

    `keys`, `values` are the cache, `[blocks, block_size, kv_heads, D]`. `sinks [heads]` are gpt-oss's logits
    of a further softmax column without a value. Returns `[T, heads, D]`.
    """
    keys.view(-1, *k.shape[1:]).index_copy_(0, batch.slots, k)
    values.view(-1, *v.shape[1:]).index_copy_(0, batch.slots, v)
    out = torch.empty_like(q)
    reach = batch.reaches[window]
    for group in reach.decodes:
        out.index_copy_(0, group.rows, _decode(q, keys, values, group, sinks))
    for piece in reach.pieces:
        out[piece.low : piece.high] = _chunk(q, k, v, keys, values, piece, sinks)
    return out


def _decode(q: Tensor, keys: Tensor, values: Tensor, group: DecodeGroup, sinks: Tensor | None) -> Tensor:
    """The heads that share keys act as query rows: q `[B, kv_heads, G, D]`."""
    rows, (kv_heads, width) = len(group.rows), keys.shape[2:]
    query = q.index_select(0, group.rows).view(rows, kv_heads, -1, width)
    key = keys.index_select(0, group.blocks).view(rows, -1, kv_heads, width).transpose(1, 2)
    value = values.index_select(0, group.blocks).view(rows, -1, kv_heads, width).transpose(1, 2)
    if sinks is None:
        out = scaled_dot_product_attention(query, key, value, attn_mask=group.mask)
    else:
        out = _with_sinks(query, key, value, group.mask, sinks.view(1, kv_heads, -1, 1))
    return out.reshape(rows, q.shape[1], width)


def _chunk(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, piece: Piece, sinks: Tensor | None
) -> Tensor:
    """The heads that share keys act as a batch: q `[G, kv_heads, n, D]`, keys seen G times, not copied."""
    kv_heads, width = keys.shape[2:]
    n, shared = piece.high - piece.low, q.shape[1] // kv_heads
    query = q[piece.low : piece.high].view(n, kv_heads, shared, width).permute(2, 1, 0, 3)
    if piece.blocks is None:
        key, value = k[piece.low : piece.high], v[piece.low : piece.high]
    else:
        key = keys.index_select(0, piece.blocks).view(-1, kv_heads, width)
        value = values.index_select(0, piece.blocks).view(-1, kv_heads, width)
    key = key.transpose(0, 1).expand(shared, -1, -1, -1)
    value = value.transpose(0, 1).expand(shared, -1, -1, -1)
    if sinks is None:
        causal = piece.mask is None
        out = scaled_dot_product_attention(query, key, value, attn_mask=piece.mask, is_causal=causal)
    else:
        mask = piece.mask
        if mask is None:
            mask = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
        out = _with_sinks(query, key, value, mask, sinks.view(kv_heads, shared).T[:, :, None, None])
    return out.permute(2, 1, 0, 3).reshape(n, q.shape[1], width)


def _with_sinks(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    """Attention with one more softmax column of logit `sinks` (`[.., .., n, 1]`), dropped after."""
    scores = (query @ key.transpose(-1, -2)).float() * query.shape[-1] ** -0.5
    scores.masked_fill_(~mask, float("-inf"))
    top = torch.maximum(scores.amax(-1, keepdim=True), sinks.float())
    weights = (scores - top).exp_()
    weights /= weights.sum(-1, keepdim=True) + (sinks.float() - top).exp()
    return torch.matmul(weights.to(value.dtype), value)
