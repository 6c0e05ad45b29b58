"""Which keys queries keep, as a rule says it: spans of neighbouring keys, so that no matrix of cells is formed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class KeptSpans:
    """The keys that each query of a head keeps: ``start <= key < stop`` for any of its spans.

    Attributes
    ----------
    keys : how many keys there are.
    begin : int64 ``[Q + 1]``, where the spans of each query begin.
    start, stop : int64 ``[spans]``, ascending within a query; spans of a query neither overlap nor touch.
    """

    keys: int
    begin: Integers
    start: Integers
    stop: Integers

    @classmethod
    def union(cls, size: tuple[int, int], query: Integers, start: Integers, stop: Integers) -> KeptSpans:
        """What any of some spans keeps.

        Parameters
        ----------
        size : numbers of queries and keys.
        query, start, stop : int64 ``[spans]`` in any order; they may overlap, be empty or reach past the keys.
        """
        return cls._covered(size, query, start.clip(0, size[1]), stop.clip(0, size[1]), 1)

    @classmethod
    def of_cells(cls, cells: NDArray[np.bool_]) -> KeptSpans:
        """The spans of cells ``[Q, K]`` to keep."""
        edges = np.diff(cells.astype(np.int8), axis=1, prepend=0, append=0)
        query, start = np.nonzero(edges == 1)
        begin = np.searchsorted(query, np.arange(len(cells) + 1))
        return cls(cells.shape[1], begin, start, np.nonzero(edges == -1)[1])

    @classmethod
    def everything(cls, size: tuple[int, int]) -> KeptSpans:
        """All keys for every query, ``size`` of them."""
        queries, keys = size
        return cls.union(size, np.arange(queries), np.zeros(queries, np.int64), np.full(queries, keys))

    @property
    def queries(self) -> int:
        """How many queries there are."""
        return len(self.begin) - 1

    def up_to(self, stop: Integers) -> KeptSpans:
        """Without the keys from ``stop`` ``[Q]`` of each query on."""
        size = self.queries, self.keys
        return KeptSpans.union(size, self._query(), self.start, np.minimum(self.stop, stop[self._query()]))

    def cells(self, queries: slice = slice(None)) -> NDArray[np.bool_]:
        """Bool ``[Q, K]``: the cells of some queries."""
        chosen = range(self.queries)[queries]
        steps = np.zeros((len(chosen), self.keys + 1), np.int8)
        for row, query in enumerate(chosen):
            own = slice(self.begin[query], self.begin[query + 1])
            steps[row, self.start[own]] = 1
            steps[row, self.stop[own]] = -1
        return steps[:, :-1].cumsum(1) > 0

    def blocks(self, side: int) -> tuple[Integers, NDArray[np.int32], NDArray[np.uint16]]:
        """Blocks of ``side`` neighbouring queries, at most 16, with the keys that any of them keeps.

        Returns
        -------
        counts : int64 ``[blocks]``, how many keys each has.
        columns : int32 ``[columns]``, the keys, ascending in each block.
        bits : uint16 ``[columns]``, bit r says whether query r of the block keeps the key.
        """
        query = self._query()
        # A query's spans do not overlap, so adding and subtracting its bit at their ends gives who keeps a key.
        block, place, bits = _levels(query // side, self.start, self.stop, np.int64(1) << query % side)
        kept = np.flatnonzero(bits)
        # The last place of a block has no bits, so the next place is of the same block.
        lengths = place[kept + 1] - place[kept]
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        shift = (place[kept] - (ends - lengths)).astype(np.int32)
        columns = np.arange(total, dtype=np.int32) + np.repeat(shift, lengths)
        ends_of_blocks = np.searchsorted(block[kept], np.arange(-(-self.queries // side)), side="right")
        counts = np.diff(np.concatenate([[0], ends])[ends_of_blocks], prepend=0)
        return counts, columns, np.repeat(bits[kept].astype(np.uint16), lengths)

    @classmethod
    def intersection(cls, parts: Sequence[KeptSpans]) -> KeptSpans:
        """What all of several rules for the same queries and keys keep."""
        return cls._of_parts(parts, len(parts))

    @classmethod
    def any_of(cls, parts: Sequence[KeptSpans]) -> KeptSpans:
        """What any of several rules for the same queries and keys keeps."""
        return cls._of_parts(parts, 1)

    @classmethod
    def _of_parts(cls, parts: Sequence[KeptSpans], times: int) -> KeptSpans:
        if len(parts) == 1:
            return parts[0]
        query, start, stop = (
            np.concatenate(each)
            for each in zip(*((part._query(), part.start, part.stop) for part in parts), strict=True)
        )
        return cls._covered((parts[0].queries, parts[0].keys), query, start, stop, times)

    @classmethod
    def _covered(cls, size: tuple[int, int], query: Integers, start: Integers, stop: Integers, times: int) -> KeptSpans:
        """Where at least so many of the spans lie above each other."""
        full = start < stop
        query, place, level = _levels(query[full], start[full], stop[full], np.ones(int(full.sum()), np.int64))
        covered = level >= times
        # Every query ends at level 0, so that the change from the query before it is never one within it.
        change = np.diff(covered.astype(np.int8), prepend=0)
        begin = np.searchsorted(query[change == 1], np.arange(size[0] + 1))
        return cls(size[1], begin, place[change == 1], place[change == -1])

    def _query(self) -> Integers:
        """The query of each span."""
        return np.repeat(np.arange(self.queries), np.diff(self.begin))


def _levels(group: Integers, start: Integers, stop: Integers, weight: Integers) -> tuple[Integers, Integers, Integers]:
    """The sum of the weights of the spans that lie above each other, at every place of a group where it may change.

    Returns
    -------
    group, place, level : int64 ``[places]``, ordered by group and place; the level holds from the place on, and the
        last one of a group is 0.
    """
    groups, places = np.concatenate([group, group]), np.concatenate([start, stop])
    order = np.lexsort((places, groups))
    groups, places = groups[order], places[order]
    levels = np.cumsum(np.concatenate([weight, -weight])[order])
    last = np.ones(len(order), dtype=bool)
    last[:-1] = (np.diff(groups) != 0) | (np.diff(places) != 0)
    return groups[last], places[last], levels[last]
