"""The command line: parse, call, print."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any, NoReturn

from .commands import commands
from .commands.base import Outcome
from .commands.parsing import parse
from .core.processor import prepare_half_precision
from .core.signals import on_stop
from .errors import AttrimError, one_line, shorten

USER_ERROR, UNFORESEEN, KILLED = 2, 70, 128
"""Exit codes: what the user can put right, a bug (``EX_SOFTWARE`` of sysexits), and what a signal's number adds to."""
ENVIRONMENT = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP,
    errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOTDIR, errno.EISDIR,
)  # fmt: skip
"""System errors that say something about the machine or the path that was given, not about attrim."""
NO_MEMORY = ("can't allocate memory", "out of memory", "Unable to allocate")
"""How torch and numpy say that the memory is full."""


class Stopped(KeyboardInterrupt):
    """A signal that asks the program to end; whatever handles Ctrl-C handles it, too."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    0, 2 for what the user can put right, 70 for a bug in attrim, 130, 143 and 129 after Ctrl-C, SIGTERM and SIGHUP.
    """
    words = sys.argv[1:] if words is None else words
    try:
        with on_stop(_stop):  # SIGTERM and SIGHUP end as Ctrl-C does
            return _main(words)
    except KeyboardInterrupt as stop:
        _say("stopped; what was written so far is complete and the same command goes on.")
        return KILLED + (stop.number if isinstance(stop, Stopped) else signal.SIGINT)
    except Exception as error:
        return _unforeseen(error, words)


def _main(words: Sequence[str]) -> int:
    # Threads that spin while they wait took four times the CPU time on a machine that did other work too.
    # This must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        command = parse(words, commands())
        if getattr(command, "dtype", "float32") != "float32":
            # Not left to the loading: a command may run the model in float32 before it trains in bfloat16: too late.
            prepare_half_precision()
        _print(command.run(), command.json)
    except AttrimError as error:
        _say(str(error))
        return USER_ERROR
    except BrokenPipeError:
        _give_up_output()  # the reader (head, less) has gone
    return 0


def _stop(number: int, _: object) -> NoReturn:
    raise Stopped(number)


def _say(sentence: str) -> None:
    """Print one sentence to standard error, if there still is one: a terminal that was closed has none."""
    with suppress(OSError):
        print(f"attrim: {one_line(sentence)}", file=sys.stderr, flush=True)


def _unforeseen(error: Exception, words: Sequence[str]) -> int:
    """Say in one sentence what no command has foreseen, and keep the traceback for a report."""
    full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if full or isinstance(error, MemoryError) or any(said in str(error) for said in NO_MEMORY):
        _say("The memory of this machine is not enough; use a smaller --batch-size, --max-length or --limit.")
        return USER_ERROR
    if isinstance(error, OSError) and error.errno in ENVIRONMENT:
        where = shorten(str(error.filename), str, 120) if error.filename else "A file"
        _say(f"{where} cannot be read or written ({error.strerror}); check the path and the room on the disk.")
        return USER_ERROR
    report = _report(error, words)
    try:
        handle, path = tempfile.mkstemp(prefix="attrim-error-", suffix=".txt")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(report)
    except OSError:
        with suppress(OSError):
            print(report, file=sys.stderr)
        path = ""
    place = f"the traceback in {path}" if path else "the traceback above"
    cause = one_line(f"{type(error).__name__}: {error}", most=120)
    _say(f"An unforeseen error ended the command ({cause}); this is a bug in attrim: please report it with {place}.")
    return UNFORESEEN


def _report(error: Exception, words: Sequence[str]) -> str:
    """What a bug report needs: the command line, versions and the traceback."""
    versions = []
    for package in ("attrim", "torch", "transformers", "numpy"):
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{package} {metadata.version(package)}")
    command = shorten(shlex.join(["attrim", *words]), str, most=10_000)
    about = f"Python {platform.python_version()}, {platform.platform()}, {', '.join(versions)}"
    return "\n".join([command, about, "", *traceback.format_exception(error)])


def _print(outcome: Outcome, as_json: bool) -> None:
    try:
        if as_json:
            print(json.dumps(_plain(outcome.data), indent=2, ensure_ascii=False, allow_nan=False))
        else:
            _show(outcome)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _give_up_output()
        raise AttrimError(f"The result could not be printed ({error.strerror}); print it elsewhere.") from error


def _give_up_output() -> None:
    """Let nothing more be written: Python would complain again when it closes the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show(outcome: Outcome) -> None:
    from rich.console import Console

    # Piped to a file, a table must not be squeezed into the 80 columns that rich then assumes.
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    # Written in one go and by us: rich would end the program itself when the reader of a pipe has gone.
    with console.capture() as captured:
        for part in outcome.shown:
            console.print(part, soft_wrap=isinstance(part, str))
    sys.stdout.write(captured.get())


def _plain(value: Any) -> Any:
    """The value with null for NaN and infinity, which JSON does not know."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
