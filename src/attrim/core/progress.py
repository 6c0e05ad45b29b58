"""A progress bar on the error stream, which stays silent when nobody watches it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")


def track(items: Sequence[T], describe: Callable[[T], str], enabled: bool = True) -> Generator[T]:
    """Yield the items while a bar shows which one is at work and how long the rest will take."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (enabled and console.is_terminal)) as bar:
        work = bar.add_task("", total=len(items))
        for item in items:
            bar.update(work, description=describe(item))
            yield item
            bar.advance(work)
