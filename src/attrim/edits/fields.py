"""What the fields of an edit may hold, from their type hints."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from ..errors import ParameterError

WORDS = {bool: "true or false", int: "a whole number", float: "a number"}


def hints_of(kind: type) -> dict[str, Any]:
    """The type hint of every field; none for a class inside of a function, whose hints cannot be looked up."""
    try:
        return get_type_hints(kind)
    except NameError:
        return {}


def options_of(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def wrong_value(kind: type, field: str, value: Any, options: tuple[Any, ...]) -> ParameterError:
    """The error for a field that cannot be ``value``."""
    takes = [word for option, word in WORDS.items() if option in options]
    way_out = f"give {' or '.join(takes)}" if takes else "it cannot be written as text, so make this edit in Python"
    name = getattr(kind, "registered_name", kind.__name__)
    return ParameterError(f"The field {field!r} of the edit {name!r} cannot be {value!r}; {way_out}.")


def read_numbers(edit: Any) -> None:
    """Turn the numbers of an edit that is being made into Python's own, which can be saved; refuse what is none."""
    hints = hints_of(type(edit))
    for item in dataclasses.fields(edit):
        before = getattr(edit, item.name)
        after = _read(before, hints.get(item.name), type(edit), item.name)
        if after is not before:
            object.__setattr__(edit, item.name, after)


def _read(value: Any, hint: Any, kind: type, field: str) -> Any:
    options = options_of(hint)
    if not any(option in WORDS for option in options):
        return value
    if isinstance(value, Mapping):
        inner = next((get_args(option)[1] for option in options if get_origin(option) is Mapping), None)
        if inner is not None:
            return {name: _read(item, inner, kind, field) for name, item in value.items()}
    if getattr(value, "ndim", None) == 0 and not (isinstance(value, Tensor) and Tensor in options):
        value = value.item()
    if isinstance(value, (int, float)) or any(_fits(value, option) for option in options):
        return value
    raise wrong_value(kind, field, value, options)


def _fits(value: Any, option: Any) -> bool:
    """Whether an option allows a value; one that is no plain class is left to the edit's own checks."""
    kind = get_origin(option) or option
    return not isinstance(kind, type) or kind is Any or isinstance(value, kind)
