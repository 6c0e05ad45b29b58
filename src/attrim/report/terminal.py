"""Charts and tables as text: the same numbers as in the figures, in the width of a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as Rows
from rich.text import Text

from ..core.charts import (
    Bars,
    Chart,
    Curve,
    Distribution,
    HeadMatrix,
    ImageRegions,
    Panels,
    Pattern,
    RelevanceStrip,
    Series,
    Table,
    TokenStrip,
    TrainingSteps,
)
from .painted import glued, token_shares

LINES = 12  # points of a series, bars or regions that are shown
PANELS = 6  # panels and matrices that are shown
SIDE = 32  # characters on the side of a matrix
LEVELS = " ▁▂▃▄▅▆▇█"
SHADES = " ░▒▓█"
SHORT = 30  # characters that a cell of a table has at most, so that it is not folded where the table can be cut


def show(chart: Chart) -> RenderableType:
    """A chart or a table as what rich prints."""
    return _RENDERERS[type(chart)](chart)


@dataclass(frozen=True)
class FittedTable:
    """A table that is cut into several with the same first columns, where it is wider than the terminal."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The parts, one below the other."""
        parts = _parts(self.table, options.max_width)
        for number, places in enumerate(parts):
            yield _rows(self.table, places, title=number == 0, caption=len(parts) == 1)
        if len(parts) > 1 and self.table.caption:
            yield Text(self.table.caption, style="table.caption")  # as wide as the terminal, not as the last part


def _parts(table: Table, width: int) -> list[list[int]]:
    """The places of the columns of every part; the columns that say what a row is are in all of them."""
    every = list(range(len(table.columns)))
    cells = zip(*([column.name for column in table.columns], *table.texts()), strict=True)
    narrowest = [3 + _narrowest(column) for column in cells]
    words = [column.form == "text" for column in table.columns]
    first = 1 if all(words) else words.index(False)
    room = width - 1 - sum(narrowest[:first])
    if sum(narrowest) + 1 <= width or max(narrowest[first:], default=0) > room:
        return [every]
    parts: list[list[int]] = []
    left = 0
    for place in every[first:]:
        if not parts or narrowest[place] > left:
            parts.append(every[:first])
            left = room
        parts[-1].append(place)
        left -= narrowest[place]
    return parts


def _narrowest(texts: Sequence[str]) -> int:
    """How many characters a column needs: short cells stay on one line, of sentences every word does."""
    longest = max(map(len, texts))
    return longest if longest <= SHORT else max(len(word) for text in texts for word in text.split())


def _rows(table: Table, places: Sequence[int], title: bool = True, caption: bool = True) -> Rows:
    """Some columns of a table; those of numbers stand to the right."""
    rows = Rows(
        title=(table.title or None) if title else None,
        caption=(table.caption or None) if caption else None,
        caption_justify="left",
    )
    for column in (table.columns[place] for place in places):
        text = column.form == "text"
        # Texts are folded where there is no room, never cut: two settings must not read alike.
        rows.add_column(Text(column.name), justify="left" if text else "right", overflow="fold", no_wrap=not text)
    for number, row in enumerate(table.texts()):
        if number in table.sections:
            rows.add_section()
        rows.add_row(*(Text(row[place]) for place in places))
    return rows


def _heads(chart: HeadMatrix) -> Rows:
    rows = Rows("role", "layer", title=_title(chart, chart.label))
    for head in range(chart.values.shape[1]):
        rows.add_column(str(head), justify="right")
    for role, layer, numbers in zip(chart.roles, chart.layers, chart.values, strict=True):
        rows.add_row(role, str(layer), *(f"{number:.3g}" if np.isfinite(number) else "-" for number in numbers))
    return rows


def _curve(chart: Curve | TrainingSteps) -> Rows:
    rows = Rows("series", chart.x.label or "x", chart.y.label or "y", "interval", "", title=_title(chart))
    right = getattr(chart, "right", None)
    for series in chart.series:
        if series.look != "muted":
            label = f"{series.name} ({right.label})" if series.right and right else series.name
            _points(rows, label, series)
            rows.add_section()
    for control in getattr(chart, "controls", ()):
        rows.add_row(
            Text(control.label), f"{control.x:.4g}", f"{control.y:.4g}", _interval(control.low, control.high), ""
        )
    for line in getattr(chart, "references", ()):
        if line.label:
            rows.add_row(Text(line.label), "", f"{line.value:.4g}", "", "")
    return rows


