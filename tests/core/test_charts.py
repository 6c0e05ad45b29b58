"""Charts: what does not fit is refused, and what was stored comes back as it was."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attrim.core.charts import (
    Axis,
    Band,
    Bars,
    Bins,
    Chart,
    Column,
    Curve,
    Distribution,
    Drop,
    Group,
    HeadMatrix,
    ImageRegions,
    MapLevel,
    Matrix,
    Panels,
    Pattern,
    Point,
    Reference,
    RelevanceStrip,
    Section,
    Series,
    Table,
    TokenStrip,
    TrainingSteps,
    Words,
    dump,
    file_name,
    load,
)
from attrim.core.site import Site
from attrim.errors import ArtefactError, ParameterError

ANY = st.floats(allow_nan=True, allow_infinity=True)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
MAYBE = st.none() | FINITE
TEXT = st.text(max_size=8)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,12}", fullmatch=True)
BOOLS = st.booleans()


def numbers(size: int) -> st.SearchStrategy[list[float]]:
    return st.lists(ANY, min_size=size, max_size=size)


def texts(size: int) -> st.SearchStrategy[list[str]]:
    return st.lists(TEXT, min_size=size, max_size=size)


@st.composite
def axes(draw: st.DrawFn) -> Axis:
    scale: Any = draw(st.sampled_from(["number", "whole", "log", "steps"]))
    return Axis(draw(TEXT), scale, draw(MAYBE), draw(MAYBE), draw(MAYBE), draw(MAYBE), draw(BOOLS))


@st.composite
def some_series(draw: st.DrawFn, right: bool | None = None) -> Series:
    size = draw(st.integers(0, 4))
    interval = draw(BOOLS)
    return Series(
        draw(TEXT),
        draw(numbers(size)),
        draw(numbers(size)),
        draw(numbers(size)) if interval else None,
        draw(numbers(size)) if interval else None,
        draw(texts(size) | st.just([])),
        [Band(draw(numbers(size)), draw(numbers(size))) for _ in range(draw(st.integers(0, 2)))],
        draw(st.sampled_from(["series", "ordered", "total", "muted"])),
        draw(BOOLS) if right is None else right,
    )


POINTS = st.builds(Point, ANY, ANY, MAYBE, MAYBE, TEXT)
REFERENCES = st.lists(st.builds(Reference, ANY, TEXT, st.sampled_from(["horizontal", "vertical"]), TEXT), max_size=2)
DROPS = st.builds(Drop, FINITE.filter(bool), BOOLS, TEXT)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    lines = draw(st.lists(some_series(), max_size=3))
    right = draw(axes()) if any(line.right for line in lines) else draw(st.none() | DROPS)
    return Curve(
        draw(NAMES), draw(TEXT), series=lines, x=draw(axes()), y=draw(axes()), right=right,
        controls=draw(st.lists(POINTS, max_size=2)), references=draw(REFERENCES),
        annotate=draw(BOOLS), apart=draw(FINITE),
    )  # fmt: skip


@st.composite
def bars(draw: st.DrawFn) -> Bars:
    size = draw(st.integers(1, 4))
    groups = [
        Group(draw(TEXT), *draw(grids(5, size)), [draw(numbers(2)) for _ in range(size)])
        for _ in range(draw(st.integers(1, 2)))
    ]
    sections = draw(st.just([]) | st.just([Section("all", size)]))
    mark: Any = draw(st.sampled_from(["bar", "dot"]))
    return Bars(draw(NAMES), groups=groups, labels=draw(texts(size)), sections=sections, mark=mark, y=draw(axes()))


@st.composite
def distributions(draw: st.DrawFn) -> Distribution:
    edges = sorted(draw(st.sets(FINITE, min_size=2, max_size=5)))
    lines = draw(st.lists(some_series(), max_size=2))
    return Distribution(
        draw(NAMES), edges=edges, bins=[Bins(draw(TEXT), draw(numbers(len(edges) - 1)), filled=draw(BOOLS))],
        lines=lines, right=draw(axes()) if lines else None, references=draw(REFERENCES),
    )  # fmt: skip


def grids(rows: int, columns: int) -> st.SearchStrategy[list[list[float]]]:
    return st.lists(numbers(columns), min_size=rows, max_size=rows)


@st.composite
def head_matrices(draw: st.DrawFn) -> HeadMatrix:
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    layers = draw(st.lists(st.integers(0, 99), min_size=rows, max_size=rows))
    return HeadMatrix(
        draw(NAMES), values=draw(grids(rows, columns)), roles=draw(texts(rows)), layers=layers, low=draw(MAYBE)
    )


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    matrices = [Matrix(draw(grids(rows, columns)), draw(TEXT)) for _ in range(draw(st.integers(1, 2)))]
    scale: Any = draw(st.sampled_from(["linear", "root", "above", "diverging"]))
    return Pattern(draw(NAMES), matrices=matrices, queries=draw(texts(rows)), scale=scale, bar=draw(FINITE))


@st.composite
def strips(draw: st.DrawFn) -> TokenStrip:
    size = draw(st.integers(1, 4))
    return TokenStrip(draw(NAMES), tokens=draw(texts(size)), values=draw(numbers(size)), label=draw(TEXT))


@st.composite
def regions(draw: st.DrawFn) -> ImageRegions:
    size = draw(st.integers(1, 3))
    return ImageRegions(
        draw(NAMES), width=640, height=480, boxes=draw(grids(size, 4)), values=draw(numbers(size)), image=draw(TEXT)
    )


@st.composite
def relevance_strips(draw: st.DrawFn) -> RelevanceStrip:
    words, size = draw(st.lists(st.integers(0, 3), min_size=1, max_size=2)), draw(st.integers(1, 3))
    boxes = draw(st.none() | grids(size, 4))
    levels = [
        MapLevel(
            draw(TEXT),
            draw(TEXT),
            [draw(numbers(count)) for count in words],
            None if boxes is None else draw(numbers(size)),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    return RelevanceStrip(
        draw(NAMES), levels=levels, texts=[Words(draw(texts(count)), draw(TEXT)) for count in words], boxes=boxes,
        width=640, height=480, shared=draw(BOOLS), facts=draw(texts(1)), explained=draw(TEXT),
    )  # fmt: skip


STEPS = st.builds(TrainingSteps, NAMES, TEXT, series=st.lists(some_series(right=False), max_size=2), events=REFERENCES)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    forms = st.sampled_from(["text", "number", "general", "percent", "count"])
    columns = draw(st.lists(st.builds(Column, TEXT, forms, st.integers(1, 5)), min_size=1, max_size=3))
    cells = st.none() | TEXT | BOOLS | st.integers(-(10**6), 10**6) | ANY
    rows = draw(st.lists(st.lists(cells, min_size=len(columns), max_size=len(columns)), max_size=3))
    return Table(draw(NAMES), columns=columns, rows=rows, caption=draw(TEXT))


PANELS = st.builds(
    Panels, NAMES, TEXT, charts=st.lists(curves() | bars() | distributions() | patterns(), min_size=1, max_size=2),
    across=st.none() | st.integers(1, 3), compact=BOOLS,
)  # fmt: skip
EVERY = st.one_of(
    curves(),
    bars(),
    distributions(),
    head_matrices(),
    patterns(),
    strips(),
    regions(),
    relevance_strips(),
    STEPS,
    tables(),
    PANELS,
)


@given(EVERY)
def test_what_was_stored_comes_back_as_it_was(chart: Chart) -> None:
    text = json.dumps(dump(chart), allow_nan=False)  # other readers of JSON know neither NaN nor Infinity
    assert load(json.loads(text)) == chart


@given(EVERY)
def test_charts_differ_by_any_field(chart: Chart) -> None:
    assert chart != dataclasses.replace(chart, name=f"{chart.name}x")
    assert chart == dataclasses.replace(chart)


def test_numbers_are_arrays_that_nobody_can_change() -> None:
    given = np.array([1.0, 2.0])
    series = Series("a", given, [3, None])
    given[0] = 9
    assert series.x.tolist() == [1.0, 2.0]
    assert math.isnan(series.y[1])
    with pytest.raises(ValueError, match="read-only"):
        series.x[0] = 5


def test_points_and_series_say_the_same() -> None:
    points = [Point(0.5, 90.0), Point(0.1, 80.0, 78.0, 82.0, "0.1")]
    series = Series.of("threshold", points)
    assert series.x.tolist() == [0.1, 0.5]
    assert series.labels == ("0.1", "")
    assert series.points() == points[::-1]


def test_cells_are_written_as_their_column_says() -> None:
    columns = [
        Column("a"),
        Column("b", "percent", 1),
        Column("c", "number"),
        Column("d", "general", 3),
        Column("e", "count"),
    ]
    table = Table(
        "t", columns=columns, rows=[["x", 0.5, 1, 12345.0, 12345], [None, np.float64(0.25), math.nan, None, "?"]]
    )
    assert table.texts() == [["x", "50.0 %", "1.00", "1.23e+04", "12,345"], ["", "25.0 %", "-", "-", "?"]]


def test_names_of_files() -> None:
    assert file_name("rows", "language>vision", 3) == "rows-language-to-vision-3"
    assert file_name("a/b: c") == "a-b-c"
    for name in ("../a", "a/b", ".hidden", "a\0", "x" * 201):
        with pytest.raises(ParameterError, match="name"):
            Curve(name, series=[])


def strip(**fields: Any) -> RelevanceStrip:
    return RelevanceStrip("r", **{"levels": [MapLevel("all", "yes", [[0.5]])], "texts": [Words(["a"])], **fields})


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "numbers": (lambda: Series("a", [1, 2], [1]), "'a': y must have 2 numbers"),
    "one end": (lambda: Series("a", [1], [1], low=[0]), "two ends"),
    "labels": (lambda: Series("a", [1, 2], [1, 2], labels=["x"]), "2 labels"),
    "band": (lambda: Series("a", [1], [1], bands=[Band([1, 2], [1, 2])]), "1 numbers on either side"),
    "text": (lambda: Series("a", ["x"], [1]), r"Series\.x must be numbers"),
    "axes": (lambda: Series("a", [[1]], [[1]]), r"must have 1 axes, not the shape \[1, 1\]"),
    "literal": (lambda: Axis("x", "loud"), "must be one of 'number'"),  # type: ignore[arg-type]
    "a part": (lambda: Curve("c", series=["x"]), r"Curve\.series\[0\] must be a Series"),  # type: ignore[list-item]
    "right": (lambda: Curve("c", series=[Series("a", [], [], right=True)]), "need a right axis"),
    "bars": (lambda: Bars("b", groups=[Group("g", [1])], labels=["x", "y"]), "must have 2 numbers"),
    "edges": (lambda: Distribution("d", edges=[1, 1], bins=[]), "must rise"),
    "bins": (lambda: Distribution("d", edges=[1, 2], bins=[Bins("", [1, 2])]), "1 numbers, one a bin"),
    "heads": (lambda: HeadMatrix("h", values=[[1.0]], roles=[], layers=[0]), "1 roles and layers"),
    "tokens": (lambda: Pattern("p", matrices=[Matrix([[1.0]])], keys=["a", "b"]), "2 names do not fit the columns"),
    "grid": (lambda: Pattern("p", matrices=[Matrix([[1.0]])], rows=["a"], columns=["a", "b"]), "label all 1"),
    "strip": (lambda: TokenStrip("t", tokens=["a"], values=[]), "1 numbers"),
    "boxes": (lambda: ImageRegions("i", width=1, height=1, boxes=[[1, 2]], values=[1]), "1 rows of 4"),
    "levels": (lambda: RelevanceStrip("r", levels=[], texts=[Words(["a"])]), "there is no level"),
    "nothing": (lambda: RelevanceStrip("r", levels=[MapLevel("all", "yes")]), "neither a text nor an image"),
    "words": (lambda: strip(texts=[Words(["a", "b"])]), r"\[2\] numbers of tokens, not \[1\]"),
    "regions": (lambda: strip(boxes=[[0, 0, 1, 1]], width=2, height=2), "1 numbers of regions, not 0"),
    "area": (lambda: strip(boxes=[[0, 0, 1, 1]]), "no area"),
    "both": (lambda: strip(boxes=[[0, 0, 1, 1]], grid=[1, 1], width=1, height=1), "give boxes or a grid"),
    "relevant": (lambda: strip(relevant=[0]), "not there"),
    "panels": (lambda: Panels("p", charts=[Table("t", columns=[Column("a")], rows=[])]), "a Table cannot be drawn"),
    "row": (lambda: Table("t", columns=[Column("a")], rows=[["a", "b"]]), "row 0 has 2 cells for 1 columns"),
    "cell": (lambda: Table("t", columns=[Column("a")], rows=[[object()]]), "a text or a number"),
    "baseline": (lambda: Drop(0.0), "baseline 0"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused_in_one_sentence(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        make()


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"kind": "Pie"}, "Nothing is stored as 'Pie'"),
        ({}, "Nothing is stored as None"),
        ({"kind": "Axis"}, "not a chart but a Axis"),
        ({"kind": "Curve", "name": "c"}, "missing 1 required keyword-only argument"),
        ({"kind": "Curve", "name": "c", "series": [], "colour": "red"}, "unexpected keyword argument 'colour'"),
        ({"kind": "Curve", "name": 5, "series": []}, "must be a str"),
        ({"kind": "Curve", "name": "c", "series": [[]]}, "must be a Series"),
    ],
)
def test_what_was_damaged_is_refused_in_one_sentence(stored: dict[str, Any], words: str) -> None:
    with pytest.raises(ArtefactError, match=words):
        load(stored)


def test_a_head_matrix_knows_its_sites() -> None:
    sites = [Site("a", "encoder", 0, 2), Site("b", "cross", 1, 2)]
    chart = HeadMatrix.of("h", [[0.0, 1.0], [0.5, math.nan]], sites, "share", low=0.0, high=1.0)
    assert (chart.roles, chart.layers) == (("encoder", "cross"), (0, 1))
