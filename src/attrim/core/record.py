"""Dataclasses as JSON values and back: what is read is checked against the type hints of the dataclass it becomes.

Types that live elsewhere (a result in the database of a run, tensors in a safetensors file) are given a :class:`Codec`,
which stands for them in the JSON values.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import ArtefactError, AttrimError

NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Numbers that JSON does not know, and the texts that stand for them."""

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a list",
    list: "a list",
    dict: "an object",
    type(None): "None",
}


@dataclass(frozen=True)
class Codec:
    """How one type, and its subclasses, is written as a JSON value and read back."""

    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


Codecs = Mapping[type, Codec]


def dump(value: Any, codecs: Codecs | None = None) -> Any:
    """A value as JSON values: dataclasses become objects, tuples lists, paths texts."""
    codec = _codec(type(value), codecs)
    if codec is not None:
        return codec.dump(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: dump(getattr(value, name), codecs) for name in kept(type(value))}
    if isinstance(value, Mapping):
        return {str(key): dump(item, codecs) for key, item in value.items()}
    if isinstance(value, (list, tuple, Sequence)) and not isinstance(value, str):
        return [dump(item, codecs) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ArtefactError(
        f"A {type(value).__name__} cannot be written as JSON; keep numbers, texts, lists and dataclasses."
    )


def load(hint: Any, value: Any, what: str, codecs: Codecs | None = None) -> Any:
    """JSON values as what a type hint asks for, checked on the way.

    Parameters
    ----------
    hint : a dataclass, or any combination of bool, int, float, str, Path, Literal, tuple, list, dict, None and Any.
    what : names the value in errors, such as ``findings of runs/sparsity-1``.
    """
    if hint is Any:
        return value
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _load_union(arguments, value, what, codecs)
    if origin is Literal:
        if value not in arguments:
            raise _misfit(hint, value, what)
        return value
    kind = origin or hint
    codec = _codec(kind, codecs) if isinstance(kind, type) else None
    if codec is not None:
        return _decoded(codec, hint, value, what)
    if dataclasses.is_dataclass(kind):
        return _load_dataclass(kind, value, what, codecs)
    if kind in (dict, Mapping):
        if not isinstance(value, dict):
            raise _misfit(hint, value, what)
        inner = arguments[1] if arguments else Any
        return {key: load(inner, item, f"{what}, {key!r}", codecs) for key, item in value.items()}
    if kind in (list, tuple, Sequence):
        return _load_entries(kind, arguments, value, what, codecs)
    return _load_plain(kind, value, what)


def kept(kind: type) -> list[str]:
    """The fields of a dataclass that are written: all but those with ``metadata={"kept": False}``."""
    return [field.name for field in dataclasses.fields(kind) if field.init and field.metadata.get("kept", True)]


def same(first: Any, second: Any, codecs: Codecs | None = None) -> bool:
    """Whether two values hold the same numbers and texts: arrays cell by cell, NaN equal to NaN."""
    if type(first) is not type(second):
        return False
    if hasattr(first, "dtype") and hasattr(first, "shape"):
        import numpy as np

        one, other = np.asarray(first), np.asarray(second)
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if dataclasses.is_dataclass(first):
        return all(same(getattr(first, name), getattr(second, name), codecs) for name in kept(type(first)))
    if isinstance(first, Mapping):
        return list(first) == list(second) and all(same(first[key], second[key], codecs) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if hasattr(first, "state"):  # stats
        return same(first.state(), second.state(), codecs)
    return bool(first == second) or (isinstance(first, float) and math.isnan(first) and math.isnan(second))


def _codec(kind: type, codecs: Codecs | None) -> Codec | None:
    if codecs is None:
        return None
    return next((codecs[base] for base in kind.__mro__ if base in codecs), None)


def _decoded(codec: Codec, hint: Any, value: Any, what: str) -> Any:
    try:
        return codec.load(value)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        if isinstance(error, AttrimError):  # which names the cause itself
            raise
        raise _misfit(hint, value, what) from error


def _load_union(options: tuple[Any, ...], value: Any, what: str, codecs: Codecs | None) -> Any:
    if value is None and type(None) in options:
        return None
    for option in options:
        if option is not type(None):
            try:
                return load(option, value, what, codecs)
            except ArtefactError:
                continue
    raise _misfit(" or ".join(map(_name, options)), value, what)


def _load_dataclass(kind: Any, value: Any, what: str, codecs: Codecs | None) -> Any:
    if not isinstance(value, dict):
        raise _misfit(kind, value, what)
    names, hints = kept(kind), get_type_hints(kind)
    unknown = [key for key in value if key not in names]
    if unknown:
        raise ArtefactError(f"The {what} cannot be read: a {kind.__name__} has no field {unknown[0]!r}.")
    read = {name: load(hints[name], value[name], f"{what}, {name!r}", codecs) for name in names if name in value}
    try:
        return kind(**read)
    except (TypeError, ValueError, AttrimError) as error:  # a field is missing, or its value is refused
        raise ArtefactError(f"The {what} cannot be read: {str(error).rstrip('.')}.") from error


def _load_entries(kind: Any, arguments: tuple[Any, ...], value: Any, what: str, codecs: Codecs | None) -> Any:
    if not isinstance(value, list):
        raise _misfit(kind, value, what)
    if kind is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(value) != len(arguments):
            raise ArtefactError(f"The {what} cannot be read: it has {len(value)} entries, not {len(arguments)}.")
        hints: Sequence[Any] = arguments
    else:
        hints = [arguments[0] if arguments else Any] * len(value)
    entries = [load(hint, item, f"{what}, entry {place}", codecs)
               for place, (hint, item) in enumerate(zip(hints, value, strict=True))]  # fmt: skip
    return entries if kind is list else tuple(entries)


def _load_plain(kind: Any, value: Any, what: str) -> Any:
    if kind is float and isinstance(value, str) and value in NOT_FINITE:
        return NOT_FINITE[value]
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind in (bool, int, float, str, type(None)) and type(value) is kind:
        return value
    raise _misfit(kind, value, what)


def _misfit(hint: Any, value: Any, what: str) -> ArtefactError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return ArtefactError(f"The {what} cannot be read: {shown} is not {_name(hint)}.")


def _name(hint: Any) -> str:
    """A type hint in words."""
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    kind = get_origin(hint) or hint
    return hint if isinstance(hint, str) else _WORDS.get(kind, getattr(kind, "__name__", str(kind)))
