"""Whole attention matrices of a few examples, chosen by chance and within a fixed budget."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..core.call import Call
from ..core.site import Site
from ..errors import ArtefactError, ParameterError
from .base import SiteStat, finite, register

_PREFIX = "example-"


@register("sample")
@dataclass(eq=False)
class Sample(SiteStat):
    """The attention ``[H, n, m]`` of up to ``count`` examples at every site, cut to the real queries and keys.

    Examples are numbered as they come. Every number has a priority, a hash of ``seed`` and the number, and the
    examples with the smallest priorities are kept: the choice depends on neither the batch size nor the total.
    In generation every step counts as an example.

    Parameters
    ----------
    count : how many examples to keep.
    seed : another seed chooses other examples.
    first : number of the first example. Parts of a data set that are merged later must not share numbers, so give
        each the number of examples before it; then the merged sample is the sample of the whole.
    """

    free: ClassVar[frozenset[str]] = frozenset({"first"})
    count: int = 8
    seed: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ParameterError(f"Sample(count={self.count}) would keep nothing; give at least 1.")

    def empty(self, heads: int) -> dict[str, Tensor]:
        """See :meth:`SiteStat.empty`."""
        return {"seen": torch.zeros((), dtype=torch.int64)}

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`; one example at a time, so that little memory is needed."""
        kept = self.record(call.site, call.heads).tensors
        for example in range(tensor.shape[0]):
            number = self.first + int(kept["seen"])
            kept["seen"] += 1
            numbers = [*_numbers(kept), number]
            if len(numbers) > self.count:
                last = max(numbers, key=self._priority)
                if last == number:
                    continue
                del kept[f"{_PREFIX}{last}"]
            kept[f"{_PREFIX}{number}"] = self.part(tensor, call, example).clone().cpu()

    def part(self, tensor: Tensor, call: Call, example: int) -> Tensor:
        """What is kept of an example of a call: its matrices ``[H, n, m]``."""
        one = call.for_example(example)
        valid = one.valid[0].expand(tensor.shape[1:])
        weights = finite(tensor[example], valid.to(tensor.device), call.site)
        return weights[:, one.queries[0].to(tensor.device)][:, :, one.keys[0].to(tensor.device)]

    @property
    def examples(self) -> list[int]:
        """The numbers of the kept examples."""
        return sorted({number for record in self.records.values() for number in _numbers(record.tensors)})

    def matrices(self, site: Site | str) -> dict[int, Tensor]:
        """What is kept of a site by example number: ``[heads watched, n, m]`` in the model's dtype."""
        tensors = self.of(site).tensors
        return {number: tensors[f"{_PREFIX}{number}"] for number in sorted(_numbers(tensors))}

    def merge(self, other: Self) -> Self:
        """Keep the examples with the smallest priorities of both; refuses samples that share example numbers."""
        for name in self.records.keys() & other.records.keys():
            shared = set(_numbers(self.records[name].tensors)) & set(_numbers(other.records[name].tensors))
            if shared:
                raise ArtefactError(
                    f"Both samples hold an example number {min(shared)}; measure each part of the data with "
                    "Sample(first=...), the number of examples before it."
                )
        super().merge(other)
        for record in self.records.values():
            for number in sorted(_numbers(record.tensors), key=self._priority)[self.count :]:
                del record.tensors[f"{_PREFIX}{number}"]
        return self

    def _priority(self, number: int) -> bytes:
        return hashlib.blake2b(f"{self.seed} {number}".encode(), digest_size=8).digest()


def _numbers(tensors: dict[str, Tensor]) -> list[int]:
    return [int(name.removeprefix(_PREFIX)) for name in tensors if name.startswith(_PREFIX)]
