"""One look for all figures: widths, fonts, colours that colour-blind readers can tell apart, axes, legends, files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from ...core.charts import Axis, Chart, Reference
from ...errors import ArtefactError

COLUMN, PAGE = 3.4, 7.0  # inches: one column and the full width of a two-column page
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito
MARKERS = "osD^vPX*"
MARGIN = 0.04  # inches around a label
GREY = "#6b6b6b"
HEAT = "cividis"
DIVERGING = "PuOr"  # colour-blind readers can tell its ends apart
FEW = 8  # more ordered series than this get a colour bar instead of a legend
SETTINGS: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.formatter.useoffset": False,  # the offset would overlap the label of the axis
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "grid.color": "#dddddd",
    "svg.fonttype": "none",
    "svg.hashsalt": "attrim",
    "figure.constrained_layout.use": True,
}

_DATES: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


@contextmanager
def paper() -> Iterator[None]:
    """Draw with the style of this package, and leave the settings of the caller as they were."""
    with matplotlib.rc_context(SETTINGS):
        yield


@dataclass(frozen=True)
class Place:
    """Where a chart is drawn.

    Attributes
    ----------
    names : the series of all panels, so that a name has one colour in all of them; empty for a chart that stands alone.
    compact : among many small panels.
    last : at the right end of a row, where a right axis has its labels.
    """

    names: Sequence[str] = ()
    compact: bool = False
    last: bool = True


# --- series ---


def look(number: int) -> dict[str, Any]:
    """Colour, marker and line of a series, different for many of them."""
    turn, place = divmod(number, len(COLOURS))
    # Markers move on with every turn through the colours, or the same pairs would come back.
    marker = MARKERS[(place + turn) % len(MARKERS)]
    return {"color": COLOURS[place], "marker": marker, "linestyle": ("-", "--", ":")[turn % 3]}


def shades(count: int) -> list[str]:
    """Colours for an ordered series (layers): light to dark would vanish on white, so the lightest part is left out."""
    return [matplotlib.colors.to_hex(colormaps["viridis"](place)) for place in np.linspace(0.0, 0.85, max(count, 1))]


def looks(series: Sequence[Any], names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Colour, marker and line of each series or histogram of a chart, by its name among ``names`` and by its look."""
    ordered = iter(shades(sum(one.look == "ordered" for one in series)))
    own = [one.name for one in series if one.look == "series"]
    known = list(names) or own
    found: list[dict[str, Any]] = []
    for place, one in enumerate(series):
        if one.look == "ordered":
            found.append({"color": next(ordered), "linewidth": 1.0})
        elif one.look == "total":
            found.append({"color": "black", "linestyle": "--", "linewidth": 1.0})
        elif one.look == "muted":
            found.append({"color": GREY, "linewidth": 0.5, "alpha": 0.4})
        else:
            # Series without a name, or with one twice, are told apart by their place.
            clear = one.name in known and own.count(one.name) == 1
            found.append(look(known.index(one.name) if clear else place))
    return found


def references(axes: Axes, lines: Sequence[Reference], colours: dict[str, str], colour: str = GREY) -> None:
    """Draw the lines across a chart in this colour; ``colours`` are those of its series."""
    for line in lines:
        draw = axes.axhline if line.along == "horizontal" else axes.axvline
        style = "--" if line.along == "horizontal" else ":"
        draw(
            line.value,
            color=colours.get(line.series, colour),
            linestyle=style,
            linewidth=0.8,
            label=line.label,
            zorder=1,
        )


# --- axes ---


def shape_axes(axes: Axes, x: Axis, y: Axis, places: Any = (), place: Place | None = None) -> None:
    """Give axes their labels, scales and ends, when everything is drawn.

    Parameters
    ----------
    places : where points stand on the horizontal axis, for the labels of a short logarithmic one.
    """
    compact = place is not None and place.compact
    axes.set_xlabel(x.label)
    axes.set_ylabel(y.label)
    if x.scale == "log":
        log_places(axes, places)
    elif x.scale == "whole":
        axes.xaxis.set_major_locator(MaxNLocator(4 if compact else "auto", integer=True))
    if x.low is not None or x.high is not None:
        axes.set_xlim(x.low, x.high)
    if compact and x.scale == "log" and x.low is not None:
        ends = [1e-6, 1e-3, 1.0] if x.low <= 1e-6 and x.high == 1 else [x.low, x.high or 1.0]
        axes.set_xticks(ends)
        axes.minorticks_off()
    shape_upright(axes, y)


def shape_upright(axes: Axes, axis: Axis) -> None:
    """The vertical axis: scale, ends, direction."""
    axes.margins(y=0.1)
    if axis.scale == "log":
        axes.set_yscale("log")
    elif axis.scale == "whole":
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if axis.low is not None and axis.high is None and axis.scale != "log":
        highest = axes.dataLim.y1
        # Where all numbers are equal to the lower end (but for rounding), the axis still needs a length.
        above = highest - axis.low if np.isfinite(highest) else 0.0
        top = axis.low + (1.08 * above if above > 1e-12 else 1.0)
        axes.set_ylim(axis.low, top)
    elif axis.low is not None or axis.high is not None:
        axes.set_ylim(axis.low, axis.high)
    low, high = axes.get_ylim()
    ends = (low if axis.least is None else max(low, axis.least), high if axis.most is None else min(high, axis.most))
    if ends != (low, high):
        axes.set_ylim(ends)
        for line in axes.get_lines():  # a marker at the end of the axis is not cut in half
            line.set_clip_on(False)
    if axis.reverse:
        axes.invert_yaxis()


