"""What there is to show, as numbers and labels: charts and tables that any renderer can draw.

A stat, a score or a study makes these; the terminal, the paper (matplotlib) and the page draw them. What does not fit
is refused when a chart is made. :func:`dump` and :func:`load` take a chart to JSON and back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from ..errors import ArtefactError
from .checked import Cell, Grid, Numbers, Part, restore
from .checked import dump as dump
from .site import Site

Scale = Literal["number", "whole", "log", "steps"]
Look = Literal["series", "ordered", "total", "muted"]


@dataclass(frozen=True, eq=False)
class Chart(Part):
    """Base of all charts.

    Attributes
    ----------
    name : stem of the files that it is written to; a chart inside of :class:`Panels` needs none.
    title : stands above it.
    """

    name: str
    title: str = ""

    def check(self) -> None:
        """A name must be a file name on any system."""
        self.require(re.fullmatch(r"[\w,+=@-][\w .,+=@-]*|", self.name) is not None, "the name is not a file name")
        self.require(len(self.name) <= 200, "the name is longer than 200 characters")


@dataclass(frozen=True, eq=False)
class Axis(Part):
    """One axis.

    Attributes
    ----------
    scale : ``whole`` has ticks at whole numbers only (layers); ``steps`` puts the values at even distances, the largest
        first (bits from 16 down to 1).
    low, high : where it ends; None leaves that to the numbers.
    least, most : no number can be beyond, so the axis is not drawn beyond either (a score of 100 %).
    reverse : draw it the other way round, so that up is better where smaller numbers are.
    """

    label: str = ""
    scale: Scale = "number"
    low: float | None = None
    high: float | None = None
    least: float | None = None
    most: float | None = None
    reverse: bool = False


@dataclass(frozen=True, eq=False)
class Drop(Part):
    """An axis on the right that says how far a number is below a baseline (or above it), in per cent of it."""

    baseline: float
    rise: bool = False
    label: str = "relative drop (%)"

    def check(self) -> None:
        """There is no share of zero."""
        self.require(self.baseline != 0, "nothing can be a share of the baseline 0")


@dataclass(frozen=True, eq=False)
class Point(Part):
    """One setting: its place, its number, the ends of its interval, and its label."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


_POINT = ("x", "y", "low", "high", "label")


@dataclass(frozen=True, eq=False)
class Band(Part):
    """An area around a series, such as where half of all rows lie: ``[N]`` each."""

    low: Numbers
    high: Numbers


@dataclass(frozen=True, eq=False)
class Series(Part):
    """A line: places and numbers ``[N]``.

    Attributes
    ----------
    low, high : ends of each number's interval ``[N]``, NaN where it has none.
    labels : one for each number, or none.
    bands : areas around the line, the widest first.
    look : ``ordered`` series (layers, heads) have shades of one scale; ``total`` stands for all others together;
        ``muted`` ones are the grey crowd behind the named ones.
    right : the numbers belong to the right axis.
    """

    name: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    labels: Sequence[str] = ()
    bands: Sequence[Band] = ()
    look: Look = "series"
    right: bool = False

    @classmethod
    def of(cls, name: str, points: Iterable[Point], **options: Any) -> Self:
        """The series of some points, sorted by place."""
        points = sorted(points, key=lambda point: point.x)
        x, y, low, high, labels = ([getattr(point, field) for point in points] for field in _POINT)
        return cls(name, x, y, low, high, labels if any(labels) else (), **options)

    def check(self) -> None:
        """One number for each place."""
        for field in ("y", "low", "high"):
            values = getattr(self, field)
            self.require(values is None or len(values) == len(self.x), f"{field} must have {len(self.x)} numbers")
        self.require((self.low is None) == (self.high is None), "an interval has two ends, low and high")
        self.require(len(self.labels) in (0, len(self.x)), f"there must be {len(self.x)} labels, or none")
        self.require(
            all(len(band.low) == len(band.high) == len(self.x) for band in self.bands),
            f"a band must have {len(self.x)} numbers on either side",
        )

    def points(self) -> list[Point]:
        """The numbers one by one; an interval without ends is None."""
        ends = [[None] * len(self.x) if end is None else [None if math.isnan(one) else one for one in end.tolist()]
                for end in (self.low, self.high)]  # fmt: skip
        labels = self.labels or [""] * len(self.x)
        return [Point(*row) for row in zip(self.x.tolist(), self.y.tolist(), *ends, labels, strict=True)]


