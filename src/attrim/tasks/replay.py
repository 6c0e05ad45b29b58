"""Batches that can be gone through several times, tokenised once as far as memory allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from .batching import Batch

# Bytes of batches that are kept for the next pass.
BUDGET = 256 * 2**20


class Replay:
    """Repeat a stream of batches; the first ones are kept up to ``budget`` bytes, the rest are made again each time.

    Parameters
    ----------
    source : makes the stream anew; must give the same batches every time.
    """

    def __init__(self, source: Callable[[], Iterable[Batch]], budget: int = BUDGET) -> None:
        self._source = source
        self._room = budget
        self._kept: list[Batch] = []
        self._complete = False

    def __iter__(self) -> Iterator[Batch]:
        done = len(self._kept)
        yield from self._kept[:done]
        if self._complete:
            return
        for batch in islice(self._source(), done, None):
            size = sum(tensor.nbytes for tensor in batch.inputs.values())
            if done == len(self._kept) and size <= self._room:
                self._room -= size
                self._kept.append(batch)
            done += 1
            yield batch
        self._complete = done == len(self._kept)
