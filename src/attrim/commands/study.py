"""One command for every study: its flags are the fields of the study and of the bench that it needs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..studies.base import Study  # at run time too: tyro reads the hints of a command
from .base import Command, Outcome

if TYPE_CHECKING:
    from ..studies.findings import Findings

Format = Literal["png", "svg", "pdf"]
REPORT = "report.html"
"""The file of a run's folder that shows all that it found."""


@dataclass(frozen=True, kw_only=True)
class StudyCommand(Command):
    """Run a study, keep what it found, and show it."""

    study: ClassVar[type[Study]]
    formats: tuple[Format, ...] = ("png", "svg", "pdf")
    """Formats of the figures."""

    def __post_init__(self) -> None:
        """Check nothing yet: tyro makes commands with holes in them; the study is made, and checked, to run it."""

    def run(self) -> Outcome:
        """Make the study and its bench, run it, and show what it found."""
        study = self.study(**self._fields(self.study))
        bench = self.study.bench(**{**self._fields(self.study.bench), "quiet": not self.progress})
        return present(study.run(bench), self.formats, progress=self.progress)

    def _fields(self, kind: Any) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(kind)}


_COMMANDS: dict[type, type[StudyCommand]] = {}


def command_of(study: type[Study]) -> type[StudyCommand]:
    """The command of a study, always the same class."""
    if study not in _COMMANDS:
        body = {"__doc__": study.__doc__, "__module__": study.__module__, "study": study}
        kind = type(study.__name__, (StudyCommand, study, study.bench), body)
        _COMMANDS[study] = dataclass(frozen=True, kw_only=True)(kind)
    return _COMMANDS[study]


def present(
    findings: Findings, formats: tuple[Format, ...], *, redraw: bool = False, progress: bool = False
) -> Outcome:
    """Write the charts, tables and report of findings to their run's folder, and show what fits on a screen.

    Figures that are there and show the same numbers are not drawn again unless ``redraw`` is set.
    """
    from ..report.drawing import Drawing
    from ..report.page.payload import Material
    from ..report.page.single_file import write_report
    from ..report.sheets import write_tables
    from ..report.terminal import show

    charts = findings.charts()
    with Drawing(charts, findings.folder / "figures", formats, redraw=redraw) as drawing:
        tables = findings.tables()
        sheets = write_tables(tables, findings.folder / "tables")
        report = write_report([Material(findings, charts, tables)], findings.folder / REPORT)
        figures = drawing.finish(progress)
    data: dict[str, Any] = {
        "model": findings.model,
        "folder": str(findings.folder),
        **findings.data(),
        "figures": [str(path) for path in figures],
        "tables": [str(path) for path in sheets],
        "report": str(report),
    }
    shown: list[Any] = [show(table) for table in tables if not table.detail]
    pictures = [f"  {path}" for path in figures if path.suffix == f".{formats[0]}"] if formats else []
    if pictures:
        shown += ["", f"Figures ({', '.join(formats)}):", *pictures]
    if sheets:
        shown += ["Tables:", *(f"  {path}" for path in sheets)]
    where = [f"Everything is in {findings.folder}", f"Open {report} in a browser to look at it"]
    return Outcome(data, [*shown, *where, "", *findings.sentences()])
