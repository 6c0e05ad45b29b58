"""Progress bars on the error stream, which stay silent where it is not a terminal."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Bar:
    """A progress bar that is shown: what is at work, and how much of it is done."""

    def __init__(self, describe: Callable[[str], None], advance: Callable[[], None]) -> None:
        self.describe = describe
        self.advance = advance


@contextmanager
def progress_bar(total: int | None, description: str = "", enabled: bool = True) -> Iterator[Bar]:
    """A bar over ``total`` pieces of work (None where their number is not known), with the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (enabled and console.is_terminal)) as progress:
        work = progress.add_task(description, total=total)
        yield Bar(lambda text: progress.update(work, description=text), lambda: progress.advance(work))


def track(items: Sequence[T], describe: Callable[[T], str], enabled: bool = True) -> Generator[T]:
    """Yield the items while a bar shows which one is at work and how long the rest will take."""
    with progress_bar(len(items), enabled=enabled) as bar:
        for item in items:
            bar.describe(describe(item))
            yield item
            bar.advance()