def _points(rows: Rows, name: str, series: Series) -> None:
    points = series.points()
    for number in _some(len(points)):
        point = points[number]
        ends = _interval(point.low, point.high)
        if not ends and series.bands:
            ends = _interval(series.bands[-1].low[number], series.bands[-1].high[number])
        rows.add_row(Text(name), f"{point.x:.4g}", f"{point.y:.4g}", ends, Text(point.label))


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.4g} to {high:.4g}"


def _bars(chart: Bars) -> Rows:
    labels = list(chart.labels)
    if not labels:
        labels = [f"{section.label}.{place}" if section.length > 1 else section.label
                  for section in chart.sections for place in range(section.length)]  # fmt: skip
    rows = Rows("", title=_title(chart, chart.y.label))
    for group in chart.groups:
        rows.add_column(Text(group.name), justify="right")
        rows.add_column("")
    highest = max((float(np.nanmax(np.abs(group.values))) for group in chart.groups if _any(group.values)), default=1.0)
    for number in _some(len(labels), 2 * LINES):
        cells: list[Any] = []
        for group in chart.groups:
            value = group.values[number]
            cells += (
                [f"{value:.4g}", "█" * round(16 * abs(value) / (highest or 1.0))] if np.isfinite(value) else ["-", ""]
            )
        rows.add_row(Text(labels[number]), *cells)
    return rows


def _distribution(chart: Distribution) -> RenderableType:
    ends = f"{chart.edges[0]:.3g} to {chart.edges[-1]:.3g}{', logarithmic' if chart.x.scale == 'log' else ''}"
    rows = Rows("", f"{chart.x.label or 'value'} ({ends})", "highest", title=_title(chart, chart.y.label))
    for bins in chart.bins:
        values = np.nan_to_num(bins.values)
        rows.add_row(Text(bins.name), _blocks(values), f"{values.max():.3g}")
    for line in chart.lines:
        rows.add_row(Text(line.name or (chart.right.label if chart.right else "")), _blocks(np.nan_to_num(line.y)), "")
    return rows


def _blocks(values: Any) -> str:
    """Numbers as a row of blocks, at most 60 of them: the largest of neighbours."""
    parts = np.array_split(values, min(60, len(values)))
    heights = np.array([part.max() for part in parts])
    top = heights.max() or 1.0
    return "".join(LEVELS[int(np.ceil((len(LEVELS) - 1) * max(height, 0.0) / top))] for height in heights)


def _pattern(chart: Pattern) -> RenderableType:
    shown: list[RenderableType] = [Text(_title(chart, f"{chart.y_label} down, {chart.x_label} across"), style="italic")]
    labels = [f"{row}.{column}" for row in chart.rows for column in chart.columns]
    for number, matrix in enumerate(chart.matrices[:PANELS]):
        shown.append(Text(matrix.title or (labels[number] if labels else "")))
        if chart.numbers:
            shown.append(_named(chart, matrix.values))
        else:
            shown.append(Text("\n".join(_shaded(matrix.values, chart))))
    return Group(*shown, *_more(len(chart.matrices), "matrices"))


def _named(chart: Pattern, values: Any) -> Rows:
    rows = Rows("")
    for key in chart.keys:
        rows.add_column(Text(key), justify="right")
    for name, numbers in zip(chart.queries, values, strict=True):
        rows.add_row(Text(name), *(f"{number:.2f}" if np.isfinite(number) else "" for number in numbers))
    return rows


