"""What an edit may do to every row of weights inside of the fused pass.

An edit opts in by answering ``compiles``; kernels import no edit. The operations are exact: they mean what
``edit_weights`` of the edit means, which stays the reference.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy
from numpy.typing import NDArray

from ..core.call import Call
from . import team

RULES = ("one", "uniform", "row-maximum")
"""What a bar is a multiple of, by its number in compiled.c."""


@dataclass(frozen=True)
class KeepAbove:
    """Zero the weights that are not strictly above a bar.

    Attributes
    ----------
    bar : rounded to float32.
    relative_to : what the bar is a multiple of: 1, one over the number of the row's keys, or the row's largest weight.
    renormalize : divide the row by what is left of it, or by 1e-12 where that is more.
    """

    bar: float
    relative_to: Literal["one", "uniform", "row-maximum"]
    renormalize: bool

    def parameters(self) -> team.EditParameters:
        """The operation as compiled.c wants it."""
        rule = RULES.index(self.relative_to)
        return team.EditParameters(kind=team.KEEP_ABOVE, relative_to=rule, renormalize=self.renormalize, bar=self.bar)


@dataclass(frozen=True, eq=False)
class LookupTable:
    """A codebook for float32, and the same cut into cells that have one edge at most.

    Attributes
    ----------
    edges : int32 ``[codes]``, the bits of the edge above each code; the last is out of reach.
    values : float32 ``[codes]``.
    exact : float64 ``[codes]``, the values before they were rounded.
    lowest : int32 ``[cells]``, how many edges lie below each cell.
    cells : int32 ``[cells, 4]``, of each the bits of the first edge that does not lie below it, the bits of the values
        below that edge and from it on, and 0.
    base, top : the bits of the first and the last cell.
    shift : how many bits of a weight do not matter for its cell.
    """

    edges: numpy.ndarray
    values: numpy.ndarray
    exact: numpy.ndarray
    lowest: numpy.ndarray
    cells: numpy.ndarray
    base: int
    top: int
    shift: int

    def parameters(self) -> team.TableParameters:
        """The table as compiled.c wants it; its arrays must outlive this."""
        arrays = {name: getattr(self, name).ctypes.data for name in ("edges", "values", "cells")}
        return team.TableParameters(**arrays, codes=len(self.values), base=self.base, top=self.top, shift=self.shift)


@dataclass(frozen=True)
class LookUp:
    """Replace every weight by the value that stands for it in a codebook.

    Attributes
    ----------
    table : its values must be weights, see :meth:`of`.
    renormalize : as in :class:`KeepAbove`.
    """

    table: LookupTable
    renormalize: bool

    @classmethod
    def of(cls, table: LookupTable | None, renormalize: bool) -> LookUp | None:
        """The operation; None where there is no table, or values that are negative or above 1, which have no bin."""
        if table is None or numpy.signbit(table.values).any() or (table.values > 1).any():
            return None
        return cls(table, renormalize)

    def parameters(self) -> team.EditParameters:
        """The operation as compiled.c wants it; the table must outlive this."""
        return team.EditParameters(kind=team.LOOK_UP, renormalize=self.renormalize, table=self.table.parameters())


RowOperation = KeepAbove | LookUp


class CompiledEdit(Protocol):
    """What the fused pass asks of an edit."""

    def compiles(self, call: Call) -> RowOperation | None:
        """The operation on rows that is all that this edit does; None when only its own moments can do it."""


Editing = Sequence[tuple[CompiledEdit, tuple[int, ...]]]
Operations = Sequence[tuple[RowOperation, tuple[int, ...]]]


def find_operations(edits: Editing, call: Call) -> Operations | None:
    """What edits do to rows, in their order, with the head numbers of each; None where one of them does not compile."""
    found = []
    for edit, heads in edits:
        operation = edit.compiles(call)
        if operation is None:
            return None
        found.append((operation, heads))
    return found


def chosen_heads(operations: Operations, call: Call) -> NDArray[numpy.bool_]:
    """Whether each operation is about each head of a call, ``[operations, H]``."""
    rows = [[head in chosen for head in call.heads] for chosen in (set(heads) for _, heads in operations)]
    return numpy.array(rows, dtype=bool).reshape(len(operations), len(call.heads))


def as_parameters(operations: Operations, chosen: NDArray[numpy.bool_]) -> ctypes.Array[team.EditParameters]:
    """The operations as compiled.c wants them; they and ``chosen``, see :func:`chosen_heads`, must outlive this."""
    array = (team.EditParameters * len(operations))(*(operation.parameters() for operation, _ in operations))
    for parameters, own in zip(array, chosen, strict=True):
        parameters.heads = own.ctypes.data
    return array
