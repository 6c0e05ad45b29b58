"""Reading data files as streams: plain or gzip text, tables, and JSON lines."""

from __future__ import annotations

import csv
import gzip
import logging
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from ..core.documents import Unreadable, parse_json
from ..errors import DataError, shorten

log = logging.getLogger(__name__)


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 file, plain or gzip; damaged content becomes a DataError that names the file."""
    try:
        opener: Any = gzip.open if path.suffix == ".gz" else open
        # Only line feeds end a line: texts may hold other separators, and csv does its own splitting.
        with opener(path, "rt", encoding="utf-8-sig", newline="\n") as stream:
            yield stream
    except FileNotFoundError as error:
        raise DataError(f"There is no file {path}; check the path.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); convert it first."
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or not a gzip file ({error}); fetch it again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def find_file(folders: Sequence[Path], names: Iterable[str]) -> Path | None:
    """Return the first of the named files, plain or gzip, in the first folder that has one."""
    names = list(names)
    candidates = (folder / f"{name}{ending}" for folder in folders for name in names for ending in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file without their line ends."""
    with open_text(path) as stream:
        for line in stream:
            yield line.rstrip("\r\n")


def paragraphs(path: Path) -> Iterator[str]:
    """Yield blocks of lines that blank lines separate, each joined by blanks."""
    block: list[str] = []
    for line in lines(path):
        if line.strip():
            block.append(line.strip())
        elif block:
            yield " ".join(block)
            block = []
    if block:
        yield " ".join(block)


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON lines file, each with the number of its line."""
    for number, line in enumerate(lines(path), 1):
        if line.strip():
            try:
                record = parse_json(line)
            except Unreadable as error:
                raise DataError(
                    f"Line {number} of {path} is not JSON ({error}); one object a line is needed."
                ) from error
            if not isinstance(record, dict):
                raise DataError(f"Line {number} of {path} is not a JSON object; one object a line is needed.")
            yield number, record


def csv_column(path: Path, column: str) -> Iterator[str]:
    """Yield one column of a CSV file: by name from its header, or by number (from 0) of a file without header."""
    with open_text(path) as stream:
        rows = _csv_rows(stream, path)
        place = int(column) if column.isdecimal() else _place(next(rows, []), column, path)
        for number, row in enumerate(rows, 1):
            if row:
                if place >= len(row):
                    raise DataError(f"Row {number} of {path} has {len(row)} columns, no column {place}; repair it.")
                yield row[place]


def _csv_rows(stream: TextIO, path: Path) -> Iterator[list[str]]:
    rows = csv.reader(stream)
    try:
        yield from rows
    except csv.Error as error:
        raise DataError(f"{path} is not CSV ({error} at line {rows.line_num}); repair it.") from error


def tsv_rows(path: Path, header: Sequence[str] | None = None, skip_short: bool = False) -> Iterator[dict[str, str]]:
    """Yield the rows of a tab-separated file in which quotes mean nothing.

    Parameters
    ----------
    header : the column names of a file that does not begin with them.
    skip_short : leave out rows with too few columns instead of raising an error.
    """
    rows = enumerate(lines(path), 1)
    names = list(header) if header is not None else next(rows, (0, ""))[1].split("\t")
    for number, line in rows:
        if line.strip():
            values = line.split("\t")
            if len(values) >= len(names):
                yield dict(zip(names, values, strict=False))
            elif not skip_short:
                raise DataError(
                    f"Line {number} of {path} has {len(values)} columns, not {len(names)}; repair or remove it."
                )


def text_value(value: Any) -> str:
    """The value itself if it is a text; for files whose values may be anything."""
    if not isinstance(value, str):
        raise TypeError(f"{shorten(value)} is not a text")
    return value


@cache
def warn_once(sentence: str) -> None:
    """Log a sentence; the same one again, in the next epoch or evaluation, says nothing new."""
    log.warning(sentence)


def _place(header: list[str], column: str, path: Path) -> int:
    if column not in header:
        raise DataError(f"{path} has no column {column!r}; it has {', '.join(header) or 'none'}.")
    return header.index(column)


def require_parallel(files: Sequence[Path], counts: Sequence[int]) -> None:
    """Refuse two files with different numbers of sentences as translations of each other."""
    if len(set(counts)) > 1:
        raise DataError(
            f"{files[0]} has {counts[0]:,} lines and {files[1]} has {counts[1]:,}, so they are not translations of "
            "each other line by line; give two files of the same length."
        )
