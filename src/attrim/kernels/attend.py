"""Attention, its edits and statistics in one go: the weights are edited and counted in cache and then forgotten."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ..core.call import Call
from ..core.plan import show
from . import team
from .blocks import CELLS, Block, Edges, Spans, blocks
from .feed import Feed, Watching, divide
from .operations import Editing, Operations, as_parameters, chosen_heads, find_operations


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    call: Call,
    edges: Edges | None,
    scaling: float | None,
    stats: Watching = (),
    edits: Editing = (),
) -> Tensor | None:
    """Softmax attention that edits the weights and feeds stats, a few MiB of weights at a time.

    Stats that the compiled pass cannot feed watch the weights of a few examples after another, of at least one.

    Parameters
    ----------
    query : ``[B, H, Q, D]``.
    key, value : ``[B, H or fewer, K, D]``; groups of heads may share them.
    edges : the spans of ``call.allowed`` from :func:`find_edges`, which a caller keeps for all layers of a mask.
    scaling : factor of the scores (default: 1 / sqrt(D)).
    stats : pairs of a stat of weights and the head numbers it watches; they see the weights after all edits.
    edits : pairs of an edit and the head numbers it changes, in the order in which they apply.

    Returns
    -------
    output : ``[B, Q, H, D]``, contiguous; None where this path does not apply and the reference must run: gradients,
        other devices and dtypes, edits that the compiled pass cannot do (and stats that it cannot feed, where it is not
        fused), masks that differ between heads or have gaps, tokens whose positions do not follow one another.
    """
    tensors = (query, key, value)
    if not team.available() or any(tensor.device.type != "cpu" or tensor.dtype != torch.float32 for tensor in tensors):
        return None
    if team.differentiates(*tensors):
        return None
    if edges is None or call.slots is not None:
        return None
    if not (stats or edits):
        return None
    one_pass = fuses(query, key, value)
    fed, shown = divide(stats, call, one_pass)
    operations = find_operations(edits, call) if one_pass or not (edits or shown) else None
    if operations is None:
        return None
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    spans = Spans.of(edges, call.queries, query.shape[0])
    if shown:
        return _by_examples(query, key, value, call, scaling, spans, operations, fed, shown)
    feed = Feed.begin(call, spans, fed)
    if one_pass:
        return fused(query, key, value, scaling, spans, feed, operations)
    return _by_blocks(query, key, value, scaling, spans, feed)


LARGEST_SIZE = 256
"""Numbers of a query, key or value for which the fused pass is made."""
MOST_MEMORY = 16 << 20
"""Bytes of keys and values of one example and head; every thread of the fused pass has a copy of them."""


def fuses(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the fused pass is there and made for tensors of these sizes."""
    size, keys = query.shape[-1] + value.shape[-1], key.shape[-2]
    return (
        team.PATHS[team.path()] != "torch"
        and 0 < query.shape[-1] <= LARGEST_SIZE
        and 0 < value.shape[-1] <= LARGEST_SIZE
        and min(query.shape) > 0
        and 0 < 4 * keys * size <= MOST_MEMORY
    )


def fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    spans: Spans,
    feed: Feed,
    operations: Operations = (),
    weights: Tensor | None = None,
) -> Tensor:
    """Scores, softmax, edits, counts and output in one compiled pass.

    Parameters
    ----------
    operations : what edits do to the rows, with the head numbers of each, in the order in which they are done.
    weights : ``[B, H, Q, K]``, into which the weights of the allowed cells are written; contiguous.
    """
    batch, heads, queries = query.shape[:3]
    keys, value_size = value.shape[-2:]
    output = query.new_empty(batch, queries, heads, value_size)
    start, stop, counted = (tensor.contiguous() for tensor in (spans.start, spans.stop, spans.counted))
    following = torch.zeros(1, dtype=torch.int64)
    chosen = chosen_heads(operations, feed.call)
    edits = as_parameters(operations, chosen)
    whole = Block(slice(0, batch), slice(0, heads), slice(0, queries), slice(0, keys), full=False)
    with feed.into(whole) as into:
        parameters = team.AttendParameters(
            next=following.data_ptr(),
            path=team.path(),
            **_pieces(batch, heads, queries, feed),
            **team.tensor_fields(query, key, value),
            output=output.data_ptr(),
            weights=None if weights is None else weights.data_ptr(),
            scaling=scaling,
            start=start.data_ptr(),
            stop=stop.data_ptr(),
            counted=counted.data_ptr(),
            edits=ctypes.addressof(edits),
            edit_count=len(edits),
            into=into,
        )
        team.run("attend", parameters)
    return output


def _by_examples(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    call: Call,
    scaling: float,
    spans: Spans,
    operations: Operations,
    fed: Watching,
    shown: Watching,
) -> Tensor:
    """The fused pass for a few examples after another, whose weights some stats are shown.

    Parameters
    ----------
    fed : the stats that the pass feeds on the way.
    shown : the stats that watch the weights.
    """
    batch, heads, queries, _ = query.shape
    keys, value_size = value.shape[-2:]
    output = query.new_empty(batch, queries, heads, value_size)
    some = max(1, CELLS // (heads * queries * keys))
    for first in range(0, batch, some):
        examples = slice(first, min(first + some, batch))
        part = call.for_part(examples, batch)
        own = spans.of_examples(examples)
        shape = examples.stop - first, heads, queries, keys
        # Memory of its own for each part, because a stat may keep what it is shown. Cells that are not allowed are 0.
        weights = query.new_empty(shape) if own.covers(keys) else query.new_zeros(shape)
        feed = Feed.begin(part, own, fed)
        tensors = query[examples], key[examples], value[examples]
        output[examples] = fused(*tensors, scaling, own, feed, operations, weights)
        for stat, chosen in shown:
            show(stat, chosen, weights, part)
        del weights  # before the next part gets its own
    return output


MOST_HEADS = 64
"""Heads whose counts by bin a thread may hold at once; those of a head take 64 KiB."""


def _pieces(batch: int, heads: int, queries: int, feed: Feed) -> dict[str, int]:
    """How the work is divided among threads, as fields of the parameters.

    In most models the heads of a token lie side by side, so those of an example are done one after another: each page
    of its tensors is then looked for once. Sums by cell are larger than these tensors and those of all examples, so
    where there are any, the examples of a head follow one another, in one thread.
    """
    threads = torch.get_num_threads()
    if feed.cells is None and heads <= MOST_HEADS and (batch % threads == 0 or batch >= 4 * threads):
        return {"parts": 1, "together": heads, "apart": 1}
    if heads % threads == 0:
        return {"parts": 1, "together": 1, "apart": 0}
    # Every piece packs the keys and values of its head anew, so it should have many queries.
    parts = max(1, min(-(-4 * threads // heads), queries // 64))
    return {"parts": parts, "together": 1, "apart": 0}


def _by_blocks(query: Tensor, key: Tensor, value: Tensor, scaling: float, spans: Spans, feed: Feed) -> Tensor:
    """The same by torch's products and softmax, a block at a time; what the weights add up to is counted after each."""
    batch, heads, queries, _ = query.shape
    output = query.new_empty(batch, queries, heads, value.shape[-1])
    scratch = query.new_empty(0)  # one for all blocks; it grows to the first, which is among the largest
    for block in blocks(spans, heads):
        scratch = scratch if scratch.numel() >= block.cells else query.new_empty(block.cells)
        weights = _weights(query, key, feed.call, block, scaling, scratch[: block.cells])
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
