"""``attrim report``: what runs found, as one HTML file that opens anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from ..errors import ArtefactError
from .base import Command, Outcome, register


@register("report")
@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Write what a run found to one HTML file that needs nothing else; several runs side by side."""

    runs: Positional[Annotated[tuple[Path, ...], arg(metavar="RUN [RUN ...]")]]
    """Folders of runs, such as runs/sparsity-0123456789ab."""
    output: Path | None = None
    """File to write (default: report.html in the folder of the run; for several runs here)."""
    all: bool = False
    """Embed the average pattern of every head at full size, whatever room that takes."""

    def run(self) -> Outcome:
        """Read the findings of all runs, and write the page."""
        from ..report.page.single_file import write_report
        from ..studies.findings import findings

        found = [findings(folder) for folder in self.runs]
        path = self.output or (self.runs[0] if len(self.runs) == 1 else Path()) / "report.html"
        if path.is_dir():
            raise ArtefactError(f"{path} is a folder; give a file, such as {path / 'report.html'}.")
        written = write_report(found, path, everything=self.all)
        size = written.stat().st_size
        data = {"report": str(written), "bytes": size, "runs": [str(folder) for folder in self.runs]}
        return Outcome(data, [f"Open {written} in a browser to look at it ({size / 1e6:.1f} MB)"])
