"""How sparse the rows of each vocabulary token are (Ji et al. 2021, https://arxiv.org/abs/2106.01335)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..call import Call
from ..errors import DataError, ParameterError
from .base import register
from .following import Following
from .memory import grown, lasting_zeros
from .sitewise import SiteStat, finite


@register("token-sparsity")
@dataclass(eq=False)
class TokenSparsity(Following, SiteStat):
    """For each token of the vocabulary, how many weights of its query rows are not above some bars, over all heads.

    An attention call does not know the tokens, so this needs :func:`attrim.measure` and batches with ``input_ids``.

    Parameters
    ----------
    bars : a weight that is not above a bar counts as zero; several bars give a cumulative curve.
    """

    bars: Sequence[float] = (1e-8,)

    def __post_init__(self) -> None:
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
        valid = call.valid.expand(tensor.shape)
        weights = torch.stack([finite(one, chosen, call.site) for one, chosen in zip(tensor, valid, strict=True)])
        sizes = valid.sum((1, 3)).flatten()  # [B Q]
        small = torch.stack([((weights <= bar) & valid).sum((1, 3)).flatten() for bar in self.bars])
        facts = {"small": small, "weights": sizes[None], "rows": (sizes > 0).long()[None]}
        numbers = tokens.flatten().cpu()
        for name, values in facts.items():
            size = [len(values), max(int(numbers.max()) + 1, kept[name].shape[1])]
            kept[name] = grown(kept[name], size)
            kept[name].scatter_add_(1, numbers.expand(len(values), -1), values.cpu())

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
