"""Attention to near tokens and to the first ones, for texts of any length.

A window that keeps the first tokens is what streaming language models use (Xiao et al. 2023,
https://arxiv.org/abs/2309.17453), and what a learned pattern of cells has to beat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..core.call import Call
from ..errors import ParameterError
from ..kernels.rules import KeptSpans
from .base import Edit, register
from .mask import mask


@register("window")
@dataclass(frozen=True)
class Window(Edit):
    """Keep the cells whose query and key are near each other, and those of the first keys; remove the rest.

    A causal query keeps itself and the ``size - 1`` keys before it; where later keys are allowed, as many of those. In
    cross-attention near means that the positions of query and key in their own texts are.

    Parameters
    ----------
    size : how many keys on a side of the query, the query's own among them, are kept.
    first : how many keys at the beginning of the text every query keeps (https://arxiv.org/abs/2309.17453).
    """

    carried = True

    size: int
    first: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1:
            raise ParameterError(f"size must be at least 1, not {self.size}: a query keeps its own position.")
        if self.first < 0:
            raise ParameterError(f"first must not be negative, but is {self.first}.")

    def edit_scores(self, scores: Tensor, call: Call) -> Tensor:
        """Scores ``[B, H, Q, K]`` with ``-inf`` outside of the window."""
        return mask(scores, self.drops(call))

    def drops(self, call: Call) -> Tensor:
        """See :meth:`Edit.drops`."""
        return outside_window(call.query_slots(), call.key_slots(), self.size, self.first)

    def kept_spans(self, call: Call) -> Sequence[KeptSpans]:
        """See :meth:`Edit.kept_spans`: two for each query, its neighbours and the first keys."""
        queries, keys = call.allowed.shape[-2:]
        number = np.arange(queries)
        place = number + call.position - call.key_position
        # No distance is larger, and sizes near the largest integer would wrap around.
        lead = call.position - call.key_position
        size = min(self.size, max(abs(lead), abs(lead + queries)) + keys)
        first = np.full(queries, min(self.first, call.key_position + keys) - call.key_position)
        start, stop = np.concatenate([place - size + 1, np.zeros_like(place)]), [place + size, first]
        return [KeptSpans.union((queries, keys), np.tile(number, 2), start, np.concatenate(stop))]


def outside_window(query_slots: Tensor, key_slots: Tensor, size: int, first: int = 0) -> Tensor:
    """Bool ``[B|1, 1, Q, K]``: the cells that a window removes, from positions ``[B|1, Q]`` and ``[B|1, K]``."""
    far = (key_slots[:, None, :] - query_slots[:, :, None]).abs() >= size
    return (far & (key_slots[:, None, :] >= first))[:, None]
