"""Remove fixed cells of attention before the softmax (Attention Pruning, https://arxiv.org/abs/2012.02030)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from ..core.call import Call
from ..errors import ParameterError
from .base import Edit, register
from .persite import at_heads, at_site, check_matrices
from .positions import gather

Unseen = Literal["keep", "prune"]


@register("mask")
@dataclass(frozen=True, eq=False)
class Mask(Edit):
    """Remove cells, the same for every input, and let the softmax share their mass among the rest.

    A row with nothing left gives zeros (https://arxiv.org/abs/2012.02030 leaves that case to the implementation).

    Parameters
    ----------
    cells : bool ``[H|1, N, M]`` for all sites, or a dict from site name to such; True is removed. Row and column are
        the positions of query and key in their own texts, whatever the padding and the cache.
    unseen : whether cells outside of the stored size are kept or pruned.
    """

    cells: Tensor | Mapping[str, Tensor]
    unseen: Unseen = "keep"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_matrices(self.cells, "cells", boolean=True)
        if self.unseen not in get_args(Unseen):
            raise ParameterError(f"unseen must be 'keep' or 'prune', not {self.unseen!r}.")

    def edit_scores(self, scores: Tensor, call: Call) -> Tensor:
        """Scores ``[B, H, Q, K]`` with ``-inf`` on removed cells."""
        cells = at_heads(at_site(self.cells, call.site, "mask"), call, 0, "mask").to(scores.device)
        return mask(scores, gather(cells, call.query_slots(), call.key_slots(), fill=self.unseen == "prune"))


def mask(scores: Tensor, cells: Tensor) -> Tensor:
    """Scores ``[B, H, Q, K]`` with ``-inf`` where the bool tensor ``cells`` ``[B|1, H|1, Q, K]`` is True."""
    return scores.masked_fill(cells, float("-inf"))
