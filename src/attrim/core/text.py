"""The one grammar of edits, stats, selections, heads and options, for the command line, YAML files, tables and Python.

``NAME[:VALUE|FIELD=VALUE[,...]]`` is an edit or a stat: ``threshold:0.001,layers=0-3+5``. Edits joined by ``then`` are
applied in that order: ``threshold:0.1 then gate:0.5``. A list is written ``[1, 2]``, and a value that holds a comma or
the word ``then`` is quoted. Nothing here imports torch, so that flags are read before it is needed.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import numbers
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import ParameterError, UnknownName, nearest, shorten
from .order import first_heads
from .paths import home_path, require_text
from .registry import EDITS, Registry
from .site import Select
from .wording import counted

if TYPE_CHECKING:
    from ..edits.base import Edit

Member = TypeVar("Member")
SELECT_FIELDS = ("roles", "layers", "heads", "names")
WORDED = {"roles": "encoder+cross", "names": "*.layer.0.*+*.layer.1.*"}
"""The fields of a selection that take words, with an example."""
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
NOTHING = ("", "~", "null", "none")
"""How YAML and the command line write None."""
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"}
NUMBERS_FIRST = (int, float)
"""What a text is tried as before anything else: a whole number stays one, and a number does not become a text."""
LARGEST = 9_999
"""The largest layer or head number that a text may have, so that a slip of the keys does not fill the memory."""
MANY = 8
"""A label lists so many single heads or entries; of more it gives the number."""

_START = r"(?<![^\s=:,\[])"  # where a value may start: quotes and brackets elsewhere are ordinary characters
_QUOTED = rf"""{_START}(?:"(?:[^"\\]|\\.)*"|'[^']*')"""
_THEN = r"(?i:(?<!\S)then(?!\S))"
_NAME = r"([A-Za-z][\w/-]*)\s*"
# What people write between two edits instead of "then"; after a comma or a blank only NAME: can be another edit.
_NOT_THEN = re.compile(rf"(\s*(?:[;|&]|->|>)+\s*|\s+[^\s:=]+\s+){_NAME}(?::|$)|([,\s]\s*){_NAME}:")


# Edits, stats and whatever else is a dataclass in a registry


def parse(registry: Registry[type[Member]], text: str) -> Member:
    """The edit, stat, ... that a text such as ``threshold:0.001`` or ``histogram:rows=true`` describes.

    Parameters
    ----------
    registry : where the name is looked up, such as :data:`~attrim.core.registry.EDITS`.
    text : ``NAME[:VALUE|FIELD=VALUE[,...]]``. Values without a field name fill the fields in order. Where the member
        has a selection, ``roles``, ``layers``, ``heads`` and ``names`` choose; their entries are joined by ``+``,
        ``0-3`` is a range, ``5/11`` is head 11 of layer 5, and ``heads=@FILE:1/2`` is half of an order in a file.
    """
    kind, fields, given = _read_member(registry, text)
    name = _name(kind)
    hints = hints_of(kind)
    values: dict[str, Any] = {}
    for field, value in given.items():
        if field not in fields:
            continue
        if "parse" in fields[field].metadata:
            values[field] = fields[field].metadata["parse"](_unquoted(value))
        else:
            values[field] = convert(_value(value), hints[field], f"field {field!r} of the {registry.kind} {name!r}")
    for item in fields.values():
        if _required(item) and item.name not in values:
            raise ParameterError(
                f"The {registry.kind} {shorten(text)} lacks {item.name!r}; write {name}:{item.name}=... ."
            )
    chosen = {field: parse_selection(field, value) for field, value in given.items() if field not in fields}
    return kind(**values, **({"select": Select(**chosen)} if chosen else {}))


def parse_chain(text: str, select: Select | None = None) -> list[Edit]:
    """The edits that a text describes, in the order in which they are applied: ``threshold:0.1 then gate:0.5``.

    Parameters
    ----------
    select : for the edits that select nothing themselves.
    """
    edits = [parse(EDITS, part) for part in _links(text)]
    if select is None:
        return edits
    return [dataclasses.replace(edit, select=select) if edit.select == Select() else edit for edit in edits]


