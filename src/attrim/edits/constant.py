"""Replace a head's attention by one fixed matrix (PAPA, Hassid et al. 2022, https://arxiv.org/abs/2211.03495)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from torch import Tensor

from ..core.call import Call
from ..errors import ParameterError, SelectionError
from .base import Edit, register
from .persite import at_heads, at_site, check_matrices, choose_heads
from .positions import gather, require_covered
from .rows import FLOOR, precise

Outside = Literal["error", "zero"]


@runtime_checkable
class Averages(Protocol):
    """What a stat must offer to serve as constants: the :class:`attrim.stats.mean.Mean` stat does."""

    @property
    def sites(self) -> Iterable[Any]:
        """The sites, or their names, that were measured."""

    def matrix(self, site: str) -> Tensor:
        """The average attention ``[H, N, M]`` of a site."""


def load_averages(folder: str) -> Averages:
    """The averages that the stats store saved in ``folder``."""
    from ..stats.bundle import load_stat

    # mypy wants a class; a protocol that can be checked at run time serves as one.
    return load_stat(folder, Averages, "average attention", "mean")  # type: ignore[type-abstract]


@register("constant")
@dataclass(frozen=True, eq=False)
class Constant(Edit):
    """Replace attention by a fixed matrix, cut to the allowed cells of each input and normalised by row.

    A row that the matrix gives nothing, and the row of a padded query, is zero
    (https://arxiv.org/abs/2211.03495).

    Parameters
    ----------
    matrix : a ``Mean`` stat; a dict from site name to ``[H|1, N, M]``; or one ``[H|1, N, M]`` for all sites. Row and
        column are the positions of query and key in their own texts, whatever the padding and the cache.
    heads : short for ``select=Select(heads=heads)``, e.g. the first entries of an order.
    outside : what a text longer than the matrix gives: an ``error``, or ``zero`` attention where nothing is stored.
    train_constants : let gradients through to the given tensors.
    """

    matrix: Averages | Tensor | Mapping[str, Tensor] = field(metadata={"parse": load_averages})
    heads: InitVar[Sequence[Any] | int | None] = field(default=None, kw_only=True)
    outside: Outside = field(default="error", kw_only=True)
    train_constants: bool = field(default=False, kw_only=True)

    def __post_init__(self, heads: Sequence[Any] | int | None) -> None:
        super().__post_init__()
        choose_heads(self, heads)
        if self.outside not in get_args(Outside):
            raise ParameterError(f"outside must be 'error' or 'zero', not {self.outside!r}.")
        given = self.matrix
        if isinstance(given, type):
            raise ParameterError(f"{given.__name__} is a class; give a stat that was measured, or tensors.")
        if isinstance(given, Averages):
            if self.train_constants:
                raise ParameterError(
                    "A stat has no tensors to train; give a dict of tensors with train_constants=True."
                )
            # A copy, so that the edit does not change when the stat goes on counting.
            names = [getattr(site, "name", site) for site in given.sites]
            given = {name: given.matrix(name).float() for name in names}
            object.__setattr__(self, "matrix", given)
        check_matrices(given, "matrix", boolean=False)

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        """The constant weights ``[B, H, Q, K]`` for the inputs of this call."""
        matrix = self.matrices(call)
        if not self.train_constants:
            matrix = matrix.detach()
        matrix = matrix.to(weights.device, precise(matrix.dtype))
        if self.outside == "error":
            require_covered((matrix.shape[1], matrix.shape[2]), call)
        cells = gather(matrix, call.query_slots(), call.key_slots())
        return constant(cells, call.valid).to(weights.dtype).expand_as(weights)

    def matrices(self, call: Call) -> Tensor:
        """The given matrices ``[H|1, N, M]`` for the heads of the call."""
        matrix = at_heads(at_site(self.matrix, call.site, "matrix"), call, 0, "matrix")
        require_filled(matrix, call)
        return matrix


def require_filled(matrix: Tensor, call: Call) -> None:
    """Refuse a matrix ``[H|1, ...]`` of nothing but zeros: that head was not measured."""
    filled = matrix.flatten(1).any(1)
    if not bool(filled.all()):
        head = call.heads[int(filled.long().argmin())]
        raise SelectionError(
            f"The matrix of head {head} of site {call.site.name!r} is all zero, as if it was not measured; leave the "
            "head out with heads=..., measure it, or switch it off with Gate(0)."
        )


def constant(cells: Tensor, valid: Tensor) -> Tensor:
    """Constants ``[B|1, H|1, Q, K]`` cut to the ``valid`` cells (bool, same axes) and normalised by row.

    Each row is divided by the sum of its absolute values, at least 1e-12, so it may keep negative entries.
    """
    wide = cells.to(precise(cells.dtype))
    # A product with ones and zeros: filling through a mask that heads share takes several times as long.
    kept = valid.to(wide.dtype)
    return (wide * kept).mul_(row_mass(wide, kept).reciprocal()).to(cells.dtype)


def row_mass(cells: Tensor, kept: Tensor) -> Tensor:
    """What each row is divided by, ``[B, H|1, Q, 1]``: the sum of the absolute ``cells`` where ``kept`` is 1, not 0."""
    if cells.shape[0] == kept.shape[1] == 1:
        # One matrix for all examples, one mask for all heads: for every query [H, K] x [K, B].
        mass = (cells[0].abs().transpose(0, 1) @ kept[:, 0].permute(1, 2, 0)).permute(2, 1, 0)[..., None]
    else:
        mass = (cells.abs() * kept).sum(-1, keepdim=True)
    return mass.clamp_min(FLOOR)
