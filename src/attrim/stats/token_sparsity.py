"""How sparse the attention of single tokens is: over all occurrences of a token, and in the texts of a few examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.call import Call
from ..core.charts import Axis, Bars, Chart, Column, Curve, Group, Reference, Series, Table, TokenStrip, file_name
from ..core.site import Site
from ..errors import DataError, ParameterError
from ..kernels.described import describe
from .base import SiteStat, finite, register
from .display import WEIGHT, token_label
from .integers import grown, lasting_zeros
from .sample import Following, Sample

NAMED = 6
"""Curves of tokens with a colour and a name; the others are grey."""


@register("token-sparsity")
@dataclass(eq=False)
class TokenSparsity(Following, SiteStat):
    """For each token of the vocabulary, how many weights of its query rows are not above some bars, over all heads.

    An attention call does not know the tokens, so this needs :func:`attrim.measure` and batches with ``input_ids``.
    Rows of regions and patches of an image are not counted.

    Parameters
    ----------
    bars : a weight that is not above a bar counts as zero; several bars give a cumulative curve.
    """

    bars: Sequence[float] = (1e-8,)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bars = tuple(self.bars)
        if not self.bars:
            raise ParameterError("TokenSparsity has no bar; give at least one.")

    def empty(self, heads: int) -> dict[str, Tensor]:
        """See :meth:`SiteStat.empty`."""
        return {name: lasting_zeros(rows, 0) for name, rows in (("small", len(self.bars)), ("weights", 1), ("rows", 1))}

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`."""
        kept = self.record(call.site, call.heads).tensors
        tokens = self.tokens(call, tensor.shape[0], tensor.shape[2])
        valid = call.valid.expand(tensor.shape[0], -1, -1, -1)
        found = [small_cells(one, chosen, call.site, self.bars) for one, chosen in zip(tensor, valid, strict=True)]
        small = torch.stack([cells for cells, _ in found]).flatten(0, 1).T  # [bars, B Q]
        sizes = torch.stack([cells for _, cells in found]).flatten()  # [B Q]
        facts = {"small": small, "weights": sizes[None], "rows": (sizes > 0).long()[None]}
        numbers = tokens.flatten().cpu()
        named = numbers >= 0
        numbers = numbers[named]
        largest = int(numbers.max()) if len(numbers) else -1
        for name, values in facts.items():
            size = [len(values), max(largest + 1, kept[name].shape[1])]
            kept[name] = grown(kept[name], size)
            kept[name].scatter_add_(1, numbers.expand(len(values), -1), values.cpu()[:, named])

    def totals(self) -> dict[str, Tensor]:
        """Int64 over all sites: ``small`` weights ``[bars, tokens]``, all ``weights`` and ``rows`` ``[tokens]``.

        Rows are those of one site: how often the token occurs.
        """
        if not self.records:
            raise DataError("TokenSparsity has watched nothing yet; run attrim.measure first.")
        every = [record.tensors for record in self.records.values()]
        size = max(tensors["rows"].shape[1] for tensors in every)
        wide = {
            name: torch.stack([grown(tensors[name], [len(tensors[name]), size]) for tensors in every])
            for name in ("small", "weights", "rows")
        }
        return {"small": wide["small"].sum(0), "weights": wide["weights"].sum(0)[0], "rows": wide["rows"].amax(0)[0]}

    def most_frequent(self, count: int = 70) -> list[tuple[int, int, list[float]]]:
        """Number, rows and sparsity at each bar of the tokens that have the most rows, most frequent first."""
        totals = self.totals()
        order = totals["rows"].argsort(descending=True, stable=True)[:count].tolist()
        shares = (totals["small"].double() / totals["weights"]).T
        return [
            (token, int(totals["rows"][token]), shares[token].tolist()) for token in order if totals["rows"][token] > 0
        ]

    def overall(self) -> list[float]:
        """The sparsity of all rows at each bar."""
        totals = self.totals()
        share: list[float] = (totals["small"].sum(1).double() / totals["weights"].sum()).tolist()
        return share

    def tables(self, tokenizer: Any = None) -> list[Table]:
        """The most frequent tokens, the sparsest first."""
        columns = [Column("token"), Column("rows", "count"), Column(f"≤ {self.bars[-1]:g}", "percent", 2)]
        frequent = sorted(self.most_frequent(), key=lambda item: -item[2][-1])
        rows = [[token_label(tokenizer, token), count, shares[-1]] for token, count, shares in frequent]
        return [Table("tokens", "How sparse the rows of frequent tokens are", columns=columns, rows=rows, detail=True)]

    def charts(self, tokenizer: Any = None) -> list[Chart]:
        """The sparsity of frequent tokens at the last bar and, where there are several bars, as curves."""
        found: list[Chart] = [self.sparsity_chart(tokenizer)]
        return [*found, self.curves_chart("tokens-curves", tokenizer)] if len(self.bars) > 1 else found

    def sparsity_chart(self, tokenizer: Any = None) -> Bars:
        """The sparsity of the rows of frequent tokens at the last bar, the sparsest first."""
        named = [(token_label(tokenizer, token), shares[-1]) for token, _, shares in self.most_frequent()]
        ordered = sorted(named, key=lambda item: -item[1])
        return Bars(
            "tokens-sparsity",
            groups=[Group("", [share for _, share in ordered])],
            labels=[name for name, _ in ordered],
            y=Axis(f"share of weights ≤ {self.bars[-1]:g}", low=0.0),
            references=[Reference(self.overall()[-1], "all tokens")],
        )

    def curves_chart(self, name: str, tokenizer: Any = None, bars: Sequence[float] | None = None) -> Curve:
        """The share of weights up to each bar, a curve a token; the densest and the sparsest tokens have names.

        Parameters
        ----------
        bars : some of the stat's bars (default: all).
        """
        wanted = sorted(self.bars if bars is None else bars)
        places = [self.bars.index(bar) for bar in wanted]
        curves = [
            (token_label(tokenizer, token), [shares[place] for place in places])
            for token, _, shares in self.most_frequent()
        ]
        ordered = sorted(curves, key=lambda item: sum(item[1]))
        half = min(NAMED, len(ordered)) // 2
        chosen = {*range(half), *range(len(ordered) - half, len(ordered))}
        crowd = [one for place, one in enumerate(ordered) if place not in chosen]
        named = [one for place, one in enumerate(ordered) if place in chosen]
        overall = self.overall()
        return Curve(
            name,
            series=[
                *(Series(token, wanted, shares, look="muted") for token, shares in crowd),
                *(Series(token, wanted, shares) for token, shares in named),
                Series("all tokens", wanted, [overall[place] for place in places], look="total"),
            ],
            x=Axis(WEIGHT, "log", wanted[0], wanted[-1]),
            y=Axis("share up to this value", low=0.0, high=1.0),
        )


