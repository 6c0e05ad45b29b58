"""Texts as what a type hint asks for: one reader for edits, for options on the command line and for YAML files."""

from __future__ import annotations

import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from ..errors import ParameterError, UnknownName

BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
NOTHING = ("", "~", "null", "none")
"""How YAML and the command line write None."""
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"}
NUMBERS_FIRST = (int, float)
"""What a text is tried as before anything else: a whole number stays one, and a number does not become a text."""


class _Misfit(Exception):
    """A value that a type hint has no place for."""


def convert(value: Any, hint: Any, what: str) -> Any:
    """Read a value as a type hint asks for; what does not fit is one sentence.

    Parameters
    ----------
    value : a text, or a list of texts. One text where a list is expected is a list with one entry.
    hint : any combination of bool, int, float, str, Path, Literal, tuple, Sequence and None.
    what : names the value in errors, such as ``field 'bar' of the edit 'threshold'``.
    """
    try:
        return _read(value, hint, what)
    except _Misfit:
        raise misfit(value, hint, what) from None


def misfit(value: Any, hint: Any, what: str) -> ParameterError:
    """The error for a value that a type hint has no place for."""
    takes = _takes(hint)
    way_out = f"give {takes}" if takes else "it cannot be written as text, so do this in Python"
    return ParameterError(f"The {what} cannot be {value!r}; {way_out}.")


def _read(value: Any, hint: Any, what: str) -> Any:
    options = options_of(hint)
    if type(None) in options and isinstance(value, str) and value.lower() in NOTHING:
        return None
    for option in sorted(options, key=lambda option: (*NUMBERS_FIRST, option).index(option)):
        try:
            return _read_one(value, option, what)
        except (_Misfit, ValueError):
            continue
    raise _Misfit


def _read_one(value: Any, option: Any, what: str) -> Any:
    """The value as one alternative of a hint."""
    origin = get_origin(option)
    if origin in (tuple, Sequence):
        return tuple(_read(entry, get_args(option)[0], what) for entry in _entries(value))
    if not isinstance(value, str):
        raise _Misfit
    if origin is Literal:
        if value not in get_args(option):
            raise UnknownName(f"value of the {what}", value, get_args(option))
        return value
    if option is bool and value.lower() in BOOLEANS:
        return BOOLEANS[value.lower()]
    if option in (int, float, str, Path):
        return option(value)
    raise _Misfit


def options_of(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _entries(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _takes(hint: Any) -> str:
    """What a hint asks for, in words; empty when no text can be that."""
    options = options_of(hint)
    words = [word for option, word in WORDS.items() if option in options]
    for option in options:
        if get_origin(option) in (tuple, Sequence) and (entry := _takes(get_args(option)[0])):
            words.append(f"a list whose entries are each {entry}")
        if get_origin(option) is Literal:
            words.append(f"one of {', '.join(filter(None, get_args(option)))}")
    return " or ".join(words)


def parse_chain(text: str, select: Any = None) -> list[Any]:
    import dataclasses

    from ..edits.parse import parse_edit
    from .site import Select

    edits = [parse_edit(part) for part in text.split(" then ")]
    return [
        dataclasses.replace(edit, select=select) if select is not None and edit.select == Select() else edit
        for edit in edits
    ]


def one_chain(texts: Any, select: Any = None) -> list[Any]:
    if len(texts) > 1:
        raise ParameterError("Several --edit; use then.")
    return [edit for text in texts for edit in parse_chain(text, select)]


def parse(registry: Any, text: str) -> Any:
    name, _, options = text.partition(":")
    kind = registry[name]
    return kind(**parse_options([option for option in options.split(",") if option], kind, f"{registry.kind} {name}"))


def parse_heads(text: str) -> Any:
    from ..edits.parse import parse_edit

    return parse_edit(f"uniform:heads={text}").select.heads


def folders(text: str) -> list[str]:
    from ..edits.parse import folders as of_edit

    return [folder for part in text.split(" then ") for folder in of_edit(part)]


def describe(edit: Any) -> str:
    from ..edits.parse import describe as of_edit

    return of_edit(edit)


def parse_options(texts: Any, kind: Any, owner: str) -> dict[str, Any]:
    import inspect
    from typing import get_type_hints

    hints = get_type_hints(kind)
    known = [name for name in inspect.signature(kind).parameters if name != "select"]
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise ParameterError(f"The option {text!r} of the {owner} has no value; write {name}=VALUE.")
        if name not in known:
            raise UnknownName(f"option of the {owner}", name, known)
        values[name] = convert(value.strip(), hints[name], f"option {name!r} of the {owner}")
    return values
