"""Constant families: rules that make one fixed matrix for every head, from nothing or from measured averages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.registry import FAMILIES
from ..core.site import Site
from ..errors import DataError, ParameterError, ShapeError
from ..stats.mean import Mean
from .base import Edit
from .constant import Constant
from .offset import TAIL, offset_curve
from .positions import gather_offsets

Make = Callable[[Site, int, Mean | None, int], Tensor]
"""Site, number of positions, average attention and seed to the matrices ``[H, N, N]`` of the site."""


@dataclass(eq=False)
class Family:
    """One rule.

    Attributes
    ----------
    make : gives the matrices of one site.
    measured : whether it needs average attention.
    trained : whether the matrices are only a start, and are trained with the probe (``train_constants=True``).
    drawn : whether they are random, and another seed gives others.
    """

    make: Make
    measured: bool = False
    trained: bool = False
    drawn: bool = False

    def __post_init__(self) -> None:
        self.__doc__ = self.make.__doc__


def make_constants(
    family: str, sites: Iterable[Site], length: int, *, mean: Mean | None = None, seed: int = 0
) -> dict[str, Tensor]:
    """The constant matrices of a family for some sites, for :class:`~attrim.edits.constant.Constant`.

    Parameters
    ----------
    family : ``average``, ``offset``, ``uniform``, ``identity``, ``previous``, ``next``, ``random`` or ``learned``.
    length : number of positions N.
    mean : average attention, for the families that are measured.
    seed : for the families that are random.

    Returns
    -------
    site name to float32 ``[H, N, N]``. Rows need not sum to 1: they are normalised for each input.
    """
    chosen = FAMILIES[family]
    if length < 1:
        raise ParameterError(f"Constants need at least one position, not {length}.")
    if chosen.measured and mean is None:
        raise DataError(f"The constant family {family!r} is made of average attention; give mean=, a Mean stat.")
    return {site.name: chosen.make(site, length, mean, seed).float() for site in sites}


def constant_edits(
    constants: Mapping[str, Tensor], heads: Sequence[Any], *, train_constants: bool = False
) -> tuple[Edit, ...]:
    """The edits that make ``heads`` constant; none for no heads, which an edit could not choose.

    Parameters
    ----------
    heads : the first entries of an order, as :func:`attrim.scores.budget` gives them.
    """
    return (Constant(constants, heads=heads, train_constants=train_constants),) if len(heads) else ()


ITSELF = 2.0**-24
"""Too small to change a row that has another key, and all that is left of a row that has none."""


def uniform(site: Site, length: int, mean: Mean | None, seed: int) -> Tensor:
    """Every token the same."""
    return torch.full((site.heads, length, length), 1 / length)


def identity(site: Site, length: int, mean: Mean | None, seed: int) -> Tensor:
    """Every token itself."""
    return torch.eye(length).repeat(site.heads, 1, 1)


def previous(site: Site, length: int, mean: Mean | None, seed: int) -> Tensor:
    """The token before; itself, where that slot is padding or there is none."""
    return _neighbour(site, length, -1)


def following(site: Site, length: int, mean: Mean | None, seed: int) -> Tensor:
    """The token after; itself, where that slot is padding, is forbidden, or there is none."""
    return _neighbour(site, length, 1)


def random(site: Site, length: int, mean: Mean | None, seed: int) -> Tensor:
    """Rows drawn evenly from all rows that sum to 1 (Dirichlet with all parameters 1), fixed by seed and site name."""
    generator = torch.Generator().manual_seed(site.seed(seed))
    # Exponential numbers, normalised, are Dirichlet; the cells of a text are too, after its mask is applied.
    waits = torch.empty(site.heads, length, length, dtype=torch.float64).exponential_(generator=generator)
    return waits / waits.sum(-1, keepdim=True)


def _neighbour(site: Site, length: int, offset: int) -> Tensor:
    matrix = torch.diag_embed(torch.ones(max(length - 1, 0)), offset) if length > 1 else torch.zeros(1, 1)
    return (matrix + ITSELF * torch.eye(length)).repeat(site.heads, 1, 1)


FAMILIES.register("uniform")(Family(uniform))
FAMILIES.register("identity")(Family(identity))
FAMILIES.register("previous")(Family(previous))
FAMILIES.register("next")(Family(following))
FAMILIES.register("random")(Family(random, drawn=True))


def average(site: Site, length: int, mean: Mean | None, seed: int) -> Tensor:
    """The average attention of each cell; zero where no text had such a cell."""
    assert mean is not None
    matrix = mean.matrix(site)
    if min(matrix.shape[1:]) < length:
        raise ShapeError(
            f"The averages of site {site.name!r} cover {matrix.shape[1]} x {matrix.shape[2]} positions, not {length}; "
            "measure with a layout of that length, choose a smaller length, or use the family 'offset'."
        )
    return matrix[:, :length, :length]


def offset(site: Site, length: int, mean: Mean | None, seed: int) -> Tensor:
    """The average attention of each relative position, for any length."""
    assert mean is not None
    slots = torch.arange(length)[None]
    return gather_offsets(offset_curve(mean, site.name), slots, slots, TAIL)[0]


def learned(site: Site, length: int, mean: Mean | None, seed: int) -> Tensor:
    """The average attention as a start; the matrices are then trained (``Constant(..., train_constants=True)``)."""
    return average(site, length, mean, seed)


FAMILIES.register("average")(Family(average, measured=True))
FAMILIES.register("offset")(Family(offset, measured=True))
FAMILIES.register("learned")(Family(learned, measured=True, trained=True))