class TokenRow(NamedTuple):
    """One query token of one example: its place, its number, and its weights in all heads (and layers)."""

    place: int
    token: int
    small: int
    weights: int

    @property
    def sparsity(self) -> float:
        """The share of its weights that are not above the bar."""
        return self.small / self.weights


def small_cells(weights: Tensor, valid: Tensor, site: Site, bars: Sequence[float]) -> tuple[Tensor, Tensor]:
    """How many weights of each query, in all heads, are not above some bars, and how many there are.

    Parameters
    ----------
    weights : ``[H, Q, K]`` of one example.
    valid : bool ``[H|1, Q, K]``, the cells that count.

    Returns
    -------
    small, sizes : int64 ``[Q, bars]`` and ``[Q]``.
    """
    facts = describe(weights, valid, site, bars=bars)
    if facts is not None and facts.small is not None:
        return facts.small.sum(0), facts.sizes.sum(0)
    valid = valid.expand(weights.shape)
    weights = finite(weights, valid, site)
    small = torch.stack([((weights.abs() <= bar) & valid).sum((0, 2)) for bar in bars], -1)
    return small, valid.sum((0, 2))


@register("token-table")
@dataclass(eq=False)
class TokenTable(Sample):
    """For every token of a few examples, how many weights of its row are not above a bar, over all heads and layers.

    Which examples are kept is said in :class:`~attrim.stats.sample.Sample`. An attention call does not know the tokens,
    so this needs :func:`attrim.measure` and batches with ``input_ids``.

    Parameters
    ----------
    bar : a weight that is not above it counts as zero.
    """

    bar: float = 1e-8

    def part(self, tensor: Tensor, call: Call, example: int) -> Tensor:
        """Int64 ``[n, 3]``: token, small weights and weights of every real query that is a token."""
        tokens = self.tokens(call, tensor.shape[0], tensor.shape[2])[example]
        one = call.for_example(example)
        small, sizes = small_cells(tensor[example], one.valid[0], call.site, [self.bar])
        found = torch.stack([tokens.to(sizes.device), small[:, 0], sizes], -1)
        return found[(one.queries[0] & (tokens >= 0).to(one.queries.device)).to(found.device)]

    def example_tokens(self, tensor: Tensor, call: Call, example: int) -> dict[str, Tensor]:
        """Nothing more than what :meth:`part` keeps."""
        return {}

    def rows(self, number: int, stream: str | None = None) -> list[TokenRow]:
        """The tokens of an example in the order of the text; :attr:`examples` has the numbers.

        Parameters
        ----------
        stream : whose queries, such as ``encoder`` (default: the first site's).
        """
        if not self.records:
            raise DataError("TokenTable has watched nothing yet; run attrim.measure first.")
        stream = stream or self.sites[0].streams[0]
        kept = [self.matrices(site)[number] for site in self.sites if site.streams[0] == stream]
        small, sizes = (torch.stack([table[:, column] for table in kept]).sum(0) for column in (1, 2))
        numbers = zip(kept[0][:, 0].tolist(), small.tolist(), sizes.tolist(), strict=True)
        return [TokenRow(place, *row) for place, row in enumerate(numbers)]

    def texts(self) -> list[tuple[str, list[TokenRow]]]:
        """The tokens of every kept example under a name for files; with its stream where a model has several."""
        streams = list(dict.fromkeys(site.streams[0] for site in self.sites if site.streams[0] != "vision"))
        return [
            (file_name("tokens-example", number, stream if len(streams) > 1 else ""), self.rows(number, stream))
            for number in self.examples
            for stream in streams
        ]

    def tables(self, tokenizer: Any = None) -> list[Table]:
        """The tokens of every kept example, the sparsest first."""
        columns = [Column("place"), Column("token"), Column("weights", "count"), Column(f"≤ {self.bar:g}", "count")]
        found = []
        for name, rows in self.texts():
            cells = [
                [row.place, token_label(tokenizer, row.token), row.weights, row.small, row.sparsity]
                for row in sorted(rows, key=lambda row: (-row.sparsity, row.place))
            ]
            title = name.replace("tokens-example-", "Tokens of example ")
            found.append(Table(name, title, columns=[*columns, Column("share", "percent", 2)], rows=cells, detail=True))
        return found

    def charts(self, tokenizer: Any = None) -> list[Chart]:
        """The text of every kept example, coloured by the sparsity of its tokens' rows."""
        label = f"share of weights ≤ {self.bar:g}"
        return [
            TokenStrip(
                name,
                tokens=[token_label(tokenizer, row.token) for row in rows],
                values=[row.sparsity for row in rows],
                label=label,
            )
            for name, rows in self.texts()
        ]
