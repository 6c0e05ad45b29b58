"""``attrim show``: what the study of a run found, without its model or data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from .base import Command, Outcome, register
from .study import Format, present


@register("show")
@dataclass(frozen=True, kw_only=True)
class Show(Command):
    """Print the tables and sentences of a run and draw the figures that are missing, without its model or data."""

    folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Folder of the run, such as runs/sparsity-0123456789ab."""
    formats: tuple[Format, ...] = ("png", "svg", "pdf")
    """Formats of the figures."""
    redraw: bool = False
    """Draw all figures again, also those that are there."""

    def run(self) -> Outcome:
        """Read the findings back and show them."""
        from ..studies.findings import findings

        return present(findings(self.folder), self.formats, redraw=self.redraw, progress=self.progress)
