"""The command line: parse, call, print."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

from .commands import commands
from .commands.base import Outcome
from .commands.parsing import parse
from .core.processor import prepare_half_precision
from .errors import AttrimError

USER_ERROR, INTERRUPTED = 2, 130


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 2 for what the user can put right, 130 after Ctrl-C."""
    # Threads that spin while they wait took four times the CPU time on a machine that did other work too.
    # This must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        command = parse(sys.argv[1:] if words is None else words, commands())
        if getattr(command, "dtype", "float32") != "float32":
            # Not left to the loading: a command may run the model in float32 before it trains in bfloat16: too late.
            prepare_half_precision()
        _print(command.run(), command.json)
    except AttrimError as error:
        print(f"attrim: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("attrim: stopped; what was written so far is complete and the same command resumes.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _give_up_output()  # the reader (head, less) has gone
    return 0


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
