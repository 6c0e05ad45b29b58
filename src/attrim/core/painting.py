"""Numbers of regions and patches laid over an image: what a picture of relevance is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import ParameterError

Normalise = Literal["scores", "mask"]
"""Whether the numbers of regions are brought to 0 and 1 before they are painted, or the painted image is."""
Floats = NDArray[np.float64]


def ends_of(numbers: Sequence[Any], floor: float | None = None) -> tuple[float, float]:
    """The smallest and the largest of all numbers that are finite; ``floor`` counts as one of them. 0 and 0 of none."""
    every = np.concatenate([np.ravel(np.asarray(each, dtype=np.float64)) for each in numbers] or [np.zeros(0)])
    every = every[np.isfinite(every)]
    if floor is not None:
        every = np.append(every, floor)
    return (float(every.min()), float(every.max())) if len(every) else (0.0, 0.0)


def scaled(numbers: Any, ends: tuple[float, float]) -> Floats:
    """Numbers brought to 0 at the lower end and 1 at the upper; 0 where both ends are the same, and for NaN."""
    low, high = ends
    values = np.nan_to_num(np.asarray(numbers, dtype=np.float64), nan=low)
    return np.clip((values - low) / (high - low), 0, 1) if high > low else np.zeros_like(values)


def region_mask(
    scores: Any,
    boxes: Any,
    size: tuple[int, int],
    normalise: Normalise = "mask",
    ends: tuple[float, float] | None = None,
) -> Floats:
    """Scores of regions painted on an empty image; where boxes overlap, the largest one counts.

    Parameters
    ----------
    scores : ``[R]``.
    boxes : ``[R, 4]``, left, top, right and bottom, in pixels.
    size : height and width of the image.
    normalise : see :data:`Normalise`.
    ends : numbers that become 0 and 1; by default the smallest and the largest, of the scores or of the painted image.

    Returns
    -------
    ``[height, width]`` from 0 to 1; all 0 where all scores are the same (``scores``), or 0 (``mask``).
    """
    numbers, corners = np.asarray(scores, dtype=np.float64), np.asarray(boxes, dtype=np.float64)
    if corners.shape != (len(numbers), 4):
        raise ParameterError(f"{len(numbers)} scores need boxes [{len(numbers)}, 4], not {list(corners.shape)}.")
    numbers = np.nan_to_num(numbers, nan=0.0)
    if normalise == "scores":
        numbers = scaled(numbers, ends or ends_of([numbers]))
    height, width = size
    mask = np.zeros((height, width))
    for number, (left, top, right, bottom) in zip(numbers, corners, strict=True):
        rows = slice(max(0, int(np.floor(top))), min(height, int(np.ceil(bottom))))
        columns = slice(max(0, int(np.floor(left))), min(width, int(np.ceil(right))))
        np.maximum(mask[rows, columns], number, out=mask[rows, columns])
    return mask if normalise == "scores" else scaled(mask, ends or ends_of([mask]))


def patch_mask(
    scores: Any, grid: tuple[int, int], size: tuple[int, int], ends: tuple[float, float] | None = None
) -> Floats:
    """Scores of patches laid over an image, smooth between the middles of the patches (bilinear).

    Parameters
    ----------
    scores : ``[rows * columns]``.
    grid : rows and columns.
    size : height and width of the image.

    Returns
    -------
    ``[height, width]`` from 0 to 1.
    """
    numbers = np.asarray(scores, dtype=np.float64)
    if numbers.shape != (grid[0] * grid[1],):
        raise ParameterError(f"A grid of {grid[0]} x {grid[1]} patches needs {grid[0] * grid[1]} scores.")
    values = np.nan_to_num(numbers, nan=0.0).reshape(grid)
    for axis, (count, length) in enumerate(zip(grid, size, strict=True)):
        middles = (np.arange(length) + 0.5) * count / length - 0.5
        low = np.clip(np.floor(middles).astype(int), 0, count - 1)
        high, share = np.minimum(low + 1, count - 1), np.clip(middles - low, 0, 1)
        share = share[:, None] if axis == 0 else share
        values = values.take(low, axis) * (1 - share) + values.take(high, axis) * share
    return scaled(values, ends or ends_of([numbers]))
