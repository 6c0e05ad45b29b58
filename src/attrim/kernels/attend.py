"""Attention and its statistics in one go: the weights are counted while they are in cache and then forgotten."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.call import Call
from . import team
from .blocks import Block, Edges, Spans, blocks
from .feed import CompiledStat, Feed, supports


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    call: Call,
    edges: Edges | None,
    scaling: float | None,
    stats: Sequence[tuple[CompiledStat, tuple[int, ...]]],
) -> Tensor | None:
    """Softmax attention that feeds stats, a few MiB of weights at a time.

    Parameters
    ----------
    query : ``[B, H, Q, D]``.
    key, value : ``[B, H or fewer, K, D]``; groups of heads may share them.
    edges : the spans of ``call.allowed`` from :func:`find_edges`, which a caller keeps for all layers of a mask.
    scaling : factor of the scores (default: 1 / sqrt(D)).
    stats : pairs of a stat and the head numbers it watches.

    Returns
    -------
    output : ``[B, Q, H, D]``, contiguous; None where this path does not apply and the reference must run: gradients,
        other devices and dtypes, stats that the compiled pass cannot feed, masks that differ between heads or have
        gaps, tokens whose positions do not follow one another.
    """
    tensors = (query, key, value)
    if not team.available() or any(tensor.device.type != "cpu" or tensor.dtype != torch.float32 for tensor in tensors):
        return None
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return None
    if edges is None or call.slots is not None or not supports(stats, call):
        return None
    spans = Spans.of(edges, call.queries, query.shape[0])
    feed = Feed.begin(call, spans, stats)
    batch, heads, queries, size = query.shape
    scaling = size**-0.5 if scaling is None else scaling
    output = query.new_empty(batch, queries, heads, value.shape[-1])
    scratch = query.new_empty(0)  # one for all blocks; it grows to the first, which is among the largest
    for block in blocks(spans, heads):
        scratch = scratch if scratch.numel() >= block.cells else query.new_empty(block.cells)
        weights = _weights(query, key, call, block, scaling, scratch[: block.cells])
        feed.add(weights, block)
        mixed = torch.bmm(weights.flatten(0, 1), _of_heads(value, heads, block))
        output[block.examples, block.queries, block.heads] = mixed.view(*weights.shape[:3], -1).transpose(1, 2)
    return output


def _weights(query: Tensor, key: Tensor, call: Call, block: Block, scaling: float, scratch: Tensor) -> Tensor:
    """The attention weights ``[b, h, q, k]`` of a block, in the memory of ``scratch``."""
    some = query[block.examples, block.heads, block.queries]
    keys = _of_heads(key, query.shape[1], block)
    # With beta=0 the first argument only lends its type: the product is scaled without another pass over it.
    into = scratch.view(keys.shape[0], some.shape[2], keys.shape[1])
    torch.baddbmm(query.new_empty(1, 1, 1), some.flatten(0, 1), keys.transpose(1, 2), beta=0, alpha=scaling, out=into)
    scores = into.view(*some.shape[:3], keys.shape[1])
    if not block.full:
        examples = block.examples if call.allowed.shape[0] > 1 else slice(None)
        allowed = call.allowed[examples, :, block.queries, block.keys]
        # The least number instead of minus infinity, as in stock attention: a padded query without keys gives no NaN.
        scores.masked_fill_(~allowed, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1, out=scores)


def _of_heads(tensor: Tensor, heads: int, block: Block) -> Tensor:
    """Keys or values ``[b * h, k, D]`` of a block, repeated where groups of heads share them."""
    group = heads // tensor.shape[1]
    first = block.heads.start // group
    shared = tensor[block.examples, first : -(-block.heads.stop // group), block.keys]
    if group > 1:
        start = block.heads.start - first * group
        shared = shared.repeat_interleave(group, dim=1)[:, start : start + block.heads.stop - block.heads.start]
    return shared.flatten(0, 1)
