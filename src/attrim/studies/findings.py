"""What a study found: kept in its run, read back as it was made, and shown as tables, charts and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

from .. import __version__
from ..core import record
from ..core.cells import Cell
from ..core.charts import Chart, Table, dump, load
from ..core.registry import STUDIES
from ..core.text import describe
from ..edits.base import Edit
from ..edits.saving import load_edits, save_edits
from ..errors import ArtefactError, UnknownName
from ..runs.result import Result
from ..runs.run import Run
from ..scores.base import Scores
from ..stats.bundle import Stats
from .base import Study

FILE, EDITS_FOLDER, FORMAT = "findings.json", "edits", 1


@dataclass(frozen=True)
class Setting:
    """One row of a study's table: edits under a name, and where they stand in its charts.

    Attributes
    ----------
    name : the edits as text; results are stored under it.
    group : the line of a chart that it belongs to.
    value : where it stands on that line: a bar, a number of bits, a budget or a layer.
    label : what to call it for people, where that is not the name.
    """

    name: str
    group: str = ""
    value: float = 0.0
    edits: tuple[Edit, ...] = ()
    label: str = ""

    def __post_init__(self) -> None:
        # A whole number (bits, a layer) is read back as a float, and must be equal to itself.
        object.__setattr__(self, "value", float(self.value))

    @classmethod
    def of(cls, *edits: Edit, group: str = "", value: float = 0.0, label: str = "") -> Setting:
        """A setting that is named after its edits."""
        return cls(" then ".join(describe(edit) for edit in edits), group, value, edits, label)


@dataclass(frozen=True, eq=False, kw_only=True)
class Findings(Cell):
    """Base of what studies find. The fields of a subclass are kept: results, stats, scores, edits and plain values.

    Attributes
    ----------
    folder : of the run.
    study : what was asked.
    model, task : the names of what it was asked about.
    """

    folder: Path = field(default=Path(), metadata={"kept": False})
    study: Study
    model: str
    task: str

    def tables(self) -> Sequence[Table]:
        """What there is to read."""
        return ()

    def charts(self) -> Sequence[Chart]:
        """What there is to look at."""
        return ()

    def sentences(self) -> Sequence[str]:
        """What the numbers say, each claim with its interval and verdict."""
        return ()

    def data(self) -> dict[str, Any]:
        """The numbers as JSON values, for ``--json``."""
        return {}

    @property
    def complete(self) -> bool:
        """Whether the whole study was done, and not only its first steps."""
        return True

    def __eq__(self, other: object) -> bool:
        return record.same(self, other)

    __hash__ = None  # type: ignore[assignment]

    def save(self, run: Run) -> None:
        """Keep everything in the run; results and stats that it already holds are named, not written again."""
        edits: list[Edit] = []
        kept = record.dump(self, _codecs(run, edits))
        if edits:
            save_edits(edits, run.folder / EDITS_FOLDER)
        run.write(FILE, {"format": FORMAT, "study": self.study.registered_name, "attrim": __version__, "found": kept})
        if self.complete:
            run.finish()

    @classmethod
    def read(cls, run: Run) -> Self:
        """The inverse of :meth:`save`."""
        what = f"findings of {run.folder}"
        found: Self = record.load(cls, run.read_json(FILE).get("found"), what, _codecs(run))
        return replace(found, folder=run.folder)


def findings(folder: str | Path) -> Findings:
    """What the study of a run found, as the study itself returned it.

    Examples
    --------
    >>> attrim.findings("runs/sparsity-0123456789ab").sentences()
    """
    with Run.read(folder) as run:
        if not (run.folder / FILE).exists():
            raise ArtefactError(f"The run in {folder} holds no findings: {_reason(run)}.")
        index = run.read_json(FILE)
        if index.get("format") != FORMAT:
            raise ArtefactError(f"The findings in {folder} have another format than {FORMAT}; use another attrim.")
        try:
            study = STUDIES[str(index.get("study"))]
        except UnknownName as error:
            raise ArtefactError(f"The findings in {folder} cannot be read: {error}") from error
        return study.findings().read(run)


def _reason(run: Run) -> str:
    """Why a run holds no findings, and what to do about it."""
    begun = run.config.get("study")
    if begun not in list(STUDIES):
        what = f"it is one of attrim {begun}" if begun else "it does not name a study"
        return f"{what}, and only studies have findings; its results are in {run.folder / 'results.sqlite'}"
    if "weights" not in run.config:  # part of the identity of every run since there are findings
        return f"an older attrim wrote it; repeat its command (attrim {begun} ...), which begins a new run"
    return f"it is unfinished; repeat its command (attrim {begun} ...), which does only what is missing"


def _codecs(run: Run, edits: list[Edit] | None = None) -> dict[type, record.Codec]:
    """How the parts of findings that live elsewhere in the run are named in JSON; ``edits`` collects those to save."""
    gathered = [] if edits is None else edits

    def dump_edit(edit: Edit) -> int:
        gathered.append(edit)
        return len(gathered) - 1

    @cache
    def saved_edits() -> list[Edit]:
        return load_edits(run.folder / EDITS_FOLDER)

    def load_result(name: str) -> Result:
        result = Result.load(run, str(name))
        if result is None:
            raise ArtefactError(f"The run in {run.folder} lacks the result {name!r}; repeat its command.")
        return result

    def load_study(value: Any) -> Study:
        kind = STUDIES[value["name"]]
        study: Study = record.load(kind, value["options"], f"study of {run.folder}")
        return study

    return {
        Result: record.Codec(lambda result: result.name, load_result),
        Stats: record.Codec(lambda stats: _inside(run, stats.folder), lambda name: Stats.load(_path(run, name))),
        Edit: record.Codec(dump_edit, lambda number: saved_edits()[number]),
        Scores: record.Codec(Scores.to_json, Scores.from_json),
        Chart: record.Codec(dump, load),
        Study: record.Codec(lambda study: {"name": study.registered_name, "options": record.dump(study)}, load_study),
    }


def _inside(run: Run, folder: Path | None) -> str:
    if folder is None or not folder.is_relative_to(run.folder):
        raise ArtefactError("Only stats that were saved in the run can be part of its findings.")
    return folder.relative_to(run.folder).as_posix()


def _path(run: Run, name: Any) -> Path:
    path = run.folder / str(name)
    if not path.resolve().is_relative_to(run.folder.resolve()):
        raise ArtefactError(f"The findings of {run.folder} name {name!r}, which is not in the run's folder.")
    return path
