"""What the page shows of runs, as JSON values: the report embeds them and the server sends them."""

from __future__ import annotations

import ast
import base64
import dataclasses
import inspect
import io
import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ... import __version__
from ...core import record
from ...core.charts import (
    Bars,
    Chart,
    Column,
    HeadMatrix,
    ImageRegions,
    Panels,
    Pattern,
    RelevanceStrip,
    Table,
    dump,
    file_name,
)
from ...core.wording import counted
from ...runs.run import Run
from ...scores.base import Scores
from ...stats.bundle import Stats
from ...stats.histogram import Histogram
from ...stats.mean import Mean
from ...studies.base import Study
from ...studies.findings import Findings
from .average_patterns import FULL, patterns_of
from .packing import pack

FORMAT = 1
LONGEST = 2000
"""Rows of a table that are embedded; the file of the table has all."""
DIFFERING = 400
"""Rows of a table of differences."""
SAME = 1e-6
"""Numbers that are no further apart, relative to their size, are called the same."""
LETTERS = 400
"""Of a value of a configuration."""
SIDE = 640
"""Pixels of the longer side of an embedded image."""
PICTURES = 1_500_000
"""Characters that all images of a report take; further charts show their regions without the image."""
DIGITS = 6
"""Significant digits of embedded numbers, more than they mean."""


@dataclasses.dataclass(frozen=True, eq=False)
class Material:
    """Findings with their charts and tables, which take a while to make."""

    findings: Findings
    charts: Sequence[Chart]
    tables: Sequence[Table]

    @classmethod
    def of(cls, findings: Findings) -> Material:
        """Make charts and tables."""
        return cls(findings, findings.charts(), findings.tables())


def payload(runs: Sequence[Findings | Material], *, everything: bool = False) -> dict[str, Any]:
    """What a page shows of one run, or of several side by side.

    Parameters
    ----------
    runs : what they found; with charts and tables, where these are already made.
    everything : every average pattern at full size; by default as many as fit into a few megabytes.

    Returns
    -------
    JSON values, as ``static/README.md`` describes them.
    """
    every = [Material.of(run) if isinstance(run, Findings) else run for run in runs]
    names = _unique([each.findings.folder.name or each.findings.study.registered_name for each in every])
    room = FULL // max(1, len(every))
    pictures = _Pictures(PICTURES)
    shown = [_run(each, name, room, pictures, everything) for each, name in zip(every, names, strict=True)]
    title = shown[0]["title"] if len(shown) == 1 else f"{counted(len(shown), 'run')} of attrim side by side"
    return {
        "format": FORMAT,
        "page": "report",
        "title": title,
        "attrim": __version__,
        "runs": shown,
        "differences": _differences(every, shown) if len(shown) > 1 else None,
    }


def charts_payload(charts: Sequence[Chart], title: str = "", **more: Any) -> dict[str, Any]:
    """What a page shows that has charts and tables under a title, and nothing of a run."""
    pictures = _Pictures(PICTURES)
    return {
        "format": FORMAT,
        "page": "cell",
        "title": title,
        "charts": [plain_chart(chart, pictures) for chart in charts],
        **more,
    }


def _unique(names: Sequence[str]) -> list[str]:
    """Names with a number where they would come twice, as folders in different places may."""
    found: list[str] = []
    for name in names:
        same = sum(other == name or other.startswith(f"{name} (") for other in found)
        found.append(f"{name} ({same + 1})" if same else name)
    return found


