"""A plan as torch's FlexAttention takes it, for devices that have a compiled FlexAttention and no kernel of ours.

Only its meaning is tested (without a compiler, on a CPU): no GPU was at hand when this was written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .sparse import SIDE, SparsePlan

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask  # brings torch's compiler, which few need

TILE = 128
"""Side of the tiles that FlexAttention computes or skips (its default)."""
SIZES = (16, 32, 64, 128, 256)
"""Numbers of a key that all versions of its kernel take."""
_tables: WeakKeyDictionary[SparsePlan, dict[torch.device, tuple[Tensor, ...]]] = WeakKeyDictionary()


def block_mask(plan: SparsePlan, start: Tensor, stop: Tensor, keys: int) -> BlockMask:
    """The mask of a plan for FlexAttention: the tiles that have any kept cell, and which cells of them are kept.

    Parameters
    ----------
    plan : for these queries and keys, or for more that follow them.
    start, stop : int64 ``[B, Q]`` on the device of the attention, the keys that each query may see.
    """
    from torch.nn.attention.flex_attention import BlockMask

    device, queries = start.device, start.shape[1]
    known = _tables.setdefault(plan, {})
    if device not in known:
        known[device] = tuple(torch.from_numpy(table).to(device) for table in _make_tables(plan))
    pattern_of, place_of, bits, tiles = known[device]

    def keeps(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        pattern = pattern_of[head]
        place = place_of[pattern, query]
        kept = bits[pattern, place // SIDE, key] >> place % SIDE & 1
        return (kept != 0) & (key >= start[batch, query]) & (key < stop[batch, query])

    rows, columns = -(-queries // TILE), -(-keys // TILE)
    # From the first key that any query of a tile may see to the last one.
    padding = (0, rows * TILE - queries)
    first = torch.nn.functional.pad(torch.where(start < stop, start, keys), padding, value=keys)
    after = torch.nn.functional.pad(torch.where(start < stop, stop, 0), padding)
    first, after = (edge.view(len(edge), rows, TILE) for edge in (first, after))
    begin = torch.arange(columns, device=device) * TILE
    seen = (begin < after.amax(-1, keepdim=True)) & (begin + TILE > first.amin(-1, keepdim=True))
    needed = tiles[pattern_of, :rows, :columns] & seen[:, None]
    return BlockMask.from_kv_blocks(
        needed.sum(-1, dtype=torch.int32),
        needed.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32),
        BLOCK_SIZE=TILE,
        mask_mod=keeps,
        seq_lengths=(queries, keys),
    )


def attend_flex(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, plan: SparsePlan, start: Tensor, stop: Tensor
) -> Tensor:
    """Softmax attention over the cells of a plan by FlexAttention; see :func:`attrim.kernels.sparse.attend_sparse`."""
    mask = block_mask(plan, start, stop, key.shape[2])
    shared = query.shape[1] != key.shape[1]
    output: Tensor = _flex(query.device.type)(query, key, value, block_mask=mask, scale=scaling, enable_gqa=shared)
    return output.transpose(1, 2).contiguous()


@functools.cache
def _flex(device: str) -> Callable[..., Any]:
    """FlexAttention, compiled where that is what makes it skip tiles."""
    from torch.nn.attention.flex_attention import flex_attention

    plain: Callable[..., Any] = flex_attention
    return torch.compile(plain) if device == "cuda" else plain


def _make_tables(plan: SparsePlan) -> tuple[NDArray[Any], ...]:
    """What a look-up of cells needs.

    Returns
    -------
    pattern_of : int64 ``[H]``.
    place_of : int32 ``[patterns, Q]``, 16 times the block of each query within its pattern, plus its row there.
    bits : int32 ``[patterns, blocks, K]``, the rows of a block that keep a key.
    tiles : bool ``[patterns, ceil(Q / 128), ceil(K / 128)]``, where any cell is kept.
    """
    patterns = len(plan.block_begin) - 1
    blocks = -(-plan.queries // SIDE)
    pattern, number = np.divmod(np.arange(len(plan.rows)), blocks)  # patterns have as many blocks as each other
    place_of = np.zeros((patterns, plan.queries), dtype=np.int32)
    there = plan.rows >= 0
    place = (number * SIDE)[:, None] + np.arange(SIDE)
    place_of[np.broadcast_to(pattern[:, None], there.shape)[there], plan.rows[there]] = place[there]
    bits = np.zeros((patterns, blocks, plan.keys), dtype=np.int32)
    tiles = np.zeros((patterns, -(-plan.queries // TILE), -(-plan.keys // TILE)), dtype=bool)
    for own in range(patterns):
        counts, columns, kept_by = plan.blocks(own)
        of_column = np.repeat(np.arange(blocks), counts)
        bits[own, of_column, columns] = kept_by
        rows = plan.rows[plan.block_begin[own] : plan.block_begin[own + 1]]
        for row in range(SIDE):
            kept = (kept_by >> row & 1).astype(bool)
            tiles[own, rows[of_column[kept], row] // TILE, columns[kept] // TILE] = True
    return plan.pattern_of, place_of, bits, tiles
