"""Attention as bytes: small pictures of all heads, and tiles of one head at any magnification.

Level 0 of the pyramid is the attention itself; on each further level one cell stands for the largest of 2 x 2 cells of
the level before, so that a single strong weight is seen at every size.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

TILE = 256
"""Cells on a side of a tile."""
Weights = NDArray[np.float16]
WireFormat = Literal["uint8", "float16"]


class WireBytes(NamedTuple):
    """Numbers as bytes.

    Attributes
    ----------
    data : row by row; float16 is little-endian, and a uint8 code stands for ``(code / 255) ** 2 * high``, rounded up:
        small weights keep their digits and only what is zero has the code 0.
    shape : of the numbers.
    high : the largest of them; 1 where all are 0.
    """

    data: bytes
    shape: tuple[int, ...]
    high: float


def encode(values: Weights, format: WireFormat, high: float | None = None) -> WireBytes:
    """Numbers that are not negative as bytes; ``high`` is the number that the largest code stands for."""
    largest = float(values.max()) if values.size else 0.0
    top = high or largest or 1.0
    if format == "float16":
        return WireBytes(values.astype("<f2").tobytes(), values.shape, top)
    codes = np.ceil(np.sqrt(values.astype(np.float32) / np.float32(top)) * 255).clip(0, 255)
    return WireBytes(codes.astype(np.uint8).tobytes(), values.shape, top)


def pool(values: Weights, factor: int) -> Weights:
    """The largest of every ``factor x factor`` cells of ``[..., Q, K]``; the last ones of a side may be fewer."""
    if factor == 1:
        return values
    # Halves that are not negative are in the order of their bits, and whole numbers are compared many times faster.
    whole: NDArray[Any] = values.view(np.uint16)
    for axis in (-2, -1):  # rows first: their cells lie side by side, and few are left for the columns
        moved = whole.swapaxes(axis, 0)
        found = moved[::factor].copy()
        for first in range(1, min(factor, len(moved))):
            further = moved[first::factor]
            np.maximum(found[: len(further)], further, out=found[: len(further)])
        whole = found.swapaxes(axis, 0)
    whole = np.ascontiguousarray(whole)
    return whole.view(np.float16)


def levels(queries: int, keys: int) -> int:
    """How many levels there are: the last one is a single tile."""
    return max(0, int(np.ceil(np.log2(max(queries, keys, 1) / TILE)))) + 1


def tile(values: Weights, level: int, row: int, column: int) -> Weights | None:
    """One tile ``[up to 256, up to 256]`` of the attention ``[Q, K]`` of a head; None where there is none."""
    if not 0 <= level < levels(*values.shape) or row < 0 or column < 0:
        return None
    side = TILE << level
    part = values[row * side : (row + 1) * side, column * side : (column + 1) * side]
    return pool(part, 1 << level) if part.size else None


def thumbnail(values: Weights, side: int) -> Weights:
    """The attention ``[H, Q, K]`` of a site with at most ``side`` cells on a side."""
    return pool(values, -(-max(values.shape[-2:]) // side))
