"""Orders of heads as files, and how many of their heads a budget takes."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ArtefactError, ParameterError, shorten
from .paths import home_path

T = TypeVar("T")
Budget = int | float | str
OrderedHead = tuple[int | str, int]
"""Layer number or site name, and head number."""
ALL = "all"
LONGEST_BUDGET = 40
"""Characters of a budget."""
LONGEST = 100_000
"""The most heads that a file may list, far beyond any model."""


def budget(order: Sequence[T], k: Budget) -> list[T]:
    """The first heads of an order.

    Parameters
    ----------
    order : all heads, as :meth:`attrim.scores.Scores.order` gives them.
    k : see :func:`budget_size`.
    """
    return list(order[: budget_size(k, len(order))])


def budget_size(k: Budget, total: int) -> int:
    """How many heads a budget is.

    Parameters
    ----------
    k : a whole number is a number of heads; a float, or a text with a point, slash or per cent sign, is a share of
        all heads, rounded down; ``all`` is all of them.
    """
    share = isinstance(k, float) or (isinstance(k, str) and any(sign in k for sign in "./%"))
    text = str(k).strip()
    try:
        if len(text) > LONGEST_BUDGET or re.search(r"e[+-]?\d{4}", text, re.IGNORECASE):
            raise ValueError(text)  # 1e999999999 as a fraction fills the memory
        # Through the text, because 0.29 of 100 heads is 29, and the float is a little less.
        number = (
            Fraction(text.removesuffix("%")) / (100 if text.endswith("%") else 1) if text != ALL else Fraction(total)
        )
    except (ValueError, ZeroDivisionError):
        number = Fraction(-1)
    if isinstance(k, bool) or number < 0 or number > (1 if share else total):
        raise ParameterError(
            f"{shorten(k)} is not a budget of {total} heads; give a number from 0 to {total}, a share such as 1/2, or "
            "all."
        )
    return int(number * total) if share else int(number)


def first_heads(text: str) -> list[OrderedHead]:
    """The heads that ``FILE:BUDGET`` names: the first ones of an order in a file; all of them without a budget."""
    path, colon, wanted = text.rpartition(":")
    if not colon or Path(text).exists():
        path, wanted = text, ALL
    heads = budget(read_order(Path(path)), wanted)
    if not heads:
        raise ParameterError(f"The budget {wanted!r} of {shorten(path, str)} is no head at all; give a larger one.")
    return heads


def read_order(path: Path) -> list[OrderedHead]:
    """The heads that a file lists, the one that is replaced first at the front.

    ``.json`` holds a list of ``[layer or site name, head]``, or an object with such a list as ``order``; ``.csv`` has
    the columns ``head`` and ``site`` or ``layer``, and is sorted by its column ``place`` where it has one.
    """
    path = home_path(path)
    readers = {".json": _from_json, ".csv": _from_csv}
    if path.suffix not in readers:
        raise ArtefactError(f"An order of heads is read from a .json or .csv file, not from {path}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ArtefactError(f"There is no file {path} with an order of heads; check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ArtefactError(f"The order of heads in {path} cannot be read ({error}); check the file.") from error
    if not text.strip():
        raise ArtefactError(f"{path} is empty; an order lists every head.")
    heads = readers[path.suffix](text, path)
    seen: set[OrderedHead] = set()
    for where, head in heads:
        if head in seen:
            raise ArtefactError(f"{where} of {path} names head {head[0]}/{head[1]} again; list every head once.")
        seen.add(head)
    if not 0 < len(heads) <= LONGEST:
        raise ArtefactError(f"{path} holds no order of heads: it lists {len(heads)} of them.")
    return [head for _, head in heads]


Located = list[tuple[str, OrderedHead]]
"""Where in the file each head is, and the head."""


def _from_json(text: str, path: Path) -> Located:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArtefactError(f"{path} is not JSON ({shorten(error, str)}); write [[layer, head], ...].") from error
    if isinstance(found, dict):
        found = found.get("order")
    if not isinstance(found, list):
        raise ArtefactError(f"{path} holds no order of heads; write [[layer, head], ...].")
    heads: Located = []
    for number, entry in enumerate(found, 1):
        pair = isinstance(entry, list) and len(entry) == 2
        if not pair or not (_whole(entry[0]) or isinstance(entry[0], str)) or not _whole(entry[1]):
            raise ArtefactError(
                f"Entry {number} of {path} is not [layer or site, head], such as [0, 3]: {shorten(entry)}."
            )
        heads.append((f"Entry {number}", (entry[0], entry[1])))
    return heads


def _from_csv(text: str, path: Path) -> Located:
    rows = csv.DictReader(text.splitlines())
    columns = [name.strip().lower() for name in rows.fieldnames or ()]
    rows.fieldnames = columns
    where = next((name for name in ("site", "layer") if name in columns), None)
    if where is None or "head" not in columns:
        missing = "'site' or 'layer'" if where is None else "'head'"
        raise ArtefactError(f"{path} has no column {missing}; it has {shorten(', '.join(columns), str)}.")
    heads: list[tuple[int, str, OrderedHead]] = []
    places: set[int] = set()
    try:
        for row in rows:
            line = f"Line {rows.line_num}"
            at = str(row[where]) if where == "site" else _number(row[where], line, path)
            head = at, _number(row["head"], line, path)
            place = _number(row["place"], line, path) if "place" in columns else len(heads)
            if place in places:
                raise ArtefactError(f"{line} of {path} has the place {place} again; give every head its own.")
            places.add(place)
            heads.append((place, line, head))
    except csv.Error as error:
        raise ArtefactError(f"Line {rows.line_num} of {path} is not CSV ({error}); repair it.") from error
    return [(line, head) for _, line, head in sorted(heads, key=lambda entry: entry[0])]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(text: str | None, line: str, path: Path) -> int:
    digits = (text or "").strip()
    if not (digits.isdecimal() and len(digits) < 10):
        raise ArtefactError(f"{line} of {path} has {shorten(digits)} where a number belongs; repair it.")
    return int(digits)