@dataclass(frozen=True, eq=False)
class Reference(Part):
    """A line across a chart: horizontal at a number, or vertical at a place.

    Attributes
    ----------
    label : for the legend; without one it is not in it.
    series : the name of the series that it belongs to, whose colour it has.
    """

    value: float
    label: str = ""
    along: Literal["horizontal", "vertical"] = "horizontal"
    series: str = ""


@dataclass(frozen=True, eq=False)
class Bins(Part):
    """A histogram on the bins of a distribution: counts or shares ``[bins]``; ``look`` as in :class:`Series`."""

    name: str
    values: Numbers
    look: Look = "series"
    filled: bool = False


@dataclass(frozen=True, eq=False)
class Group(Part):
    """Bars of one colour: a number for each place ``[N]``, NaN where there is none.

    Attributes
    ----------
    low, high : ends of an interval, or of mean minus and plus standard deviation ``[N]``.
    smallest, largest : extremes ``[N]``.
    points : the single numbers behind each bar, such as one for each seed: N sequences, or none.
    """

    name: str
    values: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    smallest: Numbers | None = None
    largest: Numbers | None = None
    points: Sequence[Numbers] = ()

    def check(self) -> None:
        """One of everything for each number."""
        count = len(self.values)
        for field in ("low", "high", "smallest", "largest"):
            values = getattr(self, field)
            self.require(values is None or len(values) == count, f"{field} must have {count} numbers")
        self.require((self.low is None) == (self.high is None), "an interval has two ends, low and high")
        self.require((self.smallest is None) == (self.largest is None), "there are two extremes, smallest and largest")
        self.require(len(self.points) in (0, count), f"points must have {count} sequences, or none")


@dataclass(frozen=True, eq=False)
class Section(Part):
    """Neighbouring bars that belong together, such as the heads of a layer, and their common label."""

    label: str
    length: int