def parse_one_chain(texts: Sequence[str], select: Select | None = None) -> list[Edit]:
    """The edits of a command with one outcome, where a second text would not mean a second row of a table."""
    if len(texts) > 1:
        raise ParameterError(
            f"--edit is given {len(texts)} times, but this command has one outcome; write the edits in order in one "
            f"text: --edit '{shorten(' then '.join(texts), str, most=200)}'."
        )
    return [edit for text in texts for edit in parse_chain(text, select)]


def folders(text: str) -> list[str]:
    """The folders of stats that the text of one or several edits names, such as ``constant:FOLDER``.

    Files of other programs, which do not say what was measured, are left out.
    """
    found = []
    for part in _links(text):
        _, fields, given = _read_member(EDITS, part)
        read = [name for name in given if name in fields and "parse" in fields[name].metadata]
        found += [_unquoted(given[name]) for name in read if fields[name].metadata.get("stats", True)]
    return [source for source in found if not re.search(r"\.npy(:[^/\\:]+)?$", source)]


def describe(*members: Any) -> str:
    """A short label of edits, applied in order, or of one stat.

    :func:`parse_chain` and :func:`parse` read it back, unless it stands for tensors, or for many heads or entries.
    """
    return " then ".join(_label(member) for member in members)


def spell(member: Any, **fields: str) -> str:
    """The text of an edit or a stat that :func:`parse` reads back, however many heads or entries it has.

    Parameters
    ----------
    fields : the texts of those fields that hold tensors, such as the folder that they were read from.
    """
    return _label(member, fields, whole=True)


def _links(text: str) -> list[str]:
    """The texts of single edits that ``then`` joins."""
    parts = [part.strip() for part in _cut(text, _THEN)]
    if len(parts) > 1 and "" in parts:
        raise ParameterError(f"There is an edit missing beside a 'then' in {shorten(text)}; write EDIT then EDIT.")
    return parts


def _read_member(registry: Registry[Any], text: str) -> tuple[Any, dict[str, dataclasses.Field[Any]], dict[str, str]]:
    """A member, its fields, and the texts of those fields and selections that are given."""
    require_text(text, f"text of the {registry.kind}")
    _refuse_several(registry, text)
    name, _, rest = text.strip().partition(":")
    kind = registry[name]
    owner = f"{registry.kind} {_name(kind)!r}"
    fields = {item.name: item for item in _fields(kind)}
    selects = SELECT_FIELDS if fields.pop("select", None) else ()
    ordered = [item.name for item in fields.values() if not item.kw_only]
    given: dict[str, str] = {}
    named = ""
    for place, part in enumerate(part for part in map(str.strip, _cut(rest, ",")) if part):
        match = re.fullmatch(r"([A-Za-z_][\w-]*)\s*=\s*(.*)", part, re.DOTALL)
        if match:
            named, value = match[1].replace("-", "_"), match[2]
        elif named:
            written = f"{named}={given[named]}+{part}" if named in selects else f"FIELD={part}"
            raise ParameterError(
                f"{shorten(part)} in {shorten(text)} comes after {named}=..., so it needs the name of its field; "
                f"{'several are joined by +, as in' if named in selects else 'write'} {shorten(written, str)}."
            )
        elif place >= len(ordered):
            raise ParameterError(
                f"The {registry.kind} {shorten(text)} has too many values: {shorten(part)} belongs to no field of "
                f"{_name(kind)!r}."
            )
        field, value = (named, value) if match else (ordered[place], part)
        if field in given:
            raise ParameterError(f"The {registry.kind} {shorten(text)} gives {field!r} twice; leave one out.")
        if field not in fields and field not in selects:
            raise UnknownName(f"field of the {owner}", field, [*fields, *selects])
        given[field] = value
    return kind, fields, given


