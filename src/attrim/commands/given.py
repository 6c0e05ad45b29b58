"""Texts that are written out on the command line, as a task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ..tasks import Example, Task


@dataclass(kw_only=True)
class Given(Task):
    """The given texts, with nothing to score."""

    registered_name: ClassVar[str] = "given texts"
    texts: tuple[str, ...]

    def read(self) -> Iterator[Example]:
        """Yield every text."""
        yield from (Example((text,)) for text in self.texts)
