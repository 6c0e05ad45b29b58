"""Which weights share a codebook: those of a row, of a head or of a layer, never of two examples, never padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .base import Method, named
from .codebook import Codebook, Scope
from .rounding import round_up

AXES: dict[Scope, int] = {"layer": 1, "head": 2, "row": 3}
"""How many leading axes of weights ``[B, H, Q, K]`` number the groups."""


@dataclass(frozen=True)
class Groups:
    """The weights of every group from the smallest to the largest.

    Attributes
    ----------
    ranked : ``[G, N]``, the weights that count in growing order, then infinity.
    counts : int64 ``[G]``, how many count.
    """

    ranked: Tensor
    counts: Tensor

    @classmethod
    def of(cls, weights: Tensor, valid: Tensor, scope: Scope) -> Groups:
        """The groups of weights ``[B, H, Q, K]``; only the cells of the bool tensor ``valid`` (same axes) count."""
        wide = weights.detach().to(torch.promote_types(weights.dtype, torch.float32))
        valid = valid.expand_as(wide)
        inner = AXES[scope] - 1  # the axis that becomes that of the groups
        filled = wide.masked_fill(~valid, float("inf")).flatten(0, inner).flatten(1)
        return cls(filled.sort(-1).values, valid.flatten(0, inner).flatten(1).sum(-1))

    def below(self, edges: Tensor) -> Tensor:
        """Int64 ``[G, E]``: how many weights are below each edge (float64 ``[G, E]`` or ``[E]``)."""
        exact = round_up(edges.to(self.ranked.device), self.ranked.dtype)
        found = torch.searchsorted(self.ranked, exact.expand(len(self.ranked), -1).contiguous())
        return torch.minimum(found, self.counts[:, None])

    def at(self, places: Tensor) -> Tensor:
        """Float64 ``[G, P]``: the weights at places ``[G, P]`` of the order; infinity from the end on."""
        found = self.ranked.gather(1, places.clamp(0, self.ranked.shape[1] - 1)).double()
        return found.masked_fill(places >= self.counts[:, None], float("inf"))

    def largest(self) -> Tensor:
        """Float64 ``[G]``: the largest weight, 0 where there is none."""
        return self.at(self.counts[:, None] - 1)[:, 0].masked_fill(self.counts == 0, 0.0)

    def means(self, edges: Tensor) -> Tensor:
        """Float64 ``[G, E]``: the mean of the weights from each edge to the next; the edge where there are none."""
        places = torch.cat([self.below(edges), self.counts[:, None]], -1)
        sums = torch.nn.functional.pad(self.ranked.nan_to_num(posinf=0.0).cumsum(-1, dtype=torch.float64), (1, 0))
        total, count = sums.gather(1, places).diff(dim=-1), places.diff(dim=-1)
        # Rounding must not carry a mean past the weights that it stands for.
        mean = torch.maximum(total / count.clamp_min(1), self.at(places[:, :-1]))
        mean = torch.minimum(mean, self.at(places[:, 1:] - 1))
        return torch.where(count > 0, mean, edges.nan_to_num(posinf=0.0))


def fit_groups(method: Method, weights: Tensor, valid: Tensor, scope: Scope, options: dict[str, Any]) -> Codebook:
    """The codebooks of a grouped method for weights ``[B, H, Q, K]``, as one with leading axes."""
    edges, values = method.build(Groups.of(weights, valid, scope), **options)
    axes = AXES[scope]
    shape = (*weights.shape[:axes], *[1] * (3 - axes), -1)
    book = Codebook(edges.view(shape), values.view(shape))
    return named(book, method.registered_name, options.get("bits"), scope)
