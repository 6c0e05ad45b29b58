"""From the words of a command line to a command; whatever is wrong with them becomes one sentence.

Flags and YAML values are texts that one reader, :func:`attrim.core.text.convert`, turns into what the fields of the
command ask for, so that both mean the same and say the same about mistakes. tyro writes the help.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from ..core.documents import Unreadable, read_yaml
from ..core.paths import home_path, require_text
from ..core.text import convert, hints_of, takes_of
from ..errors import AttrimError, UnknownName, shorten
from .base import Command

MARKERS = (tyro.conf.FlagCreatePairsOff,)
HELP = ("-h", "--help")
HELP_NAMES = ConstructorRegistry()
"""What the help calls the values of flags where tyro has no name that a reader knows."""


@HELP_NAMES.primitive_rule
def _optional(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """A flag that may be left out takes INT, not {None}|INT."""
    options = [option for option in get_args(kind.type) if option is not type(None)]
    if len(options) != 1 or len(options) == len(get_args(kind.type)) or not isinstance(options[0], type):
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=options[0].__name__.upper(),
        instance_from_str=lambda texts: texts[0],
        is_instance=lambda value: value is None or isinstance(value, options[0]),
        str_from_instance=lambda value: [str(value)],
    )


class UsageError(AttrimError):
    """Words that are no command, or flags that do not fit it."""


def parse(words: Sequence[str], commands: Mapping[str, type[Command]]) -> Command:
    """Build the command that the words describe; ``--help`` prints help and ends the program.

    Parameters
    ----------
    words : the command line without the program's name.
    commands : name to class of every command.
    """
    for place, word in enumerate(words, 1):
        require_text(word, f"argument {place}")
    if not words or words[0] in HELP:
        with HELP_NAMES:
            tyro.extras.subcommand_cli_from_dict(dict(commands), prog="attrim", args=["--help"], config=MARKERS)
    name, rest = _name(words, commands)
    kind = commands[name.replace(" ", "-")]
    if set(HELP) & set(rest):
        with HELP_NAMES:
            tyro.cli(kind, prog=f"attrim {name}", args=["--help"], config=MARKERS)
    flags = _flags(kind)
    given = _given(f"attrim {name}", rest, flags)
    values = {}
    if "config" in given:
        values = _from_yaml(home_path(given["config"][-1], f"flag --config of 'attrim {name}'"), flags)
    for key, texts in given.items():
        flag = flags[key]
        value = convert(flag.choose(texts), flag.hint, f"{flag.what} of 'attrim {name}'")
        # A flag that may be repeated adds to the list of the file; any other wins over it.
        values[key] = (*values.get(key, ()), *value) if flag.repeatable else value
    for flag in flags.values():
        if flag.required and flag.key not in values:
            raise UsageError(f"'attrim {name}' needs {flag.word} ({flag.takes}); see 'attrim {name} --help'.")
    return kind(**values)


def _name(words: Sequence[str], commands: Mapping[str, type[Command]]) -> tuple[str, list[str]]:
    """The command that is named, as it is written, and the other words.

    A command whose name has a hyphen may be written as two words: ``dynamics copy`` is ``dynamics-copy``.
    """
    first, *rest = words
    if first in commands:
        return first, rest
    family = {name.removeprefix(f"{first}-"): kind for name, kind in commands.items() if name.startswith(f"{first}-")}
    if not family:
        raise UnknownName("command", first, commands)
    if rest and rest[0] in family:
        return f"{first} {rest[0]}", rest[1:]
    if set(HELP) & set(rest):
        with HELP_NAMES:
            tyro.extras.subcommand_cli_from_dict(dict(family), prog=f"attrim {first}", args=["--help"], config=MARKERS)
    if not rest:
        raise UsageError(f"'attrim {first}' needs one of {', '.join(family)}; see 'attrim {first} --help'.")
    raise UnknownName(f"command of 'attrim {first}'", rest[0], family)


@dataclass(frozen=True)
class Flag:
    """One field of a command, as it is written on the command line.

    Attributes
    ----------
    key : the name of the field.
    word : ``--batch-size``, or ``MODEL`` for a positional one.
    hint : the type of the field.
    repeatable : whether every occurrence adds one entry.
    """

    key: str
    word: str
    hint: Any
    positional: bool
    repeatable: bool
    required: bool

    @property
    def what(self) -> str:
        """What errors call it."""
        return self.word if self.positional else f"flag {self.word}"

    @property
    def several(self) -> bool:
        """Whether one occurrence takes all words up to the next flag."""
        return get_origin(self.hint) is tuple and not self.repeatable

    @property
    def takes(self) -> str:
        """What one occurrence asks for, in words."""
        return takes_of(get_args(self.hint)[0] if self.repeatable else self.hint) or "a text"

    def choose(self, texts: list[str]) -> Any:
        """Out of all texts, those that count: where only one can, the last."""
        return texts if self.several or self.repeatable else texts[-1]


def _flags(kind: type[Command]) -> dict[str, Flag]:
    """The flags of a command by the names of their fields."""
    hints = hints_of(kind, include_extras=True)
    flags = {}
    for item in dataclasses.fields(kind):
        hint, *markers = get_args(hints[item.name]) if get_origin(hints[item.name]) is Annotated else [hints[item.name]]
        if not item.init or tyro.conf.Suppress in markers:
            continue
        positional = tyro.conf.Positional in markers
        # As tyro names them in the help: a switch that is on by default gets a flag that turns it off.
        word = f"--{'no-' * (item.default is True)}{item.name}".replace("_", "-")
        if positional:
            word = next((marker.metavar for marker in markers if getattr(marker, "metavar", None)), item.name.upper())
        required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        repeatable = tyro.conf.UseAppendAction in markers
        flags[item.name] = Flag(item.name, word, hint, positional, repeatable, required)
    return flags


def _given(program: str, words: Sequence[str], flags: Mapping[str, Flag]) -> dict[str, list[str]]:
    """The texts of every flag that is given, by field; several for a flag that takes or is given several."""
    known = {flag.word: flag for flag in flags.values() if not flag.positional}
    positional = [flag for flag in flags.values() if flag.positional]
    given: dict[str, list[str]] = {}
    left = list(words)
    surplus = []
    while left:
        word, equals, value = left.pop(0).partition("=")
        if not _is_flag(word):
            word += equals + value
            if positional and positional[0].several:  # it takes all that are left
                given[positional[0].key] = [*given.get(positional[0].key, ()), word]
            elif positional:
                given[positional.pop(0).key] = [word]
            else:
                surplus.append(word)
            continue
        flag = known.get(word.replace("_", "-"))
        if flag is None:
            raise UnknownName(f"flag of '{program}'", word, known)
        texts = [value] if equals else []
        if flag.hint is bool and not equals:
            texts = ["false" if flag.word.startswith("--no-") and flag.key[:3] != "no_" else "true"]
        while not equals and flag.hint is not bool and left and not _is_flag(left[0]) and (flag.several or not texts):
            texts.append(left.pop(0))
        if not texts and not flag.several:
            raise UsageError(f"The {flag.what} of '{program}' needs a value; give {flag.takes}.")
        given[flag.key] = [*given.get(flag.key, ()), *texts] if flag.repeatable else texts
    if surplus:
        raise UsageError(f"'{program}' does not know what to do with {shorten(shlex.join(surplus))}; see --help.")
    return given


def _is_flag(word: str) -> bool:
    """Whether a word is a flag and not a value, which may be a negative number."""
    return bool(re.match(r"--?[A-Za-z]", word))


def _from_yaml(path: Path, flags: Mapping[str, Flag]) -> dict[str, Any]:
    """What a configuration file says about the fields of a command."""
    values = {}
    for key, value in _read_yaml(path).items():
        name = str(key).replace("-", "_")
        if name not in flags:
            raise UnknownName(f"key of {path}", name, flags)
        values[name] = convert(value, flags[name].hint, f"key {name!r} of {path}")
    return values


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        # Values stay texts, as flags are: 1e-3 and 0123 mean the same in both, and the command's types say the rest.
        values = read_yaml(path)
    except OSError as error:
        raise UsageError(f"The configuration {path} cannot be read ({error.strerror}); check the path.") from error
    except Unreadable as error:
        raise UsageError(f"{path} is not valid YAML ({error}); repair it.") from error
    if values is None:
        raise UsageError(f"{path} is empty; write 'flag: value' lines into it, or leave --config out.")
    if not isinstance(values, dict):
        raise UsageError(f"{path} must hold 'flag: value' lines, not a {type(values).__name__}.")
    return values
