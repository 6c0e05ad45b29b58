"""Features of image regions from files: LXMERT's tab-separated format, and npz.

A row that is damaged is left out and named; the others are used. Only rows of images that are asked about are decoded.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import logging
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.wording import counted
from ..errors import DataError

log = logging.getLogger(__name__)

COLUMNS = (
    "img_id", "h", "w", "objects_id", "objects_conf", "attrs_id", "attrs_conf", "num_boxes", "boxes", "features"
)  # fmt: skip
"""The columns of LXMERT's files, which have no header."""
_OTHER_NAMES = {"image_id": "img_id", "image_h": "h", "image_w": "w"}
NAMED = 3  # damaged rows that a warning names
KEPT = 64  # images whose regions stay in memory


class Regions(NamedTuple):
    """The regions of one image.

    Attributes
    ----------
    features : float32 ``[R, F]``.
    boxes : float32 ``[R, 4]``, the corners x1, y1, x2, y2 in pixels.
    height, width : of the image, in pixels.
    """

    features: NDArray[np.float32]
    boxes: NDArray[np.float32]
    height: int
    width: int

    def positions(self) -> NDArray[np.float32]:
        """The boxes from 0 to 1."""
        scale = np.array([self.width, self.height, self.width, self.height], dtype=np.float32)
        return np.clip(self.boxes / scale, 0, 1)


def image_key(name: str | int) -> str:
    """What an image is called everywhere: ``COCO_val2014_000000000042`` and ``42`` are the same."""
    found = re.fullmatch(r"(?:COCO_\w+?_)?0*(\d+)", str(name), re.ASCII)
    return found[1] if found else str(name)


class RegionFile:
    """The regions of all images of a file, or folder, that are wanted.

    Parameters
    ----------
    path : a ``.tsv`` file, plain or gzip; a ``.npz`` file with ``image_id [N]``, ``features [N, R, F]``,
        ``boxes [N, R, 4]``, ``height [N]`` and ``width [N]``; or a folder with one ``.npz`` file for each image.
    wanted : the keys of the images; others are passed over.

    Attributes
    ----------
    images : keys of the images whose regions can be read.
    feature_width : how many numbers describe a region.
    damaged : a sentence for each row that is left out.
    """

    def __init__(self, path: Path, wanted: Collection[str]) -> None:
        self.path = path
        if not path.exists():
            raise DataError(f"There is no file {path}; give the features of the image regions.")
        self.damaged: list[str] = []
        self._readers: dict[str, Callable[[], Regions]] = {}
        widths: dict[str, int] = {}
        places: dict[str, str] = {}
        for key, place, reader in _readers(path):
            if key not in wanted:
                continue
            try:
                widths[key] = reader().features.shape[1]
            except DataError as error:
                self.damaged.append(str(error))
                continue
            self._readers[key], places[key] = reader, place
        # Of two that are equally frequent, the larger one: what is cut short is smaller.
        self.feature_width, _ = max(Counter(widths.values()).items(), key=lambda pair: pair[::-1], default=(0, 0))
        for key, width in widths.items():
            if width != self.feature_width:
                del self._readers[key]
                self.damaged.append(
                    f"{places[key]} has {width} numbers for a region, but most others have {self.feature_width}; "
                    "it is cut short or from another detector."
                )
        self.images = frozenset(self._readers)
        if self.damaged and not self.images:
            more = f" ({counted(len(self.damaged), 'damaged row')}, and no other)" if len(self.damaged) > 1 else ""
            raise DataError(f"{self.damaged[0].rstrip('.')}{more}.")
        if self.damaged:
            named = " ".join(self.damaged[:NAMED])
            log.warning("%s of %s left out: %s", counted(len(self.damaged), "damaged row"), path, named)
        self.read = lru_cache(maxsize=KEPT)(self._read)

    def _read(self, key: str) -> Regions:
        """The regions of one image."""
        return self._readers[key]()


def _readers(path: Path) -> Iterator[tuple[str, str, Callable[[], Regions]]]:
    """For every image its key, where it is, and what reads it."""
    if path.is_dir():
        for file in sorted(path.glob("*.npz")):
            yield image_key(file.stem), str(file), lambda file=file: _npz_image(file)  # type: ignore[misc]
    elif path.suffix == ".npz":
        yield from _npz_rows(path)
    else:
        yield from _tsv_rows(path)