def _refuse_several(registry: Registry[Any], text: str) -> None:
    """Refuse two members in one text; most often the word between two edits is not ``then``."""
    text = text.strip()
    several = len(_cut(text, _THEN)) > 1
    match = None if several or re.search(_QUOTED, text) else _NOT_THEN.search(text)
    if match and (match[2] or match[4]).lower().replace("_", "-") in registry:
        several = True
        if registry is EDITS:
            begin, end = match.span(1 if match[1] else 3)
            raise ParameterError(
                f"{text[begin:end].strip() or ' '!r} does not join edits, 'then' does; did you mean "
                f"{shorten(f'{text[:begin].strip()} then {text[end:].strip()}')}?"
            )
    if several:
        raise ParameterError(f"One {registry.kind} was expected, not {shorten(text)}; give them one by one.")


def _label(member: Any, given: Mapping[str, str] | None = None, whole: bool = False) -> str:
    """The text of a member; ``given`` are texts of some fields, and ``whole`` writes everything out."""
    parts: list[str] = []
    given = {name: _quote(text) for name, text in (given or {}).items()}
    for item in _fields(member):
        value = getattr(member, item.name)
        if item.name == "select" or not item.metadata.get("label", True):
            continue
        if not _required(item) and _same(value, _default(item)):
            continue
        # Only the first field may go without its name.
        first = item is next(item for item in _fields(member) if item.name != "select")
        text = given.get(item.name) or _text(value, whole)
        parts.append(text if first and not item.kw_only else f"{item.name}={text}")
    select = getattr(member, "select", None) or Select()
    chosen = {name: getattr(select, name) for name in SELECT_FIELDS if getattr(select, name) is not None}
    parts += [f"{name}={_choice(entries, whole)}" for name, entries in chosen.items()]
    return ":".join(filter(None, (_name(type(member)), ",".join(parts))))


def _fields(kind: Any) -> list[dataclasses.Field[Any]]:
    """The fields of a dataclass that are parameters; none for any other class."""
    return [item for item in dataclasses.fields(kind) if item.init] if dataclasses.is_dataclass(kind) else []


def _name(kind: Any) -> str:
    return str(getattr(kind, "registered_name", kind.__name__))


def _required(item: dataclasses.Field[Any]) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def _default(item: dataclasses.Field[Any]) -> Any:
    return item.default if item.default_factory is dataclasses.MISSING else item.default_factory()


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and not hasattr(value, "ndim") and bool(value == default)


