"""What a constant family is: a rule that makes one fixed matrix for every head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..edits.base import Edit
from ..edits.constant import Constant
from ..errors import DataError, ParameterError
from ..registry import Registry
from ..select import Site
from ..stats.mean import Mean

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


FAMILIES: Registry[Family] = Registry("constant family", "attrim.families")


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
