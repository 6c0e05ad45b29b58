"""Boolean tensors as bits, in an eighth of their memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

BYTE = 8


@dataclass(frozen=True)
class Packed:
    """A boolean tensor ``[..., M]`` as bits.

    Attributes
    ----------
    bits : uint8 ``[..., ceil(M / 8)]``; the first of eight cells is the lowest bit.
    columns : M.
    """

    bits: Tensor
    columns: int

    @classmethod
    def of(cls, cells: Tensor) -> Packed:
        """Pack a boolean tensor."""
        whole = functional.pad(cells, (0, -cells.shape[-1] % BYTE)).view(torch.uint8).unflatten(-1, (-1, BYTE))
        weights = 1 << torch.arange(BYTE, dtype=torch.uint8, device=cells.device)
        return cls((whole * weights).sum(-1, dtype=torch.uint8), cells.shape[-1])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the boolean tensor."""
        return (*self.bits.shape[:-1], self.columns)

    def unpack(self) -> Tensor:
        """The boolean tensor."""
        with torch.inference_mode(False):  # an edit that is made in a pass of inference may serve a later training
            masks = 1 << torch.arange(BYTE, dtype=torch.uint8, device=self.bits.device)
            return ((self.bits[..., None] & masks) != 0).flatten(-2)[..., : self.columns]


class PackedCells(Mapping[str, Tensor]):
    """Boolean tensors by name, each unpacked when it is asked for.

    Parameters
    ----------
    packed : the tensors as bits.
    """

    def __init__(self, packed: Mapping[str, Packed]) -> None:
        self.packed = dict(packed)

    def __getitem__(self, name: str) -> Tensor:
        return self.packed[name].unpack()

    def __iter__(self) -> Iterator[str]:
        return iter(self.packed)

    def __len__(self) -> int:
        return len(self.packed)
