"""Attention that computes only the cells of a plan: blocks of queries, each with the keys that any of them keeps."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ShapeError
from . import team
from .rules import KeptSpans

SIDE = 16
"""Queries of a block, as in compiled.c."""
_Blocks = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint16]]
"""Of the blocks of one pattern the number of columns, the columns and their bits."""
_Part = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.uint16]]
"""One pattern: the order of its queries, where the columns of its blocks begin and end, the columns and their bits."""


@dataclass(frozen=True)
class PlanCost:
    """What the attention of one example costs where it computes the blocks of a plan, known before anything runs.

    Attributes
    ----------
    heads : the heads of one pattern, or all of a site, by their places among the heads of the plan.
    allowed : cells that the model computes without a plan: all, or those up to the query in causal attention.
    kept : cells that the pattern keeps.
    computed : cells that are computed, 16 for every column of a block.
    flops : multiplications and additions of scores and outputs, ``2 * computed * (size + value_size)``.
    bytes : what the blocks read and write: keys and values of their columns, queries and outputs.
    """

    heads: tuple[int, ...]
    allowed: int
    kept: int
    computed: int
    flops: int
    bytes: int

    @property
    def density(self) -> float:
        """The share of the allowed cells that the pattern keeps."""
        return self.kept / max(self.allowed, 1)

    @property
    def union_density(self) -> float:
        """Computed cells to allowed ones; above 1 where blocks reach past causality or the end of the text."""
        return self.computed / max(self.allowed, 1)

    def __add__(self, other: PlanCost) -> PlanCost:
        names = ("allowed", "kept", "computed", "flops", "bytes")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return PlanCost(tuple(sorted(self.heads + other.heads)), **sums)


@dataclass(frozen=True, eq=False)
class SparsePlan:
    """Which keys each block of 16 queries needs; heads of one pattern share it.

    Attributes
    ----------
    queries, keys : the largest shape that the plan is for.
    pattern_of : int64 ``[H]``, the pattern of each head.
    block_begin : int64 ``[patterns + 1]``, the first block of each pattern.
    rows : int32 ``[blocks, 16]``, the queries of a block; -1 for none.
    column_begin, column_end : int64 ``[blocks]``, where the columns of a block begin and end. Blocks may share them:
        a pattern that goes by distance has the same columns in every block, but for the ends of the text.
    shift : int32 ``[blocks]``, what is added to the columns of a block: 16 times its number within the pattern.
    columns : int32 ``[columns]``, the keys of the blocks less their shift, ascending in each.
    kept : uint16 ``[columns]``, bit r says whether query r of the block keeps the key.
    causal : whether no query keeps a key after its own position.
    """

    queries: int
    keys: int
    pattern_of: NDArray[np.int64]
    block_begin: NDArray[np.int64]
    rows: NDArray[np.int32]
    column_begin: NDArray[np.int64]
    column_end: NDArray[np.int64]
    shift: NDArray[np.int32]
    columns: NDArray[np.int32]
    kept: NDArray[np.uint16]
    causal: bool = False

    @classmethod
    def of(cls, kept: Tensor, *, reorder: bool = True, causal: bool = False) -> SparsePlan:
        """Compile the plan of a pattern.

        Parameters
        ----------
        kept : bool ``[H, Q, K]``, the cells to compute.
        reorder : put queries that keep the same keys into a block, where that makes it smaller, whatever their order.
        causal : leave out the keys after a query's own position, which it never sees.
        """
        if kept.dim() != 3 or kept.dtype != torch.bool:
            raise ShapeError(f"A plan is made of bool [H, Q, K], not of {kept.dtype} {list(kept.shape)}.")
        cells = (kept.tril() if causal else kept).cpu().numpy()
        # By their bytes: numpy's unique along an axis makes a field of every cell, half a gigabyte at 1024 tokens.
        names = [np.packbits(own).tobytes() for own in cells]
        known = {name: number for number, name in enumerate(dict.fromkeys(names))}
        pattern_of = np.array([known[name] for name in names], dtype=np.int64)
        firsts = [names.index(name) for name in known]
        parts = []
        for head in firsts:
            order = _order(cells[head]) if reorder else np.arange(cells.shape[1])
            parts.append((order, *_shared(*_blocks(cells[head], order))))
        return cls._joined((cells.shape[1], cells.shape[2]), pattern_of, parts, causal)

    @classmethod
    def by_rule(cls, kept: Iterable[KeptSpans], *, reorder: bool = False, causal: bool = False) -> SparsePlan:
        """Compile the plan of rules.

        Parameters
        ----------
        kept : the spans of keys of each head; heads of equal ones share their plan. Those of long texts have megabytes,
            and no more than one is needed at a time.
        reorder, causal : as in :meth:`of`; reordering forms the cells of one head at a time.
        """
        known: dict[bytes, int] = {}
        pattern_of: list[int] = []
        parts: list[_Part] = []
        size = 0, 0
        last: KeptSpans | None = None
        for spans in kept:
            if spans is last:
                pattern_of.append(pattern_of[-1])
                continue
            last = spans
            size = spans.queries, spans.keys
            cut = spans.up_to(np.arange(1, spans.queries + 1)) if causal else spans
            digest = hashlib.blake2b()
            for array in (cut.begin, cut.start, cut.stop):
                digest.update(array.tobytes())
            name = digest.digest()
            if name not in known:
                known[name] = len(parts)
                order, found = _reordered(cut) if reorder else (np.arange(cut.queries), cut.blocks(SIDE))
                parts.append((order, *_shared(*found)))
            pattern_of.append(known[name])
        return cls._joined(size, np.array(pattern_of), parts, causal)

    @classmethod
    def _joined(
        cls, size: tuple[int, int], pattern_of: NDArray[np.int64], parts: Sequence[_Part], causal: bool
    ) -> SparsePlan:
        """The plan of the patterns ``parts`` for texts of ``size`` queries and keys."""
        orders, begins, ends, columns, bits = zip(*parts, strict=True)
        rows = [_rows(order) for order in orders]
        before = np.cumsum([0, *(len(own) for own in columns)])[:-1]
        return cls(
            *size,
            pattern_of.astype(np.int64),
            np.cumsum([0, *(len(own) for own in rows)]).astype(np.int64),
            np.concatenate(rows),
            np.concatenate([own + first for own, first in zip(begins, before, strict=True)]),
            np.concatenate([own + first for own, first in zip(ends, before, strict=True)]),
            np.concatenate([SIDE * np.arange(len(own), dtype=np.int32) for own in rows]),
            np.concatenate(columns),
            np.concatenate(bits),
            causal,
        )

    def blocks(self, pattern: int) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint16]]:
        """Number of columns, columns and bits of the blocks of one pattern, as :meth:`KeptSpans.blocks` gives them."""
        own = slice(self.block_begin[pattern], self.block_begin[pattern + 1])
        counts = self.column_end[own] - self.column_begin[own]
        # Block after block, the places of its columns among those that are stored.
        places = np.repeat(self.column_begin[own] - np.cumsum(counts) + counts, counts)
        places += np.arange(len(places))
        return counts, self.columns[places] + np.repeat(self.shift[own], counts), self.kept[places]

    def equals(self, other: SparsePlan | None) -> bool:
        """Whether another plan says the same."""
        if other is None or (self.queries, self.keys, self.causal) != (other.queries, other.keys, other.causal):
            return False
        arrays = ("pattern_of", "block_begin", "rows", "column_begin", "column_end", "columns", "kept")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in arrays)

    @functools.cached_property
    def addresses(self) -> dict[str, int]:
        """Where the arrays are, by the names of the compiled function."""
        names = ("block_begin", "column_begin", "column_end", "rows", "shift", "columns", "kept")
        return {"plan_of": self.pattern_of.ctypes.data, **{name: getattr(self, name).ctypes.data for name in names}}

    @functools.cached_property
    def most_columns(self) -> int:
        """The columns of the largest block."""
        return int((self.column_end - self.column_begin).max(initial=0))

    def computed(self) -> NDArray[np.int64]:
        """Cells that are computed for each head ``[H]``: 16 for every column of its blocks."""
        return np.asarray(SIDE * self._columns_of_patterns()[self.pattern_of])

    def costs(self, size: int, value_size: int | None = None, number: int = 4) -> tuple[PlanCost, ...]:
        """What each pattern costs for one example, before anything runs.

        Parameters
        ----------
        size, value_size : the numbers of a key and of a value (default: as many).
        number : bytes of a number.
        """
        value_size = size if value_size is None else value_size
        columns = self._columns_of_patterns()
        # Sums up to the end of each block's columns, because reduceat does not know patterns without any.
        sums = np.concatenate([[0], np.cumsum(np.bitwise_count(self.kept), dtype=np.int64)])
        kept = self._of_patterns(sums[self.column_end] - sums[self.column_begin])
        allowed = self.queries * self.keys
        if self.causal:
            allowed = int(np.minimum(np.arange(1, self.queries + 1), self.keys).sum())
        found = []
        for pattern in range(len(columns)):
            heads = tuple(np.flatnonzero(self.pattern_of == pattern).tolist())
            moved = len(heads) * (int(columns[pattern]) + self.queries) * (size + value_size)
            computed = len(heads) * SIDE * int(columns[pattern])
            flops = 2 * computed * (size + value_size)
            total = len(heads) * int(kept[pattern])
            found.append(PlanCost(heads, len(heads) * allowed, total, computed, flops, moved * number))
        return tuple(found)

    def _columns_of_patterns(self) -> NDArray[np.int64]:
        """The columns of all blocks of each pattern ``[patterns]``."""
        return self._of_patterns(self.column_end - self.column_begin)

    def _of_patterns(self, of_blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum over the blocks of each pattern ``[patterns]``."""
        return np.diff(np.concatenate([[0], np.cumsum(of_blocks)])[self.block_begin])