def _run(material: Material, name: str, room: int, pictures: _Pictures, everything: bool) -> dict[str, Any]:
    found = material.findings
    heads = head_numbers(material.charts, found)
    patterns = [pattern for title, mean in _means(found) for pattern in patterns_of(mean, title)]
    return {
        "name": name,
        "folder": str(found.folder),
        "title": " · ".join(filter(None, (f"attrim {found.study.registered_name}", found.model, found.task))),
        "study": found.study.registered_name,
        "model": found.model,
        "task": found.task,
        "complete": found.complete,
        "asked": {"text": _question(found.study), "options": _options(found.study)},
        "configuration": [[key, value] for key, value in _configuration(found.folder).items()],
        "sentences": list(found.sentences()),
        "tables": [_table(table) for table in material.tables],
        "figures": [plain_chart(chart, pictures) for chart in material.charts if not isinstance(chart, HeadMatrix)],
        "heads": [plain_chart(chart, pictures) for chart in heads],
        "patterns": [pattern.payload(room // len(patterns), everything) for pattern in patterns],
    }


# --- what was asked ---


def _question(study: Study) -> str:
    """The first paragraph of the study's docstring."""
    text = inspect.cleandoc(type(study).__doc__ or study.registered_name)
    return " ".join(text.split("\n\n", 1)[0].split())


def _options(study: Study) -> list[list[str]]:
    """Name, value, default and description of every field that does not have its default."""
    notes = field_notes(type(study))
    rows = []
    for item in dataclasses.fields(study):
        default = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
        value = getattr(study, item.name)
        if default is dataclasses.MISSING or not record.same(value, default):
            usual = "" if default is dataclasses.MISSING else _text(record.dump(default))
            rows.append([item.name, _text(record.dump(value)), usual, notes.get(item.name, "")])
    return rows


def field_notes(kind: type) -> dict[str, str]:
    """The texts that stand below the fields of a dataclass, by name; none where the source is not there."""
    notes: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue  # built-in classes, and what was typed into a console, have no source
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, text in pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                notes[field.target.id] = " ".join(text.value.value.split())
    return notes


def _configuration(folder: Path) -> dict[str, str]:
    """The configuration of a run, keys inside of others as ``outer.inner``."""
    if not (folder / "config.json").exists():
        return {}
    with Run.read(folder) as run:
        return {key: _text(value) for key, value in _flat(run.config)}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: Any) -> str:
    """A JSON value for people."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, list) and all(isinstance(item, (str, int, float)) for item in value):
        text = ", ".join(map(str, value))
    else:
        text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LETTERS else f"{text[:LETTERS]}…"


# --- what was found ---


def head_numbers(charts: Iterable[Chart], found: object = None) -> list[HeadMatrix]:
    """One matrix for every number of heads: of the charts themselves, of bars side by side, of stats and scores."""
    every = list(charts)
    stats = [stat for _, each in _parts(found, Stats) for stat in each.values()]
    # Histograms and averages take long to draw; what studies show of them is among their charts.
    every += [chart for stat in stats if not isinstance(stat, (Histogram, Mean)) for chart in stat.charts()]
    scores = [(name, each) for name, each in _parts(found, Scores) if each.scope == "dataset"]
    matrices = [chart for chart in every if isinstance(chart, HeadMatrix)]
    matrices += [scores_matrix(each, name) for name, each in scores]
    matrices += [matrix for chart in every for matrix in _matrices_of_bars(chart)]
    kept: list[HeadMatrix] = []
    for matrix in matrices:
        if not any(np.array_equal(matrix.values, other.values, equal_nan=True) for other in kept):
            kept.append(matrix)
    return kept


def scores_matrix(scores: Scores, name: str = "") -> HeadMatrix:
    """The scores of all heads as a chart."""
    label = name.rpartition(" ")[2] or scores.name or "score"
    values = scores.table().numpy()
    return HeadMatrix.of(
        file_name("scores", label), values, scores.sites, f"score: {label}", diverging=bool((values < 0).any())
    )


def _matrices_of_bars(chart: Chart) -> Iterator[HeadMatrix]:
    """Bars of heads side by side, layer by layer, as matrices."""
    if isinstance(chart, Panels):
        for panel in chart.charts:
            inner = dataclasses.replace(panel, name=panel.name or chart.name, title=panel.title or chart.title)
            yield from _matrices_of_bars(inner)
        return
    if not isinstance(chart, Bars) or not chart.sections or max(part.length for part in chart.sections) < 2:
        return
    places = [re.fullmatch(r"(?:(.+) )?(\d+)", section.label) for section in chart.sections]
    if not all(places):
        return
    width = max(section.length for section in chart.sections)
    begins = np.cumsum([0, *(section.length for section in chart.sections)])
    for group in chart.groups:
        values = np.full((len(places), width), np.nan)
        for row, section in enumerate(chart.sections):
            values[row, : section.length] = group.values[begins[row] : begins[row + 1]]
        label = ", ".join(filter(None, (chart.y.label or chart.title, group.name)))
        yield HeadMatrix(
            file_name(chart.name, group.name),
            values=values,
            roles=[place[1] or "encoder" for place in places if place],
            layers=[int(place[2]) for place in places if place],
            label=label,
        )


def _means(found: Findings) -> Iterator[tuple[str, Mean]]:
    """Averages of attention in the run, each with a title."""
    for name, stats in _parts(found, Stats):
        for stat in stats.values():
            if isinstance(stat, Mean) and stat.sites:
                inner = name.rpartition(" ")[2]
                plain = inner in ("stats", "weights", "")
                yield ("Average attention" if plain else f"Average attention ({inner})"), stat


def _parts(found: object, kind: type[Any], name: str = "", depth: int = 4) -> Iterator[tuple[str, Any]]:
    """Everything of a kind in the fields of findings, with the names on the way to it."""
    if isinstance(found, kind):
        yield name, found
    elif depth and isinstance(found, Mapping) and not isinstance(found, Stats):
        for key, value in found.items():
            yield from _parts(value, kind, f"{name} {key}".strip(), depth - 1)
    elif depth and isinstance(found, (tuple, list)):
        for value in found:
            yield from _parts(value, kind, name, depth - 1)
    elif depth and dataclasses.is_dataclass(found) and not isinstance(found, (type, Study, Chart, Scores)):
        for item in dataclasses.fields(found):
            yield from _parts(getattr(found, item.name), kind, f"{name} {item.name}".strip(), depth - 1)


def _table(table: Table) -> dict[str, Any]:
    """A table; of a very long one its first rows."""
    found = plain_chart(table)
    if len(table.rows) > LONGEST:
        found["rows"] = found["rows"][:LONGEST]
        note = f"The first {LONGEST} of {len(table.rows)} rows; all are in tables/{table.name}.csv of the run."
        found["caption"] = " ".join(filter(None, (table.caption, note)))
    return found


def plain_chart(chart: Chart, pictures: _Pictures | None = None) -> dict[str, Any]:
    """A chart as JSON values: numbers with a few digits, matrices as bytes, images inside."""
    found: dict[str, Any] = _rounded(dump(chart))
    inner = chart.charts if isinstance(chart, Panels) else [chart]
    for one, values in zip(inner, found["charts"] if isinstance(chart, Panels) else [found], strict=True):
        if isinstance(one, Pattern):
            for matrix, entry in zip(one.matrices, values["matrices"], strict=True):
                entry["values"] = pack(matrix.values, "float16" if matrix.values.size > 4096 else "float32")
    if isinstance(chart, (ImageRegions, RelevanceStrip)) and chart.image:
        found["image"] = (pictures or _Pictures(PICTURES)).embed(Path(chart.image))
        if not found["image"]:
            note = f"The image {Path(chart.image).name} is not in this file."
            found["title"] = f"{chart.title or chart.name} (without its image)"
            if isinstance(chart, RelevanceStrip):
                found["facts"] = [*chart.facts, note]
    return found


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else value
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


@dataclasses.dataclass
class _Pictures:
    """Images that are embedded, as long as there is room for them."""

    room: int

    def embed(self, path: Path) -> str:
        """The image as a data URL; empty where it is not there, not an image, or there is no room left."""
        from PIL import Image

        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # what pillow raises for other files
            return ""
        image.thumbnail((SIDE, SIDE))
        kept: list[tuple[bytes, str]] = []
        for name, options in (("png", {"optimize": True}), ("jpeg", {"quality": 82})):
            data = io.BytesIO()
            image.save(data, format=name, **options)
            kept.append((data.getvalue(), name))
        content, name = min(kept, key=lambda pair: len(pair[0]))
        text = base64.b64encode(content).decode()
        if len(text) > self.room:
            return ""
        self.room -= len(text)
        return f"data:image/{name};base64,{text}"


# --- several runs ---


def _differences(every: Sequence[Material], runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Where the configurations of runs differ, and where the numbers of their tables do."""
    names = [run["name"] for run in runs]
    asked = [
        {**{key: run[key] for key in ("study", "model", "task")}, **dict(run["configuration"]), **_asked(each.findings)}
        for run, each in zip(runs, every, strict=True)
    ]
    keys = list(dict.fromkeys(key for one in asked for key in one))
    rows = [[key, *(one.get(key, "") for one in asked)] for key in keys if len({one.get(key) for one in asked}) > 1]
    title = "What the runs were asked differs in" if rows else "The runs have the same configuration"
    columns = [Column("key"), *(Column(name) for name in names)]
    configuration = Table("differences-configuration", title, columns=columns, rows=rows)
    return {
        "configuration": dump(configuration),
        "results": [_rounded(dump(table)) for table in _result_differences(every, names)],
    }


def _asked(found: Findings) -> dict[str, str]:
    return {item.name: _text(record.dump(getattr(found.study, item.name))) for item in dataclasses.fields(found.study)}


def _result_differences(every: Sequence[Material], names: Sequence[str]) -> Iterator[Table]:
    """For each table that several runs have, its numbers that are not the same in all."""
    tables = [{table.name: table for table in each.tables if not table.detail} for each in every]
    for name in dict.fromkeys(name for own in tables for name in own):
        having = [own.get(name) for own in tables]
        if sum(table is not None for table in having) < 2:
            continue
        cells = [dict(_cells(table)) if table is not None else {} for table in having]
        rows = []
        for key in dict.fromkeys(key for own in cells for key in own):
            values = [own.get(key) for own in cells]
            known = [value for value in values if value is not None]
            whole = len(known) == len(values)
            if not whole or not math.isclose(min(known), max(known), rel_tol=SAME):
                apart = known[1] - known[0] if len(values) == 2 and whole else max(known) - min(known)
                rows.append([*key, *values, apart if whole else None])
        title = next(table.title or table.name for table in having if table is not None)
        note = f"The first {DIFFERING} of {len(rows)} numbers that differ." if len(rows) > DIFFERING else ""
        last = "second minus first" if len(names) == 2 else "largest minus smallest"
        if rows:
            columns = [Column("row"), Column("number"), *(Column(run, "general", DIGITS) for run in (*names, last))]
            yield Table(
                file_name("differences", name),
                f"Differences: {title}",
                columns=columns,
                rows=rows[:DIFFERING],
                caption=note,
            )


def _cells(table: Table) -> Iterator[tuple[tuple[str, str], float]]:
    """The numbers of a table by what their row and column are called; rows of the same name are numbered.

    A row is called by the texts that it begins with; those between and behind its numbers are about these.
    """
    numbers = [at for at, column in enumerate(table.columns) if column.form != "text"]
    texts = range(numbers[0] if numbers else 0)
    seen: dict[str, int] = {}
    for row in table.rows:
        name = ", ".join(str(row[at]) for at in texts if row[at] not in (None, "")) or "all"
        seen[name] = seen.get(name, 0) + 1
        called = name if seen[name] == 1 else f"{name} ({seen[name]})"
        for at, column in enumerate(table.columns):
            value = row[at]
            if column.form != "text" and isinstance(value, (int, float)) and not isinstance(value, bool):
                yield (called, column.name), float(value)
