"""Whole attention matrices of a few examples, chosen by chance and within a fixed budget."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..core.call import Call
from ..core.charts import Chart, Column, Matrix, Pattern, Table, file_name
from ..core.site import Site
from ..errors import ArtefactError, DataError, ParameterError
from .base import SiteStat, finite, register
from .display import token_label

_PREFIX, _QUERIES, _KEYS = "example-", "queries-", "keys-"
_DECODER_INPUTS = "decoder_input_ids"


@dataclass(eq=False)
class Following:
    """Part of a stat that wants the tokens: an attention call does not know them, but the batch does."""

    _batch: Mapping[str, Any] = field(default_factory=dict, init=False, repr=False)

    def begin(self, batch: Mapping[str, Any]) -> None:
        """See :meth:`Stat.begin`."""
        self._batch = batch

    def stream_tokens(self, stream: str) -> Tensor | None:
        """The tokens ``[B, N]`` of a sequence of the batch; None where it has none, as for regions and patches."""
        if stream == "vision":
            return None
        decoding = stream == "decoder" and _DECODER_INPUTS in self._batch
        return self._batch.get(_DECODER_INPUTS if decoding else "input_ids")

    def tokens(self, call: Call, examples: int, queries: int) -> Tensor:
        """The tokens ``[B, Q]`` of the queries, -1 for parts of an image; refuses queries that are neither."""
        stream, name = call.site.streams[0], type(self).__name__
        tokens = self.stream_tokens(stream)
        batch = examples if call.batch is None else call.batch
        if tokens is None and stream == "vision" and "input_ids" in self._batch:
            return torch.full((examples, queries), -1)
        if tokens is None:
            raise DataError(f"{name} does not know the tokens; use attrim.measure with batches that have input_ids.")
        if "visual_embeds" in self._batch:  # one sequence: the text, then the regions
            tokens = torch.nn.functional.pad(tokens, (0, self._batch["visual_embeds"].shape[1]), value=-1)
        if tokens.shape != (batch, queries):
            raise DataError(
                f"The queries at {call.site.name!r} are not the tokens of the batch ({queries} against "
                f"{tokens.shape[-1]}), so they have no names; measure {name} elsewhere with select."
            )
        return tokens[call.first : call.first + examples]


@register("sample")
@dataclass(eq=False)
class Sample(Following, SiteStat):
    """The attention ``[H, n, m]`` of up to ``count`` examples at every site, cut to the real queries and keys.

    Where :func:`attrim.measure` gives batches with ``input_ids``, the tokens of the examples are kept, too.

    Examples are numbered as they come. Every number has a priority, a hash of ``seed`` and the number, and the
    examples with the smallest priorities are kept: the choice depends on neither the batch size nor the total.
    In generation every step counts as an example.

    Parameters
    ----------
    count : how many examples to keep.
    numbers : keep the examples with these numbers, in place of ``count`` by chance.
    seed : another seed chooses other examples.
    first : number of the first example. Parts of a data set that are merged later must not share numbers, so give
        each the number of examples before it; then the merged sample is the sample of the whole.
    """

    free: ClassVar[frozenset[str]] = frozenset({"first"})
    count: int = 8
    seed: int = 0
    first: int = 0
    numbers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count < 1:
            raise ParameterError(f"Sample(count={self.count}) would keep nothing; give at least 1.")
        self.numbers = tuple(sorted(set(self.numbers)))
        if self.numbers and self.numbers[0] < 0:
            raise ParameterError(f"Examples are numbered from 0; there is no example {self.numbers[0]}.")

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
            if self.numbers and number not in self.numbers:
                continue
            if not self.numbers and len(numbers) > self.count:
                last = max(numbers, key=self._priority)
                if last == number:
                    continue
                _drop(kept, last)
            kept[f"{_PREFIX}{number}"] = self.part(tensor, call, example).contiguous().cpu()
            kept |= {f"{side}{number}": tokens for side, tokens in self.example_tokens(tensor, call, example).items()}

    def part(self, tensor: Tensor, call: Call, example: int) -> Tensor:
        """What is kept of an example of a call: its matrices ``[H, n, m]``."""
        one = call.for_example(example)
        weights, valid = tensor[example], one.valid[0].to(tensor.device)
        for axis, real in ((1, one.queries[0]), (2, one.keys[0])):
            weights, valid = (_chosen(cells, axis, real.to(tensor.device)) for cells in (weights, valid))
        return finite(weights, valid, call.site)

    def example_tokens(self, tensor: Tensor, call: Call, example: int) -> dict[str, Tensor]:
        """The tokens of the real queries and keys of an example, as far as the batch knows them."""
        one = call.for_example(example)
        batch = tensor.shape[0] if call.batch is None else call.batch
        sides = ((_QUERIES, call.site.streams[0], one.queries), (_KEYS, call.site.streams[1], one.keys))
        found = {}
        for axis, (side, stream, real) in enumerate(sides, 2):
            tokens = self.stream_tokens(stream)
            if tokens is not None and tokens.shape == (batch, tensor.shape[axis]):
                found[side] = tokens[call.first + example].cpu()[real[0].cpu()].to(torch.int64)
        return found

    def names(self, site: Site | str, number: int, tokenizer: Any = None) -> tuple[list[str], list[str]]:
        """The tokens of an example's queries and keys at a site as texts; empty where they are not known."""
        tensors = self.of(site).tensors
        queries, keys = (tensors.get(f"{side}{number}", torch.zeros(0)).tolist() for side in (_QUERIES, _KEYS))
        return [token_label(tokenizer, token) for token in queries], [token_label(tokenizer, token) for token in keys]

    def tokens_kept(self) -> set[int]:
        """Every token of the kept examples, where they are known."""
        sides = (_QUERIES, _KEYS)
        return {
            int(token)
            for record in self.records.values()
            for name, tokens in record.tensors.items()
            if name.startswith(sides)
            for token in tokens.unique()
        }

    @property
    def seen(self) -> int:
        """How many examples there were."""
        return max((int(record.tensors["seen"]) for record in self.records.values()), default=0)

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
            most = len(self.numbers) or self.count
            for number in sorted(_numbers(record.tensors), key=self._priority)[most:]:
                _drop(record.tensors, number)
        return self

    def tables(self, tokenizer: Any = None) -> list[Table]:
        """The kept examples, how long they are at the sites of every role, and their largest weight there."""
        del tokenizer
        columns = [Column("example"), Column("role"), Column("sites"), Column("queries", "count")]
        columns += [Column("keys", "count"), Column("largest weight", "number", 3), Column("zeros", "percent", 1)]
        rows = []
        for number in self.examples:
            for role in dict.fromkeys(site.role for site in self.sites):
                kept = [self.matrices(site).get(number) for site in self.sites if site.role == role]
                known = [one.float() for one in kept if one is not None and one.numel()]
                if known:
                    largest, zeros = max(float(one.max()) for one in known), sum(int((one == 0).sum()) for one in known)
                    shape = known[0].shape[1:]
                    rows.append([number, role, len(known), *shape, largest, zeros / sum(one.numel() for one in known)])
        return [Table("sample", "The examples whose attention was kept", columns=columns, rows=rows)]

    def charts(self, tokenizer: Any = None) -> list[Chart]:
        """The attention of the first kept example at every site, each head on a scale of its own."""
        return [chart for site in self.sites for chart in self.site_charts(site, tokenizer)[1:2]]

    def site_charts(
        self, site: Site, tokenizer: Any = None, example: int | None = None, bar: float = 5e-4
    ) -> list[Chart]:
        """The attention of one example at a site: as it is, each head on a scale of its own, and above the bar.

        Parameters
        ----------
        tokenizer : gives the tokens of queries and keys their names, where they were kept.
        example : its number; by default the first that is kept.
        bar : the titles say which share is not above it.
        """
        kept = self.matrices(site)
        number = next(iter(kept)) if example is None else example
        if number not in kept:
            known = ", ".join(map(str, kept))
            raise ParameterError(f"Example {number} was not kept at {site.name!r}; kept are {known}.")
        heads = kept[number].float()
        # The first has the plain name; files of several examples must not overwrite each other.
        place = (site.role, site.layer, *(() if number == next(iter(kept)) else (f"example-{number}",)))
        queries, keys = self.names(site, number, tokenizer)
        common: dict[str, Any] = {
            "matrices": [
                Matrix(
                    matrix,
                    f"head {head}: {matrix.min():.2g} to {matrix.max():.2g}, "
                    f"{100 * (matrix <= bar).float().mean():.0f} % ≤ {bar:g}",
                )
                for head, matrix in zip(self.of(site).heads, heads, strict=True)
            ],
            "queries": queries,
            "keys": keys,
            "x_label": f"key, {site.role} layer {site.layer}, example {number}",
        }
        return [
            Pattern(file_name("matrices", *place), low=0.0, high=1.0, **common),
            Pattern(file_name("matrices-own-scale", *place), scale="root", **common),
            Pattern(file_name("matrices-above-bar", *place), scale="above", bar=bar, **common),
        ]

    def _priority(self, number: int) -> bytes:
        return hashlib.blake2b(f"{self.seed} {number}".encode(), digest_size=8).digest()


def _chosen(cells: Tensor, axis: int, real: Tensor) -> Tensor:
    """The entries of an axis where ``real`` is true: a view where they are neighbours, a copy otherwise."""
    if bool(real.all()):
        return cells
    chosen = real.nonzero().flatten()
    size = len(chosen)
    first = int(chosen[0]) if size else 0
    if size == 0 or int(chosen[-1]) - first == size - 1:
        return cells.narrow(axis, first, size)
    return cells.index_select(axis, chosen)


def _drop(tensors: dict[str, Tensor], number: int) -> None:
    for part in (_PREFIX, _QUERIES, _KEYS):
        tensors.pop(f"{part}{number}", None)


def _numbers(tensors: dict[str, Tensor]) -> list[int]:
    return [int(name.removeprefix(_PREFIX)) for name in tensors if name.startswith(_PREFIX)]
