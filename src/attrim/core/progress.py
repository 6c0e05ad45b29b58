"""Progress on the error stream: a bar on a terminal, and elsewhere a line from time to time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
FIRST, EVERY = 2.0, 10.0
"""Seconds of work before the first line where there is no terminal, and between lines."""


class Bar:
    """A progress bar that is shown: what is at work, and how much of it is done."""

    def __init__(self, describe: Callable[[str], None], advance: Callable[[], None]) -> None:
        self.describe = describe
        self.advance = advance


@contextmanager
def progress_bar(total: int | None, description: str = "", enabled: bool = True) -> Iterator[Bar]:
    """Progress over ``total`` pieces of work (None where their number is not known)."""
    from rich.console import Console

    console = Console(stderr=True)
    if not enabled:
        yield Bar(lambda text: None, lambda: None)
    elif console.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            work = progress.add_task(description, total=total)
            yield Bar(lambda text: progress.update(work, description=text), lambda: progress.advance(work))
    else:
        with _Lines(total, description) as lines:
            yield lines


class _Lines(Bar):
    """Lines such as "attrim: evaluating threshold:0.1 (3 of 40, 25 s)"; work that is soon done has none.

    A thread prints them, because one piece of work may take minutes. Of bars inside of each other the innermost speaks.
    """

    open: list[_Lines] = []  # noqa: RUF012 (shared on purpose)

    def __init__(self, total: int | None, description: str) -> None:
        super().__init__(self._describe, self._advance)
        self.total, self.description, self.done = total, description, 0
        self.begun, self.over = time.monotonic(), threading.Event()
        self.thread = threading.Thread(target=self._speak, name="attrim-progress", daemon=True)

    def __enter__(self) -> _Lines:
        self.open.append(self)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.thread.join()
        self.open.remove(self)

    def _describe(self, text: str) -> None:
        self.description = text

    def _advance(self) -> None:
        self.done += 1

    def _speak(self) -> None:
        wait = FIRST
        while not self.over.wait(wait):
            wait = EVERY
            if self.open[-1] is self:
                number = "" if self.total is None else f"{min(self.done + 1, self.total)} of {self.total}, "
                seconds = time.monotonic() - self.begun
                print(f"attrim: {self.description} ({number}{seconds:.0f} s)", file=sys.stderr, flush=True)


def track(items: Sequence[T], describe: Callable[[T], str], enabled: bool = True) -> Generator[T]:
    """Yield the items while progress says which one is at work and how long the rest will take."""
    with progress_bar(len(items), enabled=enabled) as bar:
        for item in items:
            bar.describe(describe(item))
            yield item
            bar.advance()
