"""The colours of a relevance strip: shares from 0 to 1 for its tokens, and its image with what is irrelevant dark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.charts import RelevanceStrip
from ..core.painting import Floats, ends_of, patch_mask, region_mask, scaled
from ..errors import ArtefactError

DARK = 0.12
"""How much is left of an image where nothing is relevant, so that it can still be recognised."""
MOST = 1600
"""Pixels that the longer side of a painted image has at most."""


def token_shares(chart: RelevanceStrip) -> list[list[Floats]]:
    """For each level, for each text, the share ``[tokens]`` of the colour scale; texts share one scale.

    A scale for all levels begins at 0, one for each level at its smallest relevance.
    """
    every = [ends_of(level.texts) for level in chart.levels]
    shared = ends_of([numbers for level in chart.levels for numbers in level.texts], floor=0.0)
    return [
        [scaled(numbers, shared if chart.shared else own) for numbers in level.texts]
        for level, own in zip(chart.levels, every, strict=True)
    ]


def read_image(chart: RelevanceStrip) -> NDArray[np.uint8]:
    """The image ``[height, width, 3]``; a light ground where there is none."""
    size = round(chart.height), round(chart.width)
    if not chart.image:
        return np.full((*size, 3), 235, dtype=np.uint8)
    from PIL import Image

    try:
        with Image.open(Path(chart.image)) as file:
            return np.asarray(file.convert("RGB"))
    except (OSError, ValueError, SyntaxError) as error:  # what pillow raises for files that are not images
        raise ArtefactError(
            f"The image {chart.image!r} cannot be read ({error}); give the path of an image file."
        ) from error


def painted_levels(chart: RelevanceStrip) -> list[NDArray[np.uint8]]:
    """The image of each level, ``[H, W, 3]``: dark where nothing is relevant."""
    image = read_image(chart)
    # Small images are enlarged, so that the edges of regions are where they belong.
    factor = max(1, min(8, MOST // max(image.shape[:2])) if max(image.shape[:2]) < 200 else 1)
    image = image.repeat(factor, 0).repeat(factor, 1)
    size = image.shape[0], image.shape[1]
    every = [level.regions for level in chart.levels if level.regions is not None]
    # An image has ground without a region, so that 0 is the lower end of what is painted.
    floor = 0.0 if chart.normalise == "mask" and not chart.grid else None
    shared = ends_of(every, floor)
    boxes = None
    if chart.boxes is not None:
        boxes = chart.boxes * np.array([size[1] / chart.width, size[0] / chart.height] * 2)
    painted = []
    for numbers in every:
        ends = shared if chart.shared else None
        if boxes is not None:
            mask = region_mask(numbers, boxes, size, chart.normalise, ends)
        else:
            mask = patch_mask(numbers, (chart.grid[0], chart.grid[1]), size, ends)
        painted.append(np.rint(image * (DARK + (1 - DARK) * mask[..., None])).astype(np.uint8))
    return painted


def glued(tokens: tuple[str, ...]) -> list[tuple[str, bool]]:
    """Tokens as they are read, and whether each continues the one before it (``##ing``)."""
    return [(token[2:], True) if token.startswith("##") and len(token) > 2 else (token, False) for token in tokens]
