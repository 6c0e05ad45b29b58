"""What the fields of an edit may hold, from their type hints."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints

from torch import Tensor

from ..core.text import misfit, options_of

NUMBERS = (bool, int, float)


def hints_of(kind: type) -> dict[str, Any]:
    """The type hint of every field; none for a class inside of a function, whose hints cannot be looked up."""
    try:
        return get_type_hints(kind)
    except NameError:
        return {}


def read_numbers(edit: Any) -> None:
    """Turn the numbers of an edit that is being made into Python's own, which can be saved; refuse what is none."""
    hints = hints_of(type(edit))
    for item in dataclasses.fields(edit):
        before = getattr(edit, item.name)
        name = getattr(edit, "registered_name", type(edit).__name__)
        after = _read(before, hints.get(item.name), f"field {item.name!r} of the edit {name!r}")
        if after is not before:
            object.__setattr__(edit, item.name, after)


def _read(value: Any, hint: Any, what: str) -> Any:
    options = options_of(hint)
    if not any(option in NUMBERS for option in options):
        return value
    if isinstance(value, Mapping):
        inner = next((get_args(option)[1] for option in options if get_origin(option) is Mapping), None)
        if inner is not None:
            return {name: _read(item, inner, what) for name, item in value.items()}
    if getattr(value, "ndim", None) == 0 and not (isinstance(value, Tensor) and Tensor in options):
        value = value.item()
    if isinstance(value, (int, float)) or any(_fits(value, option) for option in options):
        return value
    raise misfit(value, hint, what)


def _fits(value: Any, option: Any) -> bool:
    """Whether an option allows a value; one that is no plain class is left to the edit's own checks."""
    kind = get_origin(option) or option
    return not isinstance(kind, type) or kind is Any or isinstance(value, kind)
