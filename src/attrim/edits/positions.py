"""From a matrix that is stored by token position to the cells of one attention call."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.call import Call
from ..core.site import Site
from ..core.tracing import is_symbolic
from ..errors import ShapeError


def inside(size: tuple[int, int], query_slots: Tensor, key_slots: Tensor) -> Tensor:
    """Bool ``[B|1, 1, Q, K]``: the cells whose positions lie within a stored matrix of ``size = (N, M)``."""
    rows = (query_slots >= 0) & (query_slots < size[0])
    columns = (key_slots >= 0) & (key_slots < size[1])
    return rows[:, None, :, None] & columns[:, None, None, :]


def gather(matrix: Tensor, query_slots: Tensor, key_slots: Tensor, fill: float | bool = 0) -> Tensor:
    """The cells of a stored matrix that one call is about.

    Parameters
    ----------
    matrix : ``[H, N, M]``, row and column are the positions of a query and a key in their own texts.
    query_slots, key_slots : int64 ``[B|1, Q]`` and ``[B|1, K]``, from :meth:`attrim.core.call.Call.query_slots`.
    fill : the value of cells outside of the stored size.

    Returns
    -------
    ``[B|1, H, Q, K]``; differentiable with respect to ``matrix``. The batch axis is one where all examples agree;
    texts that lie within the matrix and start at the same place get a view of it.
    """
    heads, rows, columns = matrix.shape
    if not is_symbolic():
        query_slots, key_slots = _shared(query_slots), _shared(key_slots)
        places = _run(query_slots, rows), _run(key_slots, columns)
        if places[0] is not None and places[1] is not None:
            return matrix[None, :, places[0], places[1]]
    within = inside((rows, columns), query_slots, key_slots)
    if rows == 0 or columns == 0:
        return matrix.new_full((1, heads, *within.shape[-2:]), fill)
    cells = matrix[:, query_slots.clamp(0, rows - 1)[:, :, None], key_slots.clamp(0, columns - 1)[:, None, :]]
    # As a number, because torch.jit.trace knows no fill that is a bool.
    return cells.transpose(0, 1).masked_fill(~within, float(fill))


def gather_offsets(curve: Tensor, query_slots: Tensor, key_slots: Tensor, tail: int) -> Tensor:
    """The cells that one call is about, from values by relative position.

    Parameters
    ----------
    curve : ``[H, 2 R + 1]``, entry ``R + d`` is for a key ``d`` positions after its query (before it, if negative).
    query_slots, key_slots : as in :func:`gather`.
    tail : distances beyond ``R`` get the mean of so many entries at that end of the curve.

    Returns
    -------
    ``[B|1, H, Q, K]``; the batch axis is one where all examples agree.
    """
    reach = curve.shape[1] // 2
    offsets = (key_slots[:, None, :] - query_slots[:, :, None]).clamp(-reach - 1, reach + 1)
    offsets = offsets if is_symbolic() else _shared(offsets)
    return with_tails(curve, tail)[:, offsets + reach + 1].transpose(0, 1)


def with_tails(curve: Tensor, tail: int) -> Tensor:
    """A curve ``[H, 2 R + 1]`` with one more entry at each end, for all distances beyond: ``[H, 2 R + 3]``."""
    few = min(tail, curve.shape[1] // 2)
    # With no neighbours at all (R = 0) there is nothing to go by, and the mean of nothing would be NaN.
    ends = [part.sum(1, keepdim=True) / max(few, 1) for part in (curve[:, :few], curve[:, curve.shape[1] - few :])]
    return torch.cat([ends[0], curve, ends[1]], dim=1)


def require_covered(size: tuple[int, int], call: Call) -> None:
    """Raise :class:`ShapeError` when an allowed cell of a real query lies outside of ``size``.

    While a model is traced, which tokens are real is not known, and the sizes of the tensors count.
    """
    if is_symbolic():
        queries, keys = call.allowed.shape[-2:]
        if call.position + queries > size[0] or call.key_position + keys > size[1]:
            raise _not_covered(call.site, call.position + queries, call.key_position + keys, size)
        return
    query_slots, key_slots = call.query_slots(), call.key_slots()
    if int(query_slots.max()) < size[0] and int(key_slots.max()) < size[1]:
        return  # nothing lies outside, so there is no need to look at every cell
    valid = call.valid
    if not bool((valid & ~inside(size, query_slots, key_slots)).any()):
        return
    # Padding is not part of the text, so its slots do not count.
    queries, keys = (
        int(slots.masked_fill(~valid.any(other).any(1), 0).max()) + 1
        for slots, other in ((query_slots, -1), (key_slots, -2))
    )
    raise _not_covered(call.site, queries, keys, size)


def _not_covered(site: Site, queries: int, keys: int, size: tuple[int, int]) -> ShapeError:
    return ShapeError(
        f"A text of {queries} x {keys} positions at site {site.name!r} is longer than the averages, which cover "
        f"{size[0]} x {size[1]}; measure longer texts, cut the text, or use outside='zero'."
    )


def _shared(slots: Tensor) -> Tensor:
    """Slots ``[1, ...]`` when all examples of the batch have the same ones, so that one gather serves them all."""
    return slots[:1] if slots.shape[0] > 1 and torch.equal(slots, slots[:1].expand_as(slots)) else slots


def _run(slots: Tensor, size: int) -> slice | None:
    """Slots ``[1, L]`` that follow one another within ``size``, as a slice."""
    if slots.shape[0] != 1 or slots.shape[1] == 0:
        return None
    first, length = int(slots[0, 0]), slots.shape[1]
    if first < 0 or first + length > size:
        return None
    consecutive = torch.equal(slots[0], torch.arange(first, first + length, device=slots.device))
    return slice(first, first + length) if consecutive else None
