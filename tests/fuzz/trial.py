"""One trial of the fuzz suite: run something hostile within a deadline, and say what is wrong with how it ended."""

from __future__ import annotations

import contextlib
import io
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrim.cli import main
from attrim.errors import AttrimError

DEADLINE = 20.0
LONGEST = 300
INTERNALS = ("aten::", "Traceback", "Errno", "object at 0x", "NoneType", "could be instantiated", "positional argument")
"""What no sentence for a user may hold: parser and dispatcher internals."""


class Hang(BaseException):
    """Something did not end within its deadline."""


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise :class:`Hang` inside when it takes longer than ``seconds``."""

    def ring(*_: object) -> None:
        raise Hang(f"more than {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def command_line(words: Sequence[str], seconds: float = DEADLINE) -> str:
    """Run a command line in this process; what is wrong with how it ended, or an empty text."""
    out, errors = io.StringIO(), io.StringIO()
    try:
        with deadline(seconds), contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code: Any = main(words)
    except SystemExit as end:
        code = end.code  # after --help
    except Hang as error:
        return f"hangs: {error}"
    except BaseException:
        return f"traceback: {traceback.format_exc()}"
    return judge(code, errors.getvalue())


def judge(code: Any, errors: str) -> str:
    """What is wrong with an exit code and what stands on standard error: code 2 and one sentence, or 0."""
    if code not in (0, 2, None):
        return f"exit code {code}: {errors[:2000]}"
    if code != 2:
        return ""
    if not errors.startswith("attrim: ") or errors.count("\n") != 1:
        return f"not one sentence: {errors[:2000]!r}"
    return sentence(errors.removeprefix("attrim: ").removesuffix("\n"))


def sentence(text: str) -> str:
    """What is wrong with an error's sentence."""
    if not text.isprintable():
        return f"cannot be printed: {text!r}"
    if len(text) > LONGEST:
        return f"{len(text)} characters: {text}"
    return next((f"{internal!r} in {text}" for internal in INTERNALS if internal in text), "")


def call(function: Callable[[], Any], seconds: float = DEADLINE) -> str:
    """Call Python code that may raise a subclass of :class:`AttrimError` and nothing else."""
    try:
        with deadline(seconds):
            function()
    except AttrimError as error:
        return "" if str(error).strip() and "\n" not in str(error) else f"not one sentence: {error!s:.2000}"
    except Hang as error:
        return f"hangs: {error}"
    except BaseException:
        return f"traceback: {traceback.format_exc()}"
    return ""