def _text(value: Any, whole: bool = False) -> str:
    """The inverse of :func:`_value` for what can be written; shapes and numbers of sites for tensors."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if hasattr(value, "ndim") and hasattr(value, "shape"):
        return "x".join(str(size) for size in value.shape) if value.ndim else repr(value.item())
    if isinstance(value, Mapping) or hasattr(value, "sites"):
        return counted(len(value if isinstance(value, Mapping) else value.sites), "site")
    if isinstance(value, (list, tuple)):
        if len(value) > MANY and not whole:
            return f"{len(value)} entries"
        return f"[{','.join(_text(entry) for entry in value)}]"
    return _quote(str(value)) if isinstance(value, (str, Path)) else str(value)


def _quote(text: str) -> str:
    """The text, in quotes if it would be read as something else."""
    if text and text == text.strip() and not re.search(rf"""[,=\[\]"'\\]|{_THEN}""", text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# Selections and heads


def parse_heads(text: str) -> list[Any]:
    """The heads that a text describes, as :class:`Select` takes them.

    ``3`` is head 3 of every site, ``5/11`` is head 11 of layer 5, ``SITE/11`` is head 11 of the site of that name,
    ``0-3`` and ``5/0-3`` are ranges; ``+`` joins them. ``@FILE:1/2`` is the first half of the order in a file
    (:func:`attrim.core.order.read_order`).
    """
    return parse_selection("heads", text)


def parse_selection(field: str, text: str) -> list[Any]:
    """``0-3+5``, ``5/11+0/3`` or ``encoder+cross`` as the list that this field of :class:`Select` takes."""
    text = _unquoted(text)
    if field == "heads" and text.startswith("@"):
        return list(first_heads(text[1:]))
    found: list[Any] = []
    for entry in (entry.strip() for entry in text.split("+")):
        found += [entry] if entry and field in WORDED else _numbers(field, entry, text)
        if len(found) > LARGEST + 1:
            raise ParameterError(f"{field}={shorten(text, str)} chooses more than {LARGEST}; leave some out.")
    return found


def _numbers(field: str, entry: str, text: str) -> Sequence[Any]:
    """One entry of ``layers`` or ``heads``: a number or a range, of any layer or of one."""
    match = re.fullmatch(r"(?:(?P<where>.+)/)?(?P<first>-?\d+)(?:-(?P<last>\d+))?", entry)
    if match is None or (match["where"] and field != "heads"):
        raise _no_selection(field, entry, text)
    where: Any = match["where"]
    if where and re.fullmatch(r"-?\d+", where):
        where = _bounded(where, field, text)
    first = _bounded(match["first"], field, text)
    last = first if match["last"] is None else _bounded(match["last"], field, text)
    if first > last or (first < 0 and match["last"]):
        raise _no_selection(field, entry, text)
    return [number if where is None else (where, number) for number in range(first, last + 1)]


def _bounded(digits: str, field: str, text: str) -> int:
    number = int(digits) if len(digits) < 20 else LARGEST + 1
    if abs(number) > LARGEST:
        raise ParameterError(
            f"{shorten(digits, str)} in {field}={shorten(text, str)} is more than the {LARGEST} layers or heads that a "
            "selection may have."
        )
    return number


def _no_selection(field: str, entry: str, text: str) -> ParameterError:
    """The error for an entry that is neither a number nor a range, with what was probably meant."""
    span = re.fullmatch(r"(\d{1,9})\s*(?:\.\.+|:|-|–|—|to)\s*(\d{1,9})", entry)
    if span:
        first, last = sorted((int(span[1]), int(span[2])))
        way_out = f"did you mean {field}={first}-{last}?"
    elif field == "layers" and re.fullmatch(r"\d+/\d+", entry):
        way_out = f"did you mean heads={entry}?"
    elif field == "heads":
        way_out = "write numbers and ranges such as heads=0-3+5, or LAYER/HEAD such as heads=5/11."
    else:
        example = WORDED.get(field, "0-3+5")
        way_out = f"write {'words' if field in WORDED else 'numbers and ranges'} such as {field}={example}."
    return ParameterError(f"{shorten(entry)} in {field}={shorten(text, str)} is not a selection; {way_out}")


def _choice(entries: Sequence[Any], whole: bool = False) -> str:
    """The inverse of :func:`parse_selection`, with runs of numbers as ranges and many single heads as their number."""
    plain = [entry[1] if isinstance(entry, tuple) and entry[0] is None else entry for entry in entries]
    if len(plain) > MANY and not whole and any(isinstance(entry, tuple) for entry in plain):
        return f"{len(plain)} heads"
    runs: list[list[Any]] = []
    for entry in plain:
        grows = runs and isinstance(entry, int) and isinstance(runs[-1][-1], int) and entry == runs[-1][-1] + 1 > 0
        if grows and runs[-1][0] >= 0:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return "+".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else _entry(run[0]) for run in runs)


def _entry(entry: Any) -> str:
    return f"{entry[0]}/{entry[1]}" if isinstance(entry, tuple) else str(entry)


# Values


def parse_options(texts: Iterable[str], kind: Any, owner: str) -> dict[str, Any]:
    """Read ``name=value`` texts as the type hints of the dataclass ``kind`` ask for; ``owner`` names it in errors."""
    hints = hints_of(kind)
    known = [name for name in inspect.signature(kind).parameters if name != "select"]
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise ParameterError(
                f"The option {shorten(text)} of the {owner} has no value; write {shorten(name, str, most=40)}=VALUE."
            )
        if name not in known:
            raise UnknownName(f"option of the {owner}", name, known)
        values[name] = convert(_value(value), hints[name], f"option {name!r} of the {owner}")
    return values


