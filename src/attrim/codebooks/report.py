"""What a codebook does to attention weights: which levels are used, what is lost, and what it takes to store."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.call import Call
from ..errors import DataError
from .codebook import Codebook


@dataclass(frozen=True)
class Report:
    """How well a codebook fits weights; only cells whose query and key are real and allowed count.

    Attributes
    ----------
    usage : int64 ``[codes]``, how many weights have each code.
    entropy : in bits a weight; less than the codebook's bits where levels are rarely used.
    zeros : the sparsity after quantising.
    mean_square_error : of the weights.
    row_sum : the mean sum of a row after quantising.
    row_sum_error : the mean absolute change of the sum of a row.
    context_error : the change of the output over its size (norms over all queries); None without values.
    code_bytes : of all codes, packed, with the codebook's number of bits each.
    codebook_bytes : of the edges and values as float32.
    """

    usage: Tensor
    entropy: float
    zeros: float
    mean_square_error: float
    row_sum: float
    row_sum_error: float
    context_error: float | None
    code_bytes: int
    codebook_bytes: int

    @property
    def storage_bytes(self) -> int:
        """Codes and codebook together."""
        return self.code_bytes + self.codebook_bytes


def report(codebook: Codebook, weights: Tensor, mask: Tensor | None = None, value: Tensor | None = None) -> Report:
    """Apply a codebook to weights ``[B, H, Q, K]`` and measure what it does.

    Parameters
    ----------
    mask : None, ``[B, K]`` real tokens, or ``[B|1, H|1, Q, K]`` allowed cells.
    value : ``[B, H, K, D]``, to measure the error of the heads' outputs.
    """
    call = Call.plain(weights, mask)
    valid = call.valid.expand_as(weights)
    total = int(valid.sum())
    if total == 0:
        raise DataError("There is no weight to report on: the mask forbids all cells.")
    before, after = (side.masked_fill(~valid, 0.0).double() for side in (weights, codebook.apply(weights)))
    usage = torch.bincount(codebook.codes(weights)[valid], minlength=codebook.values.shape[-1])
    share = usage[usage > 0].double() / total
    rows = valid.any(-1)
    sums = [side.sum(-1)[rows] for side in (before, after)]
    error = None
    if value is not None:
        outputs = [side @ value.double() for side in (before, after)]
        error = float((outputs[1] - outputs[0]).norm() / outputs[0].norm().clamp_min(1e-300))
    return Report(
        usage=usage,
        entropy=float(-(share * share.log2()).sum()),
        zeros=float((after[valid] == 0).double().mean()),
        mean_square_error=float((after - before)[valid].square().mean()),
        row_sum=float(sums[1].mean()),
        row_sum_error=float((sums[1] - sums[0]).abs().mean()),
        context_error=error,
        code_bytes=-(-total * (codebook.bits or 1) // 8),
        codebook_bytes=4 * (codebook.edges.numel() + codebook.values.numel()),
    )
