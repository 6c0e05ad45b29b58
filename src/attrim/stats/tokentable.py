"""How sparse each row of a few single examples is (Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..call import Call
from ..errors import DataError
from .base import register
from .following import Following
from .sample import Sample
from .sitewise import finite


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


@register("token-table")
@dataclass(eq=False)
class TokenTable(Following, Sample):
    """For every token of a few examples, how many weights of its row are not above a bar, over all heads and layers.

    Which examples are kept is said in :class:`~attrim.stats.sample.Sample`. An attention call does not know the tokens,
    so this needs :func:`attrim.measure` and batches with ``input_ids``.

    Parameters
    ----------
    bar : a weight that is not above it counts as zero.
    """

    bar: float = 1e-8

    def part(self, tensor: Tensor, call: Call, example: int) -> Tensor:
        """Int64 ``[n, 3]``: token, small weights and weights of every real query."""
        tokens = self.tokens(call, tensor.shape[0], tensor.shape[2])[example]
        one = call.for_example(example)
        valid = one.valid[0].expand(tensor.shape[1:])
        weights = finite(tensor[example], valid, call.site)
        small, sizes = ((weights <= self.bar) & valid).sum((0, 2)), valid.sum((0, 2))
        rows = torch.stack([tokens.to(sizes.device), small, sizes], -1)
        return rows[one.queries[0].to(rows.device)]

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
