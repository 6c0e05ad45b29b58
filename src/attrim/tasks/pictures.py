"""Image files: read as pixels, or as one sentence about what is wrong with them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .region_files import image_key

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff")


@lru_cache(maxsize=8)
def image_files(folder: Path) -> dict[str, Path]:
    """The image files of a folder by their key: their number, for those of COCO, or their name without its ending."""
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}; give the one that holds the images.")
    return {image_key(path.stem): path for path in sorted(folder.iterdir()) if path.suffix.lower() in ENDINGS}


def read_image(path: Path) -> NDArray[np.uint8]:
    """The pixels of an image file, uint8 ``[H, W, 3]``."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except FileNotFoundError as error:
        raise DataError(f"There is no image {path}; check the path.") from error
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} is no readable image ({str(error).rstrip('.')}); fetch it again.") from error
