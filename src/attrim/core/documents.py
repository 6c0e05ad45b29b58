"""JSON and YAML files as plain values, read with bounds: whatever a file holds, it is values or one sentence.

Python's readers trust what they read. Brackets within brackets exhaust the stack, an alias of YAML that stands for two
others doubles with each line, a key that occurs twice hides one of its values, and the numbers ``NaN`` and ``1e999``
are not JSON at all. All of these are refused here.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from ..errors import ArtefactError, shorten

MOST_BYTES = 512 * 2**20
"""Of a JSON file; the largest that attrim writes, scores of every example, have a few MB."""
MOST_DEPTH = 64
"""Of lists and objects within each other."""
MOST_YAML_BYTES = 2**20
MOST_YAML_NODES = 100_000
"""Values of a YAML file, those that an alias stands for counted again."""


class Unreadable(ValueError):
    """Why a document is refused, in a few words and without its name."""


class MissingFile(ArtefactError):
    """A file that is not there."""


def read_json(path: Path, remedy: str) -> Any:
    """The values in a JSON file.

    Parameters
    ----------
    remedy : what to do about a file that is missing or damaged, the end of the error's sentence.
    """
    try:
        return parse_json(read_bytes(path))
    except FileNotFoundError as error:
        raise MissingFile(f"{path} is missing; {remedy}.") from error
    except OSError as error:
        raise ArtefactError(f"{path} cannot be read ({error.strerror or error}); {remedy}.") from error
    except Unreadable as error:
        raise ArtefactError(f"{path} is damaged ({error}); {remedy}.") from error


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a file; refuses what is no file, and more than ``most`` bytes."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe or a device may never end
        raise Unreadable("it is a folder" if path.is_dir() else "it is not a plain file")
    with path.open("rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise Unreadable(f"it has more than {most / 2**20:.0f} MiB")
    return content


def parse_json(content: bytes | str) -> Any:
    """The values of a JSON text; raises :class:`Unreadable`."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        values = json.loads(text, object_pairs_hook=_object, parse_constant=_not_json)
    except RecursionError as error:
        raise Unreadable(f"lists and objects are nested more than {MOST_DEPTH} deep") from error
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise Unreadable(f"{error.msg.removesuffix(' at')} at line {error.lineno} column {error.colno}") from error
    except Unreadable:
        raise
    except ValueError as error:  # a whole number with thousands of digits
        raise Unreadable(str(error).partition(";")[0]) from error
    _check(values)
    return values


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Unreadable(f"the key {shorten(twice)} occurs twice")
    return values


def _not_json(constant: str) -> Any:
    raise Unreadable(f"{constant} is not a number in JSON")


def _check(values: Any) -> None:
    """Refuse what is nested too deep, numbers that no float holds, and half characters, which cannot be printed."""
    level = [[values]]
    for _ in range(MOST_DEPTH + 1):
        inner: list[Any] = []
        for values in level:
            for value in values:
                if isinstance(value, dict):
                    inner += [list(value), list(value.values())]
                elif isinstance(value, list):
                    inner.append(value)
                elif isinstance(value, str):
                    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
                        raise Unreadable(f"the text {shorten(value, ascii)} is not Unicode")
                elif isinstance(value, float) and not math.isfinite(value):
                    raise Unreadable("a number is too large")
        if not inner:
            return
        level = inner
    raise Unreadable(f"lists and objects are nested more than {MOST_DEPTH} deep")


def read_yaml(path: Path) -> Any:
    """The values of a YAML file, all scalars as texts; raises :class:`Unreadable` or OSError."""
    if path.is_dir():
        raise Unreadable("it is a folder")
    with path.open("rb") as stream:  # a pipe is fine: --config <(command)
        content = stream.read(MOST_YAML_BYTES + 1)
    if len(content) > MOST_YAML_BYTES:
        raise Unreadable(f"it has more than {MOST_YAML_BYTES / 2**20:.0f} MiB")
    return parse_yaml(content)


def parse_yaml(content: bytes) -> Any:
    """The values of a YAML text, all scalars as texts; raises :class:`Unreadable`."""
    import yaml

    try:
        loader = yaml.BaseLoader(content.decode("utf-8-sig"))
        node = _composed(loader)
        if node is None:
            return None
        _expanded(node, {}, 0)
        values = _values(node)
        _check(values)
        return values
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except yaml.YAMLError as error:
        raise Unreadable(" ".join(str(error).split())) from error


def _composed(loader: Any) -> Any:
    try:
        return loader.get_single_node()
    except RecursionError as error:
        raise Unreadable(f"lists and mappings are nested more than {MOST_DEPTH} deep") from error
    finally:
        loader.dispose()


def _expanded(node: Any, known: dict[int, int], depth: int) -> int:
    """How many values a node stands for, aliases written out; refuses too many, too deep, and circles."""
    if depth > MOST_DEPTH:  # an alias of something that it is part of gets here, too
        raise Unreadable(f"lists and mappings are nested more than {MOST_DEPTH} deep")
    if id(node) not in known:
        total = 1 + sum(_expanded(inner, known, depth + 1) for inner in _inner(node))
        if total > MOST_YAML_NODES:
            raise Unreadable(f"it stands for more than {MOST_YAML_NODES:,} values")
        known[id(node)] = total
    return known[id(node)]


def _inner(node: Any) -> list[Any]:
    if isinstance(node.value, str):
        return []
    return [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]


def _values(node: Any) -> Any:
    if isinstance(node.value, str):
        return node.value
    if node.id == "sequence":
        return [_values(inner) for inner in node.value]
    values: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = _values(key_node)
        if not isinstance(key, Hashable):
            raise Unreadable("a list or a mapping stands in place of a key")
        if key in values:
            raise Unreadable(f"the key {shorten(key)} occurs twice")
        values[key] = _values(value_node)
    return values
