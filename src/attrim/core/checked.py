"""Dataclasses whose fields are checked when they are made, compared by content, and go to JSON and back.

Type hints say what a field may hold. Sequences of numbers become read-only float64 arrays, other sequences tuples.
In JSON, NaN in an array is ``null``; elsewhere it is ``{"number": "nan"}``, and an infinite number is
``{"number": "inf"}`` or ``{"number": "-inf"}``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from ..errors import ArtefactError, ParameterError
from .record import same

Numbers = Annotated[Any, 1]
"""Anything that numpy reads as an array with one axis; NaN stands for a missing number."""
Grid = Annotated[Any, 2]
"""The same with two axes."""
Cell = Annotated[Any, "cell"]
"""A text, a number, a truth value or None; NaN becomes None."""


@dataclass(frozen=True, eq=False)
class Part:
    """Base of charts and of all that is stored like them: fields are converted and checked, and compared by content."""

    def __post_init__(self) -> None:
        for name, hint in _hints(self).items():
            value = _fit(getattr(self, name), hint, f"{type(self).__name__}.{name}")
            object.__setattr__(self, name, value)
        self.check()

    def check(self) -> None:
        """Refuse fields that do not fit together."""

    def require(self, holds: bool, reason: str) -> None:
        """Raise an error that names this part, unless ``holds``."""
        if not holds:
            named = f" {self.name!r}" if getattr(self, "name", "") else ""  # type: ignore[attr-defined]
            raise ParameterError(f"{type(self).__name__}{named}: {reason}.")

    def __eq__(self, other: object) -> bool:
        return same(self, other)

    def __hash__(self) -> int:
        return hash((type(self), getattr(self, "name", "")))


def _hints(part: object) -> dict[str, Any]:
    """Names and type hints of the fields."""
    kind: Any = type(part)
    return _class_hints(kind)


@cache
def _class_hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _fit(value: Any, hint: Any, where: str) -> Any:
    """The value as the type hint of its field wants it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _cell(value, where) if inner[1] == "cell" else _array(value, inner[1], where)
    if origin is Literal:
        return value if value in inner else _refuse(value, f"one of {', '.join(map(repr, inner))}", where)
    if origin in (Union, UnionType):
        return _fit_one_of(value, inner, where)
    if origin is Sequence:
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
            _refuse(value, "a sequence", where)
        return tuple(_fit(item, inner[0], f"{where}[{number}]") for number, item in enumerate(value))
    if hint in (float, int) and not isinstance(value, bool) and hasattr(value, "__float__"):
        number = float(value)
        if hint is int and not number.is_integer():
            _refuse(value, "a whole number", where)
        return int(value) if hint is int else number
    return value if isinstance(value, hint) else _refuse(value, f"a {hint.__name__}", where)


def _fit_one_of(value: Any, hints: tuple[Any, ...], where: str) -> Any:
    if NoneType in hints and (value is None or (isinstance(value, float) and math.isnan(value))):
        return None
    others = [hint for hint in hints if hint is not NoneType]
    if len(others) == 1:
        return _fit(value, others[0], where)
    for hint in others:
        if isinstance(value, hint):
            return value
    return _refuse(value, " or ".join(hint.__name__ for hint in others), where)


def _cell(value: Any, where: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        return None
    return (
        value if value is None or isinstance(value, (str, int, float)) else _refuse(value, "a text or a number", where)
    )


def _array(value: Any, axes: int, where: str) -> Any:
    try:
        array = np.asarray(value, dtype=np.float64).copy()  # what was given may change later
    except (TypeError, ValueError):
        return _refuse(value, f"numbers with {axes} axes", where)
    if array.ndim != axes:
        raise ParameterError(f"{where} must have {axes} axes, not the shape {list(array.shape)}.")
    array.setflags(write=False)
    return array


def _refuse(value: Any, wanted: str, where: str) -> Any:
    text = repr(value)
    raise ParameterError(f"{where} must be {wanted}, not {text if len(text) <= 60 else text[:60] + '…'}.")


def dump(part: Part) -> dict[str, Any]:
    """JSON values: the fields that do not have their default, and the class as ``kind``."""
    found: dict[str, Any] = {"kind": type(part).__name__}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.default is dataclasses.MISSING or not same(value, field.default):
            found[field.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Part):
        return dump(value)
    if isinstance(value, np.ndarray):
        return value.tolist() if np.isfinite(value).all() else _with_gaps(value.tolist())
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else {"number": str(value)}


def _with_gaps(numbers: Any) -> Any:
    """Nested lists of numbers with ``null`` for NaN."""
    if isinstance(numbers, list):
        return [_with_gaps(number) for number in numbers]
    return None if math.isnan(numbers) else _plain(numbers)


def restore(value: Any) -> Any:
    """What :func:`dump` made JSON values of, or an error that says what is wrong with them."""
    if isinstance(value, list):
        return [restore(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if set(value) == {"number"} and value["number"] in ("nan", "inf", "-inf"):
        return float(value["number"])
    kind = _kinds().get(value.get("kind"))  # type: ignore[arg-type]
    if kind is None:
        raise ArtefactError(f"Nothing is stored as {value.get('kind')!r}; another version of attrim wrote this file.")
    given = {name: restore(item) for name, item in value.items() if name != "kind"}
    try:
        return kind(**given)
    except (TypeError, ParameterError) as error:
        raise ArtefactError(
            f"A stored {kind.__name__} cannot be read ({error}); restore the file or make it again."
        ) from error


@cache
def _kinds() -> dict[str, type[Part]]:
    found: dict[str, type[Part]] = {}
    waiting = Part.__subclasses__()
    while waiting:
        kind = waiting.pop()
        found[kind.__name__] = kind
        waiting += kind.__subclasses__()
    return found
