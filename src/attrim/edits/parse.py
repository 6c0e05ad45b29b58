"""Edits as short text, for the command line, configuration files and tables: ``threshold:0.001,layers=0-3+5``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..core.registry import EDITS
from ..core.site import Select
from ..core.text import convert
from ..errors import ParameterError, UnknownName
from .base import Edit
from .fields import hints_of

SELECT_FIELDS = ("roles", "layers", "heads", "names")


def parse_edit(text: str) -> Edit:
    """The edit that a text such as ``threshold:0.001`` or ``gate:0,heads=3`` describes.

    Parameters
    ----------
    text : ``NAME[:VALUE|FIELD=VALUE[,...]]``. Values without a field name fill the fields in order. ``roles``,
        ``layers``, ``heads`` and ``names`` select; their entries are joined by ``+``, ``0-3`` is a range, ``5/11`` is
        head 11 of layer 5.
    """
    kind, fields, given = _split(text)
    values = {name: _value(kind, fields[name], value) for name, value in given.items() if name in fields}
    chosen = {name: _selection(name, value) for name, value in given.items() if name not in fields}
    missing = [item.name for item in fields.values() if _required(item) and item.name not in values]
    if missing:
        raise ParameterError(f"The edit {text!r} lacks {missing[0]!r}; write {kind.registered_name}:{missing[0]}=... .")
    return kind(**values, select=Select(**chosen))


def folders(text: str) -> list[str]:
    """The folders of stats that the text of an edit names, such as ``constant:FOLDER``."""
    _, fields, given = _split(text)
    return [value for name, value in given.items() if name in fields and "parse" in fields[name].metadata]


def _split(text: str) -> tuple[type[Edit], dict[str, dataclasses.Field[Any]], dict[str, str]]:
    """The kind of an edit, its fields, and the texts of those fields and selections that are given."""
    name, _, rest = text.strip().partition(":")
    kind = EDITS[name]
    fields = {item.name: item for item in dataclasses.fields(kind) if item.name != "select"}
    ordered = [item.name for item in fields.values() if not item.kw_only]
    given: dict[str, str] = {}
    for index, item in enumerate(part.strip() for part in rest.split(",") if part.strip()):
        match = re.fullmatch(r"([A-Za-z_]+)\s*=\s*(.*)", item)
        if match is None and index >= len(ordered):
            raise ParameterError(f"The edit {text!r} has too many values: {item!r} belongs to no field of {name!r}.")
        field, value = (match[1], match[2]) if match else (ordered[index], item)
        if field in given:
            raise ParameterError(f"The edit {text!r} gives {field!r} twice; leave one out.")
        if field not in fields and field not in SELECT_FIELDS:
            raise UnknownName(f"field of the edit {name!r}", field, [*fields, *SELECT_FIELDS])
        given[field] = value
    return kind, fields, given


def describe(edit: Edit) -> str:
    """A short label of an edit for tables; :func:`parse_edit` reads it back unless the edit holds tensors."""
    parts: list[str] = []
    positional = True
    for item in dataclasses.fields(edit):
        value = getattr(edit, item.name)
        if item.name == "select":
            continue
        if value is None or (not _required(item) and _same(value, item.default)):
            positional = False
            continue
        # Only the first field may go without its name.
        parts.append(_text(value) if positional and not item.kw_only else f"{item.name}={_text(value)}")
        positional = False
    parts += [
        f"{name}={_choice(getattr(edit.select, name))}"
        for name in SELECT_FIELDS
        if getattr(edit.select, name) is not None
    ]
    return ":".join(filter(None, (edit.registered_name, ",".join(parts))))


def _required(item: dataclasses.Field[Any]) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def _same(value: Any, default: Any) -> bool:
    return not isinstance(value, Tensor) and type(value) is type(default) and bool(value == default)


def _value(kind: type[Edit], item: dataclasses.Field[Any], text: str) -> Any:
    """The text of one field as what the field's type hint asks for."""
    if "parse" in item.metadata:
        return item.metadata["parse"](text)
    return convert(text, hints_of(kind)[item.name], f"field {item.name!r} of the edit {kind.registered_name!r}")


def _selection(field: str, text: str) -> list[Any]:
    """``0-3+5``, ``5/11+0/3`` or ``encoder+cross`` as the list that :class:`Select` takes."""
    entries = [entry.strip() for entry in text.split("+")]
    if field in ("roles", "names"):
        return entries
    result: list[Any] = []
    for entry in entries:
        span = re.fullmatch(r"(\d+)-(\d+)", entry)
        pair = re.fullmatch(r"(.+)/(-?\d+)", entry) if field == "heads" else None
        if span and int(span[1]) <= int(span[2]):
            result += range(int(span[1]), int(span[2]) + 1)
        elif pair:
            result.append((int(pair[1]) if re.fullmatch(r"-?\d+", pair[1]) else pair[1], int(pair[2])))
        elif re.fullmatch(r"-?\d+", entry):
            result.append(int(entry))
        else:
            raise ParameterError(
                f"{field}={text!r} is not a selection; write numbers and ranges such as {field}=0-3+5."
            )
    return result


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Tensor):
        return "x".join(str(size) for size in value.shape) if value.ndim else repr(value.item())
    if isinstance(value, Mapping):
        return f"{len(value)} sites" if len(value) != 1 else "1 site"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{len(value)} entries"
    return str(value)


def _choice(entries: Sequence[Any]) -> str:
    """The inverse of :func:`_selection`, with runs of numbers as ranges and many single heads as their number."""
    plain = [entry[1] if isinstance(entry, tuple) and entry[0] is None else entry for entry in entries]
    if len(plain) > 8 and any(isinstance(entry, tuple) for entry in plain):
        return f"{len(plain)} heads"
    runs: list[list[Any]] = []
    for entry in plain:
        grows = runs and isinstance(entry, int) and isinstance(runs[-1][-1], int) and entry == runs[-1][-1] + 1 > 0
        if grows and runs[-1][0] >= 0:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 1 else _entry(run[0]) for run in runs]
    return "+".join(words)


def _entry(entry: Any) -> str:
    return f"{entry[0]}/{entry[1]}" if isinstance(entry, tuple) else str(entry)
