"""From the words of a command line to a command; whatever is wrong with them becomes one sentence."""

from __future__ import annotations

import dataclasses
import io
import shlex
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, get_type_hints

import tyro

from ..core.text import convert
from ..errors import AttrimError, UnknownName
from .base import Command

MARKERS = (tyro.conf.FlagCreatePairsOff,)


class UsageError(AttrimError):
    """Words that are no command, or flags that do not fit it."""


def parse(words: Sequence[str], commands: Mapping[str, type[Command]]) -> Command:
    """Build the command that the words describe; ``--help`` prints help and ends the program.

    Parameters
    ----------
    words : the command line without the program's name.
    commands : name to class of every command.
    """
    if not words or words[0] in ("-h", "--help"):
        tyro.extras.subcommand_cli_from_dict(dict(commands), prog="attrim", args=["--help"], config=MARKERS)
    name, rest = words[0], list(words[1:])
    if name not in commands:
        raise UnknownName("command", name, commands)
    kind = commands[name]
    errors = io.StringIO()
    try:
        with redirect_stderr(errors):
            command, unknown = tyro.cli(
                kind,
                prog=f"attrim {name}",
                args=rest,
                default=_defaults(kind, rest),
                return_unknown_args=True,
                config=MARKERS,
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise UsageError(f"{_sentence(errors.getvalue())} (attrim {name} --help lists the flags)") from stop
    if unknown:
        if not unknown[0].startswith("-"):
            raise UsageError(f"'attrim {name}' does not know what to do with {shlex.join(unknown)!r}; see --help.")
        flags = ["--" + field.name.replace("_", "-") for field in dataclasses.fields(kind)]
        raise UnknownName(f"flag of 'attrim {name}'", unknown[0].partition("=")[0], flags)
    return command


def _defaults(kind: type[Command], words: Sequence[str]) -> Any:
    """The command as the YAML file of ``--config`` describes it, with holes for what it does not say."""
    path = _config_path(words)
    if path is None:
        return tyro.MISSING_NONPROP
    values = {key.replace("-", "_"): value for key, value in _read_yaml(path).items()}
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints = get_type_hints(kind)
    for key, value in values.items():
        if key not in fields:
            raise UnknownName(f"key of {path}", key, fields)
        # What may be an object in Python, such as a model, is a name here.
        values[key] = convert(value, str if hints[key] is Any else hints[key], f"key {key!r} of {path}")
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            values.setdefault(name, tyro.MISSING)
    return kind(**values)


def _config_path(words: Sequence[str]) -> Path | None:
    for place, word in enumerate(words):
        if word == "--config" and place + 1 < len(words):
            return Path(words[place + 1])
        if word.startswith("--config="):
            return Path(word.partition("=")[2])
    return None


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        # Values stay texts, as flags are: 1e-3 and 0123 mean the same in both, and the command's types say the rest.
        values = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)
    except OSError as error:
        raise UsageError(f"The configuration {path} cannot be read ({error.strerror}); check the path.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid YAML ({' '.join(str(error).split())}); repair it.") from error
    if values is None:
        raise UsageError(f"{path} is empty; write 'flag: value' lines into it, or leave --config out.")
    if not isinstance(values, dict):
        raise UsageError(f"{path} must hold 'flag: value' lines, not a {type(values).__name__}.")
    return values


def _sentence(box: str) -> str:
    """Turn the framed message of ``tyro`` into one line: what stands between its title and its first inner rule."""
    kept: list[str] = []
    for line in box.splitlines()[1:]:
        text = line.strip("│╭╮╰╯ ")
        if text and set(text) == {"─"}:
            break
        kept.append(text)
    return " ".join(" ".join(kept).split()).rstrip(".") or "The command line could not be understood"