def _order(cells: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The queries in an order that makes the unions of 16 neighbours small: as they are, or by what they keep."""
    natural = np.arange(len(cells))
    # Along the first two components of what queries keep; patterns that follow the diagonal stay as they are.
    weights = cells.astype(np.float32)
    center = (weights * np.arange(cells.shape[1], dtype=np.float32)).sum(1) / np.maximum(weights.sum(1), 1)
    candidates = (natural, np.argsort(center, kind="stable"), _greedy(cells))
    return min(candidates, key=lambda order: _size(cells, order))


def _greedy(cells: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Blocks filled one by one with the query that adds the fewest keys to the block's union."""
    by_key = np.ascontiguousarray(cells.T).view(np.uint8)
    sizes, left, order = cells.sum(1), np.ones(len(cells), dtype=bool), []
    while left.any():
        # A block begins with the query that keeps most of those left: the others may fit into its union.
        query = int(np.argmax(np.where(left, sizes, -1)))
        union = np.zeros(cells.shape[1], dtype=bool)
        common = np.zeros(len(cells), dtype=np.int64)
        for _ in range(min(SIDE, int(left.sum()))):
            left[query] = False
            order.append(query)
            new = np.flatnonzero(cells[query] & ~union)
            union[new] = True
            common += by_key[new].sum(0, dtype=np.uint32)
            query = int(np.argmin(np.where(left, sizes - common, cells.shape[1] + 1)))
    return np.array(order, dtype=np.int64)


def _size(cells: NDArray[np.bool_], order: NDArray[np.int64]) -> int:
    """Columns of all blocks together."""
    return int(_padded(cells, order).any(1).sum())


def _padded(cells: NDArray[np.bool_], order: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Cells by block, ``[blocks, 16, K]``."""
    blocks = -(-len(cells) // SIDE)
    padded = np.zeros((blocks * SIDE, cells.shape[1]), dtype=bool)
    padded[: len(cells)] = cells[order]
    return padded.reshape(blocks, SIDE, -1)


def _blocks(cells: NDArray[np.bool_], order: NDArray[np.int64]) -> _Blocks:
    """Number of columns, columns and bits of the blocks of one pattern, as :meth:`KeptSpans.blocks` gives them."""
    by_block = _padded(cells, order)
    union = by_block.any(1)
    bits = np.tensordot(by_block.astype(np.int64), 1 << np.arange(SIDE), axes=(1, 0))
    return union.sum(1), np.nonzero(union)[1].astype(np.int32), bits[union].astype(np.uint16)


def _shared(
    counts: NDArray[np.int64], columns: NDArray[np.int32], bits: NDArray[np.uint16]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.uint16]]:
    """Columns that neighbouring blocks have alike, relative to their queries, stored once.

    Parameters
    ----------
    counts, columns, bits : see :meth:`KeptSpans.blocks`.

    Returns
    -------
    begin, end : int64 ``[blocks]``, where the columns of each block begin and end.
    columns, bits : as many as differ; 16 times the number of its block is to be added to a column.
    """
    # A column and its bits in one number, by which they ascend as by the column.
    numbers = np.repeat(-SIDE * np.arange(len(counts)), counts)
    numbers += columns
    numbers <<= SIDE
    numbers |= bits
    first = np.cumsum(counts) - counts
    begin, end = np.zeros_like(counts), np.zeros_like(counts)
    pieces = [numbers[:0]]
    known, known_begin, total = numbers[:0], 0, 0
    # From the last block to the first, because the text then ends later and later after a block's queries: a block may
    # lack the first columns of the block behind it, which lie before the text, and it may have more at the end.
    for block in range(len(counts) - 1, -1, -1):
        own = numbers[first[block] : first[block] + counts[block]]
        place = int(np.searchsorted(known, own[0])) if len(own) else 0
        common = min(len(known) - place, len(own))
        if not common or known[place] != own[0] or not np.array_equal(known[place : place + common], own[:common]):
            known, known_begin, place, common = own, total, 0, 0
        elif common < len(own):
            known = np.concatenate([known, own[common:]])
        begin[block] = known_begin + place
        end[block] = begin[block] + len(own)
        pieces.append(own[common:])
        total += len(own) - common
    found = np.concatenate(pieces)
    return begin, end, (found >> SIDE).astype(np.int32), (found & (1 << SIDE) - 1).astype(np.uint16)


def _reordered(kept: KeptSpans) -> tuple[NDArray[np.int64], _Blocks]:
    """A pattern that a rule gives, with its queries in the best order."""
    cells = kept.cells()
    order = _order(cells)
    return order, kept.blocks(SIDE) if (np.diff(order) == 1).all() else _blocks(cells, order)


def _rows(order: NDArray[np.int64]) -> NDArray[np.int32]:
    """The queries of each block, ``[blocks, 16]``, -1 behind the last."""
    rows = np.full(-(-len(order) // SIDE) * SIDE, -1, dtype=np.int32)
    rows[: len(order)] = order
    return rows.reshape(-1, SIDE)


def attend_sparse(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, plan: SparsePlan, start: Tensor, stop: Tensor
) -> Tensor:
    """Softmax attention over the cells of a plan.

    Parameters
    ----------
    query : float32 or bfloat16 ``[B, H, Q, D]``.
    key, value : ``[B, H or fewer, K, D]``; groups of heads may share them.
    plan : for these queries and keys, or for more that follow them.
    start, stop : int64 ``[B, Q]``, the keys that each query may see.

    Returns
    -------
    output : ``[B, Q, H, D]``, contiguous; 0 for a query that sees none of the keys that it keeps.
    """
    return SparseCall(query, key, value, scaling, plan, start, stop)(query, key, value)


class SparseCall:
    """Sparse attention over tensors of one shape, called as often as wanted; see :func:`attend_sparse`."""

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, scaling: float, plan: SparsePlan, start: Tensor, stop: Tensor
    ) -> None:
        from . import _compiled

        batch, heads, queries = query.shape[:3]
        keys, value_size = value.shape[-2:]
        if heads != len(plan.pattern_of) or queries > plan.queries or keys > plan.keys:
            raise ShapeError(
                f"The plan is for {len(plan.pattern_of)} heads and up to {plan.queries} queries and {plan.keys} keys, "
                f"not for {heads}, {queries} and {keys}."
            )
        _require_fit(query, key, value, start, stop)
        self.shape = batch, queries, heads, value_size
        self.kept_alive = plan, start.contiguous(), stop.contiguous()
        # All but the addresses of the tensors is the same in every call, and to fill it in takes longer than to attend
        # to a short text.
        self.parameters = team.SparseParameters(
            path=team.path(),
            parts=_parts(batch * heads, len(plan.rows) // max(1, len(plan.block_begin) - 1)),
            bfloat16=query.dtype == torch.bfloat16,
            **team.tensor_fields(query, key, value),
            scaling=scaling,
            start=self.kept_alive[1].data_ptr(),
            stop=self.kept_alive[2].data_ptr(),
            most_columns=plan.most_columns,
            **plan.addresses,
        )
        self.address, self.parallel_for = ctypes.addressof(self.parameters), team.parallel_for_address()
        self.attend: Callable[..., int] = _compiled.attend_sparse_again

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend; the tensors must have the shapes, strides, dtype and device of those that this was made with."""
        output = query.new_empty(self.shape)
        addresses = query.data_ptr(), key.data_ptr(), value.data_ptr(), output.data_ptr()
        result = self.attend(self.parallel_for, torch.get_num_threads(), self.address, *addresses)
        if result < 0:
            raise MemoryError("There is no memory for sparse attention.")
        if result:
            raise team.failed("attend_sparse")
        return output


def _require_fit(query: Tensor, key: Tensor, value: Tensor, start: Tensor, stop: Tensor) -> None:
    """Refuse tensors that do not fit one another, beyond which the kernel would read."""
    batch, heads, queries, size = query.shape
    fits = key.shape[:3] == value.shape[:3] and key.shape[0] == batch and key.shape[3] == size
    if not fits or heads % key.shape[1] or start.shape != (batch, queries) or stop.shape != (batch, queries):
        raise ShapeError(
            f"Queries {list(query.shape)}, keys {list(key.shape)}, values {list(value.shape)} and spans "
            f"{list(start.shape)} and {list(stop.shape)} do not fit one another."
        )
    known = query.dtype in (torch.float32, torch.bfloat16) and start.dtype == stop.dtype == torch.int64
    if not (known and query.dtype == key.dtype == value.dtype):
        raise ShapeError(
            f"The sparse kernel takes queries, keys and values that are all float32 or all bfloat16, and int64 spans, "
            f"not {query.dtype}, {key.dtype} and {value.dtype}, and {start.dtype} and {stop.dtype}."
        )


def _parts(pieces: int, blocks: int) -> int:
    """How many parts the blocks of a head are cut into, so that all threads have something to do until the end."""
    threads = torch.get_num_threads()
    return 1 if pieces % threads == 0 or pieces >= 8 * threads else max(1, min(-(-4 * threads // pieces), blocks // 4))
