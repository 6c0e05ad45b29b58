"""Which cells of an attention call count, as one span of keys a query, and how to cut the call into small blocks."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

CELLS = 1 << 20
"""Cells a block may have: 4 MiB of float32 scores, which stay in the processor's cache until they are counted."""

Structure = Literal["whole", "causal"]
"""All queries may see all keys, or every query itself and the keys before it, as torch's SDPA knows without a mask."""


class _Ends(NamedTuple):
    start: Tensor
    stop: Tensor


class Edges(_Ends):
    """The first allowed key of every query and the one after the last, int64 ``[B|1, Q]``; equal where it has none.

    What follows from them is found out once, because all layers of a pass have the same.
    """

    @functools.cached_property
    def _known(self) -> dict[tuple[str, int], Any]:
        return {}

    @functools.cached_property
    def ahead(self) -> bool:
        """Whether some query may see a key after its own position, where the first query is at the first key."""
        after_own = torch.arange(1, self.stop.shape[-1] + 1, device=self.stop.device)
        return bool((self.stop > after_own).any())

    def structure(self, keys: int) -> Structure | None:
        """What spans of ``keys`` keys are; None where they are something else, such as padding."""
        name = "structure", keys
        if name not in self._known:
            self._known[name] = self._find_structure(keys)
        found: Structure | None = self._known[name]
        return found

    def _find_structure(self, keys: int) -> Structure | None:
        if bool(self.start.any()):
            return None
        if bool((self.stop == keys).all()):
            return "whole"
        queries = self.stop.shape[-1]
        # With fewer queries than keys, SDPA takes the first query to be at the first key.
        causal = queries == keys and bool((self.stop == torch.arange(1, keys + 1, device=self.stop.device)).all())
        return "causal" if causal else None

    def of_batch(self, batch: int) -> tuple[Tensor, Tensor]:
        """Start and stop for every example, int64 ``[batch, Q]``, contiguous."""
        name = "batch", batch
        if name not in self._known:
            with torch.inference_mode(False):
                self._known[name] = tuple(edge.expand(batch, -1).contiguous() for edge in self)
        found: tuple[Tensor, Tensor] = self._known[name]
        return found


@dataclass(frozen=True)
class Spans:
    """The allowed keys of every query: ``start <= key < stop``, the same for all heads.

    Attributes
    ----------
    start, stop : int64 ``[B, Q]``; equal where a query may attend to nothing.
    counted : bool ``[B, Q]``, the queries that stats count.
    """

    start: Tensor
    stop: Tensor
    counted: Tensor

    @classmethod
    def of(cls, edges: Edges, queries: Tensor, batch: int) -> Spans:
        """The spans of a whole batch from its mask's edges ``[B|1, Q]`` and its real queries, bool ``[B|1, Q]``."""
        start, stop = edges
        counted = (start < stop) & queries
        return cls(start.expand(batch, -1), stop.expand(batch, -1), counted.expand(batch, -1))

    def of_examples(self, examples: slice) -> Spans:
        """The spans of some examples of the batch."""
        return Spans(self.start[examples], self.stop[examples], self.counted[examples])

    def covers(self, keys: int) -> bool:
        """Whether all queries may attend to all of so many keys."""
        return not bool(self.start.any()) and bool((self.stop == keys).all())


def find_edges(allowed: Tensor) -> Edges | None:
    """The spans of allowed cells ``[B|1, H|1, Q, K]``; None where heads differ or the keys of a query have gaps."""
    if allowed.shape[1] != 1:
        return None
    cells = unrepeated(allowed[:, 0]).expand(-1, -1, allowed.shape[-1]).view(torch.uint8)
    found = []
    # Some queries at a time, because the copy that is turned round would be as large as the mask.
    for part in cells.split(max(1, CELLS // max(1, len(cells) * cells.shape[-1])), dim=1):
        # Torch adds bytes up as 32 bits many times as fast as 64.
        size, start = part.sum(-1, dtype=torch.int32), part.argmax(-1)
        stop = torch.where(size > 0, part.shape[-1] - part.flip(-1).argmax(-1), start)
        if not torch.equal(stop - start, size.long()):
            return None
        found.append((start, stop))
    starts, stops = zip(*found, strict=True)
    shape = len(allowed), allowed.shape[2]
    return Edges(torch.cat(starts, 1).expand(shape).contiguous(), torch.cat(stops, 1).expand(shape).contiguous())


def causal_edges(length: int, device: torch.device) -> Edges:
    """The spans of a text whose queries see themselves and the keys before them."""
    stop = torch.arange(1, length + 1, device=device)[None]
    return Edges(torch.zeros_like(stop), stop)


def unrepeated(tensor: Tensor) -> Tensor:
    """A view of an expanded tensor with one entry on each axis along which it only repeats itself."""
    for axis, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


@dataclass(frozen=True)
class Block:
    """A part of a call: examples, heads and queries, and the keys that any of these queries may attend to."""

    examples: slice
    heads: slice
    queries: slice
    keys: slice
    full: bool  # whether every query of the block may attend to all of these keys

    @property
    def cells(self) -> int:
        """How many weights the block has."""
        sizes = (part.stop - part.start for part in (self.examples, self.heads, self.queries, self.keys))
        return math.prod(sizes)


def blocks(spans: Spans, heads: int, cells: int = CELLS) -> Iterator[Block]:
    """Cut a call into blocks of at most ``cells`` cells: a few heads of many examples, or a part of a long example.

    Many examples to a head are better than many heads to an example, because the head's sums then stay in cache.
    """
    batch, queries = spans.start.shape
    few = min(heads, torch.get_num_threads())  # a head for each thread
    first, after = spans.start.amin(1).tolist(), spans.stop.amax(1).tolist()
    example = 0
    while example < batch:
        keys = slice(first[example], after[example])
        last = example + 1
        while last < batch:
            wider = slice(min(keys.start, first[last]), max(keys.stop, after[last]))
            if (last + 1 - example) * few * queries * (wider.stop - wider.start) > cells:
                break
            keys, last = wider, last + 1
        yield from _cut(spans, slice(example, last), heads, keys, cells)
        example = last


def _cut(spans: Spans, examples: slice, heads: int, keys: slice, cells: int) -> Iterator[Block]:
    """The blocks of some examples; heads are cut before queries, so that a head's sums stay in cache."""
    batch, queries = examples.stop - examples.start, spans.start.shape[1]
    width = max(keys.stop - keys.start, 1)
    some_heads = min(heads, max(1, cells // (batch * queries * width)))
    some_queries = min(queries, max(1, cells // (batch * some_heads * width)))
    whole = (spans.start[examples] == keys.start) & (spans.stop[examples] == keys.stop)
    for head in range(0, heads, some_heads):
        for query in range(0, queries, some_queries):
            rows = slice(query, min(query + some_queries, queries))
            full = bool(whole[:, rows].all())
            yield Block(examples, slice(head, min(head + some_heads, heads)), rows, keys, full)