def convert(value: Any, hint: Any, what: str) -> Any:
    """Read a value as a type hint asks for; what does not fit is one sentence.

    Parameters
    ----------
    value : a text, or a list of texts. One text where a list is expected is a list with one entry.
    hint : any combination of bool, int, float, str, Path, Literal, tuple, Sequence and None; Any takes the text itself.
    what : names the value in errors, such as ``field 'bar' of the edit 'threshold'``.

    Notes
    -----
    A general library does not do: pydantic reads ``1.0`` as the whole number 1 where ``int | float`` is asked for, and
    to a :class:`~attrim.edits.threshold.Threshold` the first means all keys and the second one key.
    """
    try:
        return _read(value, hint, what)
    except _Misfit as error:
        raise misfit(error.args[0], hint, what) from None


class _Misfit(Exception):
    """A value, or the entry of a list, that a type hint has no place for."""


def misfit(value: Any, hint: Any, what: str) -> ParameterError:
    """The error for a value that a type hint has no place for."""
    takes = takes_of(hint)
    way_out = f"give {takes}" if takes else "it cannot be written as text, so do this in Python"
    return ParameterError(f"The {what} cannot be {shorten(value)}; {way_out}.")


def takes_of(hint: Any) -> str:
    """What a hint asks for, in words; empty when no text can be that."""
    options = options_of(hint)
    words = [word for option, word in WORDS.items() if option in options]
    for option in options:
        if get_origin(option) in (tuple, Sequence) and (entry := takes_of(get_args(option)[0])):
            words.append(f"a list whose entries are each {entry}")
        if get_origin(option) is Literal:
            words.append(f"one of {', '.join(filter(None, get_args(option)))}")
    return " or ".join(words)