def _tsv_rows(path: Path) -> Iterator[tuple[str, str, Callable[[], Regions]]]:
    """The rows of a tab-separated file. Of a gzip file the lines are kept, of others only their places."""
    packed = path.suffix == ".gz"
    names: tuple[str, ...] = COLUMNS
    for number, (offset, line) in enumerate(_lines(path), 1):
        first = line.split(b"\t", 1)[0].decode("utf-8", "replace").strip()
        if not first:
            continue
        if number == 1 and first in ("img_id", "image_id"):
            given = line.decode("utf-8", "replace").split()
            names = tuple(_OTHER_NAMES.get(name, name) for name in given)
            continue
        place = f"Line {number} of {path}"

        def read(
            line: bytes | None = line if packed else None, offset: int = offset, place: str = place, names: Any = names
        ) -> Regions:
            if line is None:
                with path.open("rb") as stream:
                    stream.seek(offset)
                    line = stream.readline()
            return _decoded(line, names, place)

        yield image_key(first), place, read


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every line with the number of bytes before it."""
    try:
        opener: Any = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rb") as stream:
            offset = 0
            for line in stream:
                yield offset, line
                offset += len(line)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or not a gzip file ({error}); fetch it again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def _decoded(line: bytes, names: tuple[str, ...], place: str) -> Regions:
    """One line of a tab-separated file."""
    values = line.rstrip(b"\r\n").split(b"\t")
    if len(values) != len(names):
        raise DataError(
            f"{place} has {len(values)} columns, not {len(names)} ({', '.join(names)}); boxes cannot be used without "
            "the height and width of their image, nor regions without features."
        )
    fields = dict(zip(names, values, strict=True))
    height, width = (_whole(fields.get(name, b""), place, f"size of the image ({name})") for name in ("h", "w"))
    number = _whole(fields.get("num_boxes", b""), place, "number of boxes")
    boxes = _floats(fields.get("boxes", b""), number, place, "boxes")
    return _checked(_floats(fields.get("features", b""), number, place, "features"), boxes, height, width, place)


def _whole(value: bytes, place: str, what: str) -> int:
    text = value.decode("utf-8", "replace").strip()
    if not re.fullmatch(r"0*[1-9]\d{0,8}(?:\.0*)?", text, re.ASCII):
        raise DataError(f"{place} has no {what}, but {text[:20]!r}; write it again with a whole number there.")
    return int(float(text))


def _floats(value: bytes, rows: int, place: str, what: str) -> NDArray[np.float32]:
    """Base64 of float32 numbers as an array with so many rows."""
    try:
        numbers = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"{place} has {what} that are cut short or no base64 ({error}).") from error
    if not numbers or len(numbers) % (4 * rows):
        raise DataError(
            f"{place} has {what} that are cut short: {len(numbers)} bytes are not the same number of float32 for each "
            f"of {rows} boxes."
        )
    return np.frombuffer(numbers, dtype="<f4").reshape(rows, -1)


def _npz_rows(path: Path) -> Iterator[tuple[str, str, Callable[[], Regions]]]:
    arrays = _npz_arrays(path, ("image_id", "features", "boxes", "height", "width"))
    lengths = {name: len(array) for name, array in arrays.items()}
    if len({*lengths.values()}) > 1:
        raise DataError(f"The arrays of {path} have different lengths ({lengths}); one entry for each image is needed.")
    for row, name in enumerate(arrays["image_id"].tolist()):
        place = f"Image {name} of {path}"
        sides = {side: int(arrays[side][row]) for side in ("height", "width")}

        def read(row: int = row, place: str = place, sides: dict[str, int] = sides) -> Regions:
            return _checked(arrays["features"][row], arrays["boxes"][row], **sides, place=place)

        yield image_key(name), place, read


def _npz_image(path: Path) -> Regions:
    arrays = _npz_arrays(path, ("features", "boxes", "height", "width"))
    sides = {side: int(arrays[side]) for side in ("height", "width")}
    return _checked(arrays["features"], arrays["boxes"], **sides, place=str(path))


def _npz_arrays(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in names if name not in file]
            if missing:
                remark = "; boxes cannot be used without the size of their image" if "height" in missing else ""
                raise DataError(f"{path} has no array {missing[0]!r}; it needs {', '.join(names)}{remark}.")
            return {name: file[name] for name in names}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is not a readable npz file ({error}); write it again.") from error


def _checked(features: NDArray[Any], boxes: NDArray[Any], height: int, width: int, place: str) -> Regions:
    if features.ndim != 2 or boxes.shape != (len(features), 4):
        raise DataError(
            f"{place} has boxes of the shape {list(boxes.shape)} for features of the shape {list(features.shape)}; "
            "each region has 4 corners."
        )
    if height < 1 or width < 1:
        raise DataError(f"{place} has an image of the size {height} x {width}; boxes cannot be used without it.")
    if not (np.isfinite(features).all() and np.isfinite(boxes).all()):
        raise DataError(f"{place} has features or boxes that are not finite numbers.")
    return Regions(features.astype(np.float32), boxes.astype(np.float32), height, width)
