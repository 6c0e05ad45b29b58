"""Batches that can be gone through several times, tokenised once as far as memory allows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice

import torch

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
        self._rest: Iterator[Batch] | None = None

    def first(self) -> Batch:
        """Return the first batch; nothing is made twice for it."""
        stream = iter(self)
        batch = next(stream)
        stream.close()
        return batch

    def __iter__(self) -> Generator[Batch]:
        done = 0
        while done < len(self._kept):
            yield self._kept[done]
            done += 1
        if self._complete:
            return
        stream = self._rest or islice(iter(self._source()), done, None)
        self._rest = None
        try:
            while (batch := _next(stream)) is not None:
                size = sum(tensor.nbytes for tensor in (*batch.inputs.values(), *batch.targets.values()))
                if done == len(self._kept) and size <= self._room:
                    self._room -= size
                    self._kept.append(batch)
                done += 1
                yield batch
            self._complete = done == len(self._kept)
        finally:
            if done == len(self._kept):
                self._rest = stream  # whoever comes next goes on from here


def _next(stream: Iterator[Batch]) -> Batch | None:
    """The next batch, made of ordinary tensors in an evaluation too, so that later passes can have gradients."""
    with torch.inference_mode(False):
        return next(stream, None)