def options_of(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


class _Unknown:
    """Stands for a type that only a type checker can look up."""

    def __class_getitem__(cls, _: Any) -> type[_Unknown]:
        return cls


_HINTS: dict[tuple[Any, bool], dict[str, Any]] = {}
"""What was found by :func:`hints_of`, which took most of the time that an edit needs to be made."""


def hints_of(kind: Any, include_extras: bool = False) -> Mapping[str, Any]:
    """The type hint of every field; names that only type checkers import are unknown here."""
    unknown: dict[str, Any] = {}
    while (kind, include_extras) not in _HINTS:
        try:
            _HINTS[kind, include_extras] = get_type_hints(kind, localns=unknown, include_extras=include_extras)
        except NameError as error:
            if error.name is None or error.name in unknown:
                raise
            unknown[error.name] = _Unknown
    return _HINTS[kind, include_extras]


def check_fields(member: Any, kind: str, but: Iterable[str] = ()) -> None:
    """Refuse fields of a dataclass that do not hold what their type hints say.

    Parameters
    ----------
    kind : what the member is, such as ``stat``.
    but : names of fields that are not checked.
    """
    hints = hints_of(type(member))
    for item in dataclasses.fields(member):
        if item.init and item.name not in but and not _accepts(getattr(member, item.name), hints[item.name]):
            what = f"field {item.name!r} of the {kind} {_name(type(member))!r}"
            raise misfit(getattr(member, item.name), hints[item.name], what)


def _accepts(value: Any, hint: Any) -> bool:
    """Whether a hint has a place for a value; hints that say nothing have one for every value."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(_accepts(value, option) for option in get_args(hint))
    if hint is None or hint is type(None):
        return value is None
    if hint in (int, float):
        if isinstance(value, bool) or not isinstance(value, numbers.Integral if hint is int else numbers.Real):
            return False
        number: Any = value
        return bool(number == number and (abs(number) < 2**63 or abs(number) == math.inf))
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) in (tuple, Sequence):
        entry = get_args(hint)[0]
        return isinstance(value, Sequence) and not isinstance(value, str) and all(_accepts(one, entry) for one in value)
    return _fits(value, hint)


def read_numbers(member: Any) -> None:
    """Turn the numbers of a new edit into Python's own, which can be saved; refuse what does not fit."""
    hints = hints_of(type(member))
    for item in dataclasses.fields(member):
        before, what = getattr(member, item.name), f"field {item.name!r} of the edit {_name(type(member))!r}"
        if get_origin(hints[item.name]) is Literal and not isinstance(before, str):
            raise misfit(before, hints[item.name], what)
        after = _plain(before, hints[item.name], what)
        if after is not before:
            object.__setattr__(member, item.name, after)


def _plain(value: Any, hint: Any, what: str) -> Any:
    options = options_of(hint)
    if not any(option in (bool, int, float) for option in options):
        return value
    if isinstance(value, Mapping):
        inner = next((get_args(option)[1] for option in options if get_origin(option) is Mapping), None)
        if inner is not None:
            return {name: _plain(item, inner, what) for name, item in value.items()}
    others = [option for option in options if option not in (bool, int, float)]
    if getattr(value, "ndim", None) == 0 and not any(isinstance(o, type) and isinstance(value, o) for o in others):
        value = value.item()
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ParameterError(f"The {what} cannot be {shorten(value)}; that is too large.")
    if any(_fits(value, option) for option in options):
        return value
    raise misfit(value, hint, what)


def _fits(value: Any, option: Any) -> bool:
    """Whether an option allows a value; anything but a plain class is left to the edit's own checks."""
    kind = get_origin(option) or option
    if kind in (int, float):
        return isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    return not isinstance(kind, type) or kind in (Any, _Unknown) or isinstance(value, kind)


def _read(value: Any, hint: Any, what: str) -> Any:
    options = options_of(hint)
    if type(None) in options and isinstance(value, str) and value.lower() in NOTHING:
        return None
    wrong = value
    for option in sorted(options, key=lambda option: (*NUMBERS_FIRST, option).index(option)):
        try:
            return _read_one(value, option, what)
        except _Misfit as error:
            wrong = error.args[0]
    raise _Misfit(wrong)


def _read_one(value: Any, option: Any, what: str) -> Any:
    """The value as one alternative of a hint."""
    origin = get_origin(option)
    if origin in (tuple, Sequence):
        return tuple(_read(entry, get_args(option)[0], what) for entry in _entries(value))
    if not isinstance(value, str):
        raise _Misfit(value)
    require_text(value, what)
    if origin is Literal:
        if value not in get_args(option):
            way_out = nearest(value, get_args(option)) or f"give {takes_of(option)}."
            raise ParameterError(f"The {what} cannot be {shorten(value)}; {way_out}")
        return value
    if option is bool and value.lower() in BOOLEANS:
        return BOOLEANS[value.lower()]
    if option in (int, float):
        return _number(value, option, what)
    if option is Path:
        return home_path(value, what)
    if option in (str, Any):
        return value
    raise _Misfit(value)


def _number(text: str, kind: Any, what: str) -> Any:
    """A number that fits into 64 bits; neither NaN nor infinity is one."""
    try:
        number = kind(text)
    except ValueError:
        if not re.fullmatch(r"\s*[+-]?\d{100,}\s*", text):
            raise _Misfit(text) from None
        number = math.inf  # Python makes no whole number of several thousand digits
    if number != number or "inf" in text.lower():
        raise _Misfit(text)
    if abs(number) >= (math.inf if kind is float else 2**63):
        raise ParameterError(f"The {what} cannot be {shorten(text)}; that is too large.")
    return number


def _entries(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _value(text: str) -> Any:
    """The list that a text such as ``[1, 0]`` writes; any other text without the quotes around it."""
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return _unquoted(text)
    return [_unquoted(entry) for entry in _cut(text[1:-1], ",") if text[1:-1].strip()]


def _unquoted(text: str) -> str:
    text = text.strip()
    if not re.fullmatch(_QUOTED, text, re.DOTALL):
        return text
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL) if text[0] == '"' else text[1:-1]


def _cut(text: str, separator: str) -> list[str]:
    """Split at a separator (a regular expression) that stands neither in quotes nor in the brackets of a list."""
    parts, begin, depth = [], 0, 0
    pattern = rf"{_QUOTED}|(?P<list>{_START}\[)|(?P<open>\[)|(?P<close>\])|(?P<separator>{separator})"
    for match in re.finditer(pattern, text, re.DOTALL):
        if match["list"] or (match["open"] and depth):
            depth += 1
        elif match["close"] and depth:
            depth -= 1
        elif match["separator"] and not depth:
            parts.append(text[begin : match.start()])
            begin = match.end()
    return [*parts, text[begin:]]
