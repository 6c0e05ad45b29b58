"""Matrices as bytes for the page: JSON floats of all heads of a model would be a hundred megabytes."""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...core.painting import ends_of

Curve = Literal["linear", "root"]
PackedType = Literal["uint8", "float16", "float32"]
LARGEST_HALF = 60000.0
"""Numbers beyond do not fit 16 bits."""


def pack(values: Any, type: PackedType = "uint8", curve: Curve = "linear") -> dict[str, Any]:
    """Matrices ``[count, rows, columns]``, or one ``[rows, columns]``, as JSON values with their bytes in base64.

    Parameters
    ----------
    type : ``uint8`` keeps 256 levels between the smallest and the largest number; ``float16`` three digits, and
        becomes ``float32`` where numbers are too large for it.
    curve : how levels are spread. ``root`` has most of them near the lower end, where attention weights are.

    Returns
    -------
    ``shape``, ``type``, ``low``, ``high``, ``curve`` and ``bytes``, as static/README.md describes.
    """
    array = np.asarray(values, dtype=np.float64)
    array = array[None] if array.ndim == 2 else array
    low, high = ends_of([array])
    if type == "float16" and max(abs(low), abs(high)) > LARGEST_HALF:
        type = "float32"
    form = {"float16": "<f2", "float32": "<f4"}.get(type)
    data = _levels(array, low, high, curve) if form is None else array.astype(form)
    text = base64.b64encode(data.tobytes()).decode()
    return {"shape": list(array.shape), "type": type, "low": low, "high": high, "curve": curve, "bytes": text}


def _levels(array: NDArray[np.float64], low: float, high: float, curve: Curve) -> NDArray[np.uint8]:
    share = np.nan_to_num((array - low) / ((high - low) or 1.0), nan=0.0).clip(0, 1)
    if curve == "root":
        share = np.sqrt(share)
    return np.rint(255 * share).astype(np.uint8)


def packed_size(cells: int, type: PackedType) -> int:
    """Characters that so many numbers take in base64."""
    return 4 * -(-cells * {"uint8": 1, "float16": 2, "float32": 4}[type] // 3)


def pool(matrices: NDArray[Any], step: int) -> NDArray[Any]:
    """The largest of every ``step x step`` cells of ``[count, rows, columns]``; fewer at the ends."""
    if step <= 1:
        return matrices
    count, rows, columns = matrices.shape
    padding = ((0, 0), (0, -rows % step), (0, -columns % step))
    padded = np.pad(matrices, padding, constant_values=-np.inf)
    blocks = padded.reshape(count, -(-rows // step), step, -(-columns // step), step)
    found: NDArray[Any] = blocks.max(axis=(2, 4))
    return found
