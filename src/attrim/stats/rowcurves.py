"""How the cumulative curves of single query rows spread (Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..call import Call
from ..errors import ParameterError
from .base import register
from .bins import log_edges
from .memory import lasting_zeros
from .rowfacts import row_counts
from .sitewise import SiteStat, finite


@register("row-curves")
@dataclass(eq=False)
class RowCurves(SiteStat):
    """For every value on a logarithmic axis, how the rows' shares up to that value are distributed.

    The paper draws the curve of every single row; this keeps all rows of any data set in fixed memory.

    Parameters
    ----------
    floor, bins : the axis, as in :class:`~attrim.stats.histogram.Histogram`.
    levels : how finely the share from 0 to 1 is divided.
    """

    floor: float = 1e-8
    bins: int = 100
    levels: int = 50

    def __post_init__(self) -> None:
        if not 0 < self.floor < 1 or self.bins < 1 or self.levels < 1:
            raise ParameterError("RowCurves needs 0 < floor < 1, at least one bin and at least one level.")

    def empty(self, heads: int) -> dict[str, Tensor]:
        """See :meth:`SiteStat.empty`."""
        return {"counts": lasting_zeros(heads, self.bins, self.levels + 1)}

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`; one example at a time, so that little memory is needed."""
        kept = self.record(call.site, call.heads).tensors["counts"]
        edges = log_edges(self.floor, self.bins).to(tensor.device)
        for example in range(tensor.shape[0]):
            valid = call.for_example(example).valid[0].expand(tensor.shape[1:])
            weights = finite(tensor[example].float(), valid, call.site)
            counts = row_counts(weights, valid, edges, self.floor)
            sizes = counts.sum(-1, keepdim=True)
            # Rounded to the nearest level in whole numbers, so that all machines agree.
            levels = (2 * self.levels * counts.cumsum(-1) + sizes) // (2 * sizes).clamp(min=1)
            real = (sizes > 0).expand_as(levels).to(torch.int64)
            found = torch.zeros(len(kept), self.levels + 1, self.bins, dtype=torch.int64, device=tensor.device)
            kept += found.scatter_add_(1, levels, real).transpose(1, 2).cpu()

    def quantile(self, share: float) -> Tensor:
        """Float64 ``[sites, heads, bins]``: the cumulative share that ``share`` of the rows have not exceeded."""
        if not 0 <= share <= 1:
            raise ParameterError(f"quantile({share}) does not exist; give a share from 0 to 1.")

        def of_site(counts: Tensor) -> Tensor:
            reached = counts.cumsum(-1)
            return (reached < share * reached[..., -1:]).sum(-1).double() / self.levels

        return self.table(of_site(record.tensors["counts"]) for record in self.records.values())