@dataclass(frozen=True, eq=False)
class Matrix(Part):
    """One matrix ``[queries, keys]`` and what stands above it."""

    values: Grid
    title: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class Curve(Chart):
    """Lines with intervals or bands, single points to compare them with, and lines across.

    Attributes
    ----------
    right : the axis of the series that are on the right, or the drop below a baseline.
    controls : labelled points that are not part of a series (attention off, uniform, random drop).
    annotate : write the labels of the points beside them.
    apart : how far neighbouring series are moved apart along the axis, so that intervals do not cover each other.
    legend : title of the legend.
    """

    series: Sequence[Series]
    x: Axis = Axis()
    y: Axis = Axis()
    right: Axis | Drop | None = None
    controls: Sequence[Point] = ()
    references: Sequence[Reference] = ()
    annotate: bool = False
    apart: float = 0.0
    legend: str = ""

    def check(self) -> None:
        """A right axis where, and only where, there are series for it."""
        super().check()
        self.require(
            any(series.right for series in self.series) == isinstance(self.right, Axis),
            "series on the right need a right axis, and the other way round",
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingSteps(Chart):
    """Numbers over the steps of a training, with bands over seeds; ``events`` are steps at which something happens."""

    series: Sequence[Series]
    x: Axis = Axis("step", "whole")
    y: Axis = Axis()
    events: Sequence[Reference] = ()
    legend: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class Bars(Chart):
    """Bars, or dots with error bars, for a few or for all heads.

    Attributes
    ----------
    labels : one for each place; they may be left out where there are sections.
    sections : the places in the order given, cut into neighbours that belong together; every second one is shaded.
    mark : how a number is drawn.
    """

    groups: Sequence[Group]
    labels: Sequence[str] = ()
    sections: Sequence[Section] = ()
    x: Axis = Axis()
    y: Axis = Axis()
    mark: Literal["bar", "dot"] = "bar"
    references: Sequence[Reference] = ()
    legend: str = ""

    def check(self) -> None:
        """All groups have a number for each place."""
        super().check()
        self.require(bool(self.groups), "there is no group of bars")
        self.require(bool(self.labels or self.sections), "bars need labels or sections")
        places = len(self.labels) if self.labels else sum(section.length for section in self.sections)
        self.require(
            all(len(group.values) == places for group in self.groups), f"every group must have {places} numbers"
        )
        covered = sum(section.length for section in self.sections)
        self.require(not self.sections or covered == places, f"sections must cover {places} bars, not {covered}")


@dataclass(frozen=True, eq=False, kw_only=True)
class Distribution(Chart):
    """Histograms on common bins, and lines such as the cumulative share on a right axis.

    Attributes
    ----------
    edges : ``[bins + 1]``, rising.
    lines : drawn on the right axis.
    """

    edges: Numbers
    bins: Sequence[Bins]
    x: Axis = Axis()
    y: Axis = Axis()
    lines: Sequence[Series] = ()
    right: Axis | None = None
    references: Sequence[Reference] = ()
    legend: str = ""

    def check(self) -> None:
        """One number for each bin."""
        super().check()
        self.require(len(self.edges) > 1 and bool((np.diff(self.edges) > 0).all()), "edges of bins must rise")
        count = len(self.edges) - 1
        self.require(all(len(bins.values) == count for bins in self.bins), f"there must be {count} numbers, one a bin")
        self.require(bool(self.lines) == (self.right is not None), "lines need a right axis, and the other way round")


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadMatrix(Chart):
    """One number for every head: ``[sites, heads]``, NaN where a site has fewer heads.

    Attributes
    ----------
    roles, layers : of each site.
    label : what the number is, with its unit.
    low, high : ends of the colour scale; None takes the smallest and the largest number.
    diverging : numbers on either side of zero have different colours.
    """

    values: Grid
    roles: Sequence[str]
    layers: Sequence[int]
    label: str = ""
    low: float | None = None
    high: float | None = None
    diverging: bool = False

    @classmethod
    def of(cls, name: str, values: Any, sites: Sequence[Site], label: str, **options: Any) -> Self:
        """The matrix of some sites."""
        roles, layers = [site.role for site in sites], [site.layer for site in sites]
        return cls(name, values=values, roles=roles, layers=layers, label=label, **options)

    def check(self) -> None:
        """One row for each site."""
        super().check()
        sites = len(self.values)
        self.require(self.values.size > 0, "there is no head")
        self.require(len(self.roles) == len(self.layers) == sites, f"there must be {sites} roles and layers")


@dataclass(frozen=True, eq=False, kw_only=True)
class Pattern(Chart):
    """Matrices as heat maps: attention of queries (down) to keys (across), or any other pairs of names.

    Attributes
    ----------
    queries, keys : names of the rows and columns, the same for all matrices; none where they differ.
    scale : of the colours. ``root`` takes each matrix to its largest number and shows small ones, too; ``above`` shows
        only what is above ``bar``; ``diverging`` has different colours on either side of zero.
    low, high : ends of the scale (``linear`` and ``diverging``); None takes the smallest and largest number of all.
    label : of the colours.
    numbers : write them into the cells.
    rows, columns : labels of the grid of matrices; with columns, there are as many matrices in a row.
    """

    matrices: Sequence[Matrix]
    queries: Sequence[str] = ()
    keys: Sequence[str] = ()
    scale: Literal["linear", "root", "above", "diverging"] = "linear"
    bar: float = 0.0
    low: float | None = None
    high: float | None = None
    label: str = "attention weight"
    x_label: str = "key"
    y_label: str = "query"
    numbers: bool = False
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()

    def check(self) -> None:
        """Names fit the matrices, labels fit their grid."""
        super().check()
        self.require(bool(self.matrices), "there is no matrix")
        self.require(all(matrix.values.size for matrix in self.matrices), "a matrix is empty")
        for names, axis in ((self.queries, 0), (self.keys, 1)):
            fit = all(matrix.values.shape[axis] == len(names) for matrix in self.matrices)
            self.require(not names or fit, f"{len(names)} names do not fit the {('rows', 'columns')[axis]} of a matrix")
        _check_grid(self, len(self.matrices))


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenStrip(Chart):
    """A text whose tokens have colours: one number ``[tokens]`` for each of them.

    Attributes
    ----------
    low, high : ends of the colour scale; None takes the smallest and largest number, and 0 and 1 where all are equal.
    """

    tokens: Sequence[str]
    values: Numbers
    label: str = ""
    low: float | None = None
    high: float | None = None
    diverging: bool = False

    def check(self) -> None:
        """One number for each token."""
        super().check()
        self.require(len(self.tokens) > 0, "there is no token")
        self.require(len(self.tokens) == len(self.values), f"there must be {len(self.tokens)} numbers")


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageRegions(Chart):
    """An image with boxes that each have a number, such as what a word of a question attends to.

    Attributes
    ----------
    image : path of the image; empty draws the boxes only.
    width, height : of the image, in the unit of the boxes.
    boxes : ``[regions, 4]``, left, top, right and bottom, from the upper left corner.
    values : ``[regions]``.
    labels : names of the regions, or none.
    """

    width: float
    height: float
    boxes: Grid
    values: Numbers
    image: str = ""
    labels: Sequence[str] = ()
    label: str = ""
    low: float | None = None
    high: float | None = None
    diverging: bool = False

    def check(self) -> None:
        """Boxes with four ends and one number each."""
        super().check()
        self.require(self.width > 0 and self.height > 0, "the image has no area")
        self.require(self.boxes.shape == (len(self.values), 4), f"boxes must be {len(self.values)} rows of 4 numbers")
        self.require(len(self.values) > 0, "there is no region")
        self.require(len(self.labels) in (0, len(self.values)), f"there must be {len(self.values)} labels, or none")


@dataclass(frozen=True, eq=False)
class Words(Part):
    """The tokens of a text, and what the text is (``question``)."""

    tokens: Sequence[str]
    label: str = ""


@dataclass(frozen=True, eq=False)
class MapLevel(Part):
    """Relevance with some heads left out.

    Attributes
    ----------
    label : which heads are.
    answer : what the model answers without them.
    texts : the relevance of the tokens of each text.
    regions : the relevance of the regions or patches ``[R]``; none where there is no image.
    """

    label: str
    answer: str
    texts: Sequence[Numbers] = ()
    regions: Numbers | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class RelevanceStrip(Chart):
    """Which tokens of a text and regions of an image an answer comes from, with more and more heads left out.

    Attributes
    ----------
    explained : the answer that is explained.
    texts : what the model read.
    image : path of the image; empty without one.
    width, height : of the image, in the unit of the boxes.
    boxes : ``[R, 4]``, left, top, right and bottom of the regions, from the upper left corner.
    grid : rows and columns of the patches that take the place of regions.
    relevant : numbers of the regions that are known to be relevant.
    facts : lines to show beside it, such as the answers of people.
    shared : one colour scale for all levels, so that less relevance looks less; otherwise each has its own.
    normalise : whether the relevance of regions is brought to 0 and 1 before it is painted, or the painted image is.
    """

    levels: Sequence[MapLevel]
    explained: str = ""
    texts: Sequence[Words] = ()
    image: str = ""
    width: float = 0.0
    height: float = 0.0
    boxes: Grid | None = None
    grid: Sequence[int] = ()
    relevant: Sequence[int] = ()
    facts: Sequence[str] = ()
    shared: bool = True
    normalise: Literal["scores", "mask"] = "mask"

    def check(self) -> None:
        """A number for each token and region at every level."""
        super().check()
        self.require(bool(self.levels), "there is no level")
        lengths = [len(words.tokens) for words in self.texts]
        regions = len(self.boxes) if self.boxes is not None else int(np.prod(self.grid)) if self.grid else 0
        self.require(bool(lengths or regions), "there is neither a text nor an image")
        self.require(self.boxes is None or self.boxes.shape[1] == 4, "boxes must be rows of 4 numbers")
        self.require(len(self.grid) in (0, 2) and not (self.grid and self.boxes is not None), "give boxes or a grid")
        self.require(not regions or (self.width > 0 and self.height > 0), "the image has no area")
        for level in self.levels:
            given = [len(numbers) for numbers in level.texts]
            self.require(given == lengths, f"there must be {lengths} numbers of tokens, not {given}")
            found = 0 if level.regions is None else len(level.regions)
            self.require(found == regions, f"there must be {regions} numbers of regions, not {found}")
        self.require(all(0 <= number < regions for number in self.relevant), "a relevant region is not there")

    @property
    def changed(self) -> bool:
        """Whether a level has another answer than the first."""
        return any(level.answer != self.levels[0].answer for level in self.levels)


@dataclass(frozen=True, eq=False, kw_only=True)
class Panels(Chart):
    """Charts beside each other.

    Attributes
    ----------
    across : how many are in a row; None leaves it to the renderer.
    rows, columns : labels of the grid, with ``columns`` as many in a row.
    x_label, y_label : of all panels together.
    share_x, share_y : the panels have the same axis.
    compact : many small panels with few ticks.
    legend : title of the common legend.
    """

    charts: Sequence[Chart]
    across: int | None = None
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    x_label: str = ""
    y_label: str = ""
    share_x: bool = False
    share_y: bool = False
    compact: bool = False
    legend: str = ""

    def check(self) -> None:
        """Panels of what can be drawn into one panel."""
        super().check()
        self.require(bool(self.charts), "there is no panel")
        for chart in self.charts:
            self.require(isinstance(chart, IN_PANELS), f"a {type(chart).__name__} cannot be drawn into a panel")
        self.require(self.across is None or self.across > 0, "a row needs at least one panel")
        _check_grid(self, len(self.charts))


@dataclass(frozen=True, eq=False)
class Column(Part):
    """A column of a table and how its numbers are written.

    Attributes
    ----------
    form : ``number`` has ``digits`` decimals; ``general`` has so many significant ones; ``percent`` writes a share with
        so many decimals; ``count`` has separators between thousands.
    """

    name: str
    form: Literal["text", "number", "general", "percent", "count"] = "text"
    digits: int = 2

    def text(self, cell: Cell) -> str:
        """A cell as text; a dash where there is no number."""
        if cell is None:
            return "" if self.form == "text" else "-"
        if isinstance(cell, (str, bool)) or self.form == "text":
            return str(cell)
        if self.form == "percent":
            return f"{100 * cell:.{self.digits}f} %"
        spec = {"number": f".{self.digits}f", "general": f".{self.digits}g", "count": ",.0f"}[self.form]
        return f"{cell:{spec}}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Table(Chart):
    """A table of texts and numbers; NaN becomes None, an empty cell.

    Attributes
    ----------
    caption : stands below it.
    sections : numbers of the rows above which a line is drawn, such as that of the total.
    detail : too long for a screen, so it is written to a file only.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    sections: Sequence[int] = ()
    detail: bool = False

    def check(self) -> None:
        """One cell for each column."""
        super().check()
        count = len(self.columns)
        self.require(count > 0, "there is no column")
        for number, row in enumerate(self.rows):
            self.require(len(row) == count, f"row {number} has {len(row)} cells for {count} columns")

    def texts(self) -> list[list[str]]:
        """The rows as they are to be read."""
        return [[column.text(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]


IN_PANELS = (Curve, TrainingSteps, Bars, Distribution, Pattern)


def file_name(*parts: object) -> str:
    """A name for a chart from parts such as the role and the layer of a site: ``rows-language-to-vision-3``."""
    text = "-".join(str(part) for part in parts if str(part)).replace(">", "-to-")
    return re.sub(r"[^\w.,+=@-]+", "-", text).lstrip(".")[:200]


def _check_grid(chart: Pattern | Panels, count: int) -> None:
    """Labels of rows and columns belong to a full grid."""
    if chart.rows or chart.columns:
        chart.require(len(chart.rows) * len(chart.columns) == count, f"rows and columns must label all {count} panels")


def load(found: Mapping[str, Any]) -> Chart:
    """The chart that :func:`dump` made these JSON values of, or an error that says what is wrong with them."""
    chart = restore(found)
    if not isinstance(chart, Chart):
        raise ArtefactError(f"This is not a chart but a {type(chart).__name__}; restore the file or make it again.")
    return chart