def _shaded(values: Any, chart: Pattern) -> list[str]:
    """A matrix as shades, at most 32 characters a side: the largest of neighbouring cells."""
    values = np.nan_to_num(values)
    step = max(1, -(-max(values.shape) // SIDE))
    pooled = np.array(
        [[values[row : row + step, column : column + step].max() for column in range(0, values.shape[1], step)]
         for row in range(0, values.shape[0], step)]
    )  # fmt: skip
    if chart.scale == "above":
        shade = (pooled > chart.bar).astype(float)
    else:
        shade = np.clip(pooled / (pooled.max() or 1.0), 0, 1) ** (0.5 if chart.scale == "root" else 1.0)
    return ["".join(2 * SHADES[int(np.ceil((len(SHADES) - 1) * one))] for one in row) for row in shade]


def _strip(chart: TokenStrip) -> RenderableType:
    """The text with grounds from dark to light, then the tokens with the largest and the smallest numbers."""
    low, high = np.nanmin(chart.values), np.nanmax(chart.values)
    text = Text()
    for token, value in zip(chart.tokens, chart.values, strict=True):
        share = (value - low) / (high - low) if high > low else 0.5
        level = int(np.nan_to_num(55 + 200 * share))
        text.append(token, style=f"{'white' if share < 0.55 else 'black'} on rgb({level},{level},{80})").append(" ")
    order = np.argsort(-chart.values, kind="stable")
    ends = [f"{name}: " + ", ".join(f"{chart.tokens[place]} {chart.values[place]:.3g}" for place in places)
            for name, places in (("largest", order[:LINES]), ("smallest", order[::-1][:LINES]))]  # fmt: skip
    return Group(Text(_title(chart, chart.label), style="italic"), text, *map(Text, ends))


def _regions(chart: ImageRegions) -> Rows:
    rows = Rows("region", "left", "top", "right", "bottom", chart.label or "number", title=_title(chart, chart.image))
    for place in np.argsort(-chart.values, kind="stable")[:LINES]:
        name = chart.labels[place] if chart.labels else str(place)
        rows.add_row(Text(name), *(f"{end:.0f}" for end in chart.boxes[place]), f"{chart.values[place]:.3g}")
    return rows


def _relevance(chart: RelevanceStrip) -> RenderableType:
    """The answer and the coloured text of each level, then the regions with the most relevance."""
    head = [f"explained answer: {chart.explained}"] if chart.explained else []
    shown: list[RenderableType] = [Text(_title(chart), style="italic"), *map(Text, [*head, *chart.facts])]
    for level, shares in zip(chart.levels, token_shares(chart), strict=True):
        changed = level.answer != chart.levels[0].answer
        line = Text(f"{level.label}: ").append(level.answer, style="bold red" if changed else "bold")
        shown.append(line)
        for words, numbers, own in zip(chart.texts, level.texts, shares, strict=True):
            text = Text("  ")
            for (token, continues), number, share in zip(glued(tuple(words.tokens)), numbers, own, strict=True):
                cooler = int(255 - 200 * share)
                ground = f"rgb(255,{max(cooler, 90)},{cooler})"
                text.append("" if continues else " ").append(token, style=f"black on {ground}")
                text.append(f" {number:.2g}", style="dim")
            shown.append(text)
        if level.regions is not None:
            order = np.argsort(-np.nan_to_num(level.regions), kind="stable")[:5]
            kind = "patches" if chart.grid else "regions"
            most = ", ".join(f"{place}: {level.regions[place]:.3g}" for place in order)
            shown.append(Text(f"   {kind} with the most relevance: {most}"))
    if chart.relevant:
        shown.append(Text(f"relevant regions: {', '.join(map(str, chart.relevant))}"))
    return Group(*shown)


def _panels(chart: Panels) -> RenderableType:
    title = _title(chart, ", ".join(label for label in (chart.y_label, chart.x_label) if label))
    shown = [show(one) for one in chart.charts[:PANELS]]
    return Group(Text(title, style="italic"), *shown, *_more(len(chart.charts), "panels"))


def _more(count: int, what: str) -> Sequence[RenderableType]:
    return [Text(f"… and {count - PANELS} more {what}.")] if count > PANELS else []


def _title(chart: Chart, label: str = "") -> str:
    return ": ".join(part for part in (chart.title or chart.name, label) if part)


def _some(count: int, most: int = LINES) -> list[int]:
    """Numbers of at most so many entries, evenly spread, with the first and the last."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))}) if count else []


def _any(values: Any) -> bool:
    return bool(np.isfinite(values).any())


_RENDERERS: dict[type[Chart], Callable[[Any], RenderableType]] = {
    Table: FittedTable,
    HeadMatrix: _heads,
    Curve: _curve,
    TrainingSteps: _curve,
    Bars: _bars,
    Distribution: _distribution,
    Pattern: _pattern,
    TokenStrip: _strip,
    ImageRegions: _regions,
    RelevanceStrip: _relevance,
    Panels: _panels,
}