def log_places(axes: Axes, places: Any) -> None:
    """A logarithmic horizontal axis for a few places; less than two decades get 1, 2 and 5, or labels would collide."""
    axes.set_xscale("log")
    known = [place for place in places if place > 0]
    if known and max(known) < 100 * min(known):
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def colour_scale(low: float | None, high: float | None, values: Any, diverging: bool = False) -> Any:
    """The norm of a colour scale; ends that are None come from the finite values, and equal ends become 0 and 1."""
    known = np.concatenate([np.ravel(part)[np.isfinite(np.ravel(part))] for part in values])
    known = known if len(known) else np.zeros(1)
    if diverging:
        far = max(abs(low if low is not None else known.min()), abs(high if high is not None else known.max())) or 1.0
        return Normalize(-far, far)
    low = float(known.min()) if low is None else low
    high = float(known.max()) if high is None else high
    return Normalize(low, high) if low < high else Normalize(min(0.0, low), max(1.0, high))


# --- legends and figures ---


def legend(figure: Figure, charts: Sequence[Chart], title: str = "", below: Text | None = None) -> None:
    """Put one legend of all charts below the figure, each name once, and make the figure higher by its lines.

    More than a few ordered series (layers, heads) get a colour bar instead of entries.

    Parameters
    ----------
    below : the label at the lower end of the figure, if it has one.
    """
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    ordered = list(dict.fromkeys(part.name for part in parts_of(charts) if getattr(part, "look", "") == "ordered"))
    if len(ordered) > FEW:
        _colour_bar(figure, ordered, title)
        handles = {name: handle for name, handle in handles.items() if name not in ordered}
        title = ""
    if not handles:
        return
    longest, width = max(map(len, handles)), figure.get_figwidth()
    columns = max(1, min(len(handles), int(width / (0.4 + 0.058 * longest))))
    lines = -(-len(handles) // columns)
    columns = -(-len(handles) // lines)  # no line shorter than need be
    lines += bool(title)
    figure.set_figheight(figure.get_figheight() + 0.14 * lines)
    if below is not None:
        # The layout would put the legend on the label of all panels, so that label gets empty lines for it.
        below.set_text(below.get_text() + "\n" * lines)
        below.set_linespacing(1.4)
    box = figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=columns, handlelength=1.6,
        title=title or None, title_fontsize=7,
    )  # fmt: skip
    for text in box.get_texts():
        text.set_parse_math(False)  # a token with a dollar sign is not a formula


def parts_of(charts: Sequence[Chart]) -> list[Any]:
    """Series, histograms and groups of bars of some charts: what has a name in a legend."""
    return [part for chart in charts for field in ("series", "bins", "groups") for part in getattr(chart, field, ())]


def _colour_bar(figure: Figure, names: Sequence[str], title: str) -> None:
    colours = ListedColormap(shades(len(names)))
    norm = BoundaryNorm(np.arange(len(names) + 1) - 0.5, len(names))
    ticks = sorted({0, len(names) // 2, len(names) - 1})
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=figure.axes, ticks=ticks, label=title)
    bar.ax.set_yticklabels([names[tick] for tick in ticks])


def hold_labels(figure: Figure) -> None:
    """Make a figure higher where it cuts off a vertical label, for which the layout makes no room."""
    labels = [axes.yaxis.label for axes in figure.axes] + figure.texts
    # Where labels are short there is no need to find the places of everything, which takes as long as drawing.
    if all(label.get_window_extent().height < figure.bbox.height / 2 for label in labels):
        return
    figure.draw_without_rendering()
    places = [label.get_window_extent() for label in labels]
    outside = max(max(-place.y0, place.y1 - figure.bbox.height) for place in places) + MARGIN * figure.dpi
    if outside > 0:
        # Labels stand in the middle, so half of what the figure grows by is on either side.
        figure.set_figheight(figure.get_figheight() + 2 * outside / figure.dpi)


def grid(count: int, most: int) -> tuple[int, int]:
    """Rows and columns for some panels, at most ``most`` in a row."""
    # One panel fewer in a row where that leaves no place empty.
    across = min(count, most - 1 if most > 2 and count % most and count % (most - 1) == 0 else most)
    return -(-count // across), across


def write(figure: Figure, path: Path, formats: Sequence[str]) -> list[Path]:
    """Write a figure once for each format and return the paths; ``path`` has no suffix."""
    written = [path.parent / f"{path.name}.{suffix}" for suffix in formats]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with paper():
            for target in written:
                # A date inside the file would make equal figures differ.
                figure.savefig(target, dpi=250, metadata=_DATES.get(target.suffix))
                # Everything is in its place now; finding the places again would take as long as drawing.
                figure.set_layout_engine("none")
    except OSError as error:
        raise ArtefactError(
            f"The figure {path} cannot be written ({error.strerror}); choose another folder."
        ) from error
    return written
