"""The fast path of codebooks: the first bits of a float32 number a cell of a table, and one comparison does the rest.

Floats that are not negative are ordered as their bits are, so a cell is a short range of numbers. The table is cut so
fine that a cell holds one edge at most.
"""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

from ..kernels import team
from ..kernels.operations import LookupTable

LARGEST_TABLE = 1 << 16
"""Cells; a larger table leaves the processor's cache, and the sorted search is as fast."""

FEWEST = 1 << 12
"""Weights from which on the fixed cost of starting the threads is paid back."""

NOT_FINITE = 0x7F800000


def make_table(edges: Tensor, values: Tensor, exact: Tensor) -> LookupTable | None:
    """The table of float32 edges ``[E]`` and values ``[E + 1]``, of which ``exact`` are those in float64.

    None where it would be too large.
    """
    bits = edges.contiguous().numpy().view(numpy.int32).astype(numpy.int64)
    distinct = numpy.unique(bits)
    if len(distinct) == 0 or distinct[0] <= 0 or distinct[-1] >= NOT_FINITE:
        return None
    shift = 23
    while len(numpy.unique(distinct >> shift)) < len(distinct):
        shift -= 1
    base = int(distinct[0] >> shift << shift)
    cells = int((distinct[-1] - base) >> shift) + 1
    if cells > LARGEST_TABLE:
        return None
    # Equal edges leave the codes between them without weights, so only the last of each stays.
    used = numpy.append(0, numpy.searchsorted(bits, distinct, side="right"))
    own = values.numpy()[used]
    own_bits = own.view(numpy.int32)
    above = numpy.append(distinct, numpy.iinfo(numpy.int32).max).astype(numpy.int32)
    # How many edges lie below each cell. The last cell has the last edge in it, so there is always one more.
    lowest = numpy.searchsorted(distinct, base + (numpy.arange(cells) << shift))
    return LookupTable(
        edges=above,
        values=own,
        exact=exact.numpy()[used],
        lowest=lowest.astype(numpy.int32),
        cells=numpy.stack(
            [above[lowest], own_bits[lowest], own_bits[lowest + 1], numpy.zeros(cells, dtype=numpy.int32)], axis=1
        ),
        base=base,
        top=int(distinct[-1]),
        shift=shift,
    )


def look_up(weights: Tensor, table: LookupTable) -> Tensor:
    """The values that stand for the weights, which must be numbers."""
    weights = weights.contiguous()
    result = torch.empty_like(weights)
    following = numpy.zeros(1, dtype=numpy.int64)
    parameters = team.LookUpParameters(
        next=following.ctypes.data,
        weights=weights.data_ptr(),
        result=result.data_ptr(),
        size=weights.numel(),
        table=table.parameters(),
    )
    team.run("look_up", parameters)
    return result


def supports(weights: Tensor) -> bool:
    """Whether the compiled look-up applies: float32 on the processor, and enough of it."""
    return (
        weights.device.type == "cpu"
        and weights.dtype == torch.float32
        and weights.numel() >= FEWEST
        and team.available()
    )
