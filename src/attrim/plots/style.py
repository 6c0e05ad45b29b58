"""One look for all figures: column widths, fonts, colours that colour-blind readers can tell apart, and saving."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from ..errors import ArtefactError

COLUMN, PAGE = 3.4, 7.0  # inches: one column and the full width of a two-column page
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito
MARKERS = "osD^vPX*"
MARGIN = 0.04  # inches around a label
GREY = "#6b6b6b"
HEAT = "cividis"
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
    "axes.formatter.useoffset": False,  # the offset would stand on the label of the axis
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

Parameters = ParamSpec("Parameters")


@contextmanager
def paper() -> Iterator[None]:
    """Draw with the style of this package, and leave the settings of the caller as they were."""
    with matplotlib.rc_context(SETTINGS):
        yield


def styled(draw: Callable[Parameters, Figure]) -> Callable[Parameters, Figure]:
    """Decorate a function that draws a figure so that it draws in this style."""

    @wraps(draw)
    def drawn(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Figure:
        with paper():
            figure = draw(*arguments, **keywords)
            hold_labels(figure)
            return figure

    return drawn


def panels(count: int, most: int, height: float, extra: float = 0.5, **shared: Any) -> tuple[Figure, list[Axes]]:
    """A figure as wide as a page with ``count`` panels, in rows of at most ``most``.

    Parameters
    ----------
    height : of a row, in inches.
    extra : more height, for what stands around the panels.
    shared : ``sharex`` and ``sharey``; the lowest panel of every column has its tick labels.
    """
    # One panel fewer in a row where that leaves no place empty.
    across = min(count, most - 1 if count % most and count % (most - 1) == 0 else most)
    down = -(-count // across)
    figure = Figure(figsize=(PAGE, height * down + extra))
    grid = figure.subplots(down, across, squeeze=False, **shared).ravel()
    for axes in grid[count:]:
        axes.set_axis_off()
    for axes in grid[max(0, count - across) : count]:
        axes.tick_params(labelbottom=True)
    return figure, list(grid[:count])


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


def from_zero(axes: Axes, highest: float) -> None:
    """Let the vertical axis go from 0 to a little above the highest number, and to 1 where all are 0."""
    axes.set_ylim(0, 1.08 * highest if highest > 0 else 1)


def look(number: int) -> dict[str, Any]:
    """Colour, marker and line of a series, different for many of them."""
    turn, place = divmod(number, len(COLOURS))
    # Markers move on with every turn through the colours, or the same pairs would come back.
    marker = MARKERS[(place + turn) % len(MARKERS)]
    return {"color": COLOURS[place], "marker": marker, "linestyle": ("-", "--", ":")[turn % 3]}


def log_places(axes: Axes, places: Iterable[float]) -> None:
    """A logarithmic horizontal axis for a few places; less than two decades get 1, 2 and 5, or labels would collide."""
    axes.set_xscale("log")
    known = [place for place in places if place > 0]
    if known and max(known) < 100 * min(known):
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def shades(count: int) -> list[str]:
    """Colours for an ordered series (layers): light to dark would vanish on white, so the lightest part is left out."""
    return [matplotlib.colors.to_hex(colormaps["viridis"](place)) for place in np.linspace(0.0, 0.85, max(count, 1))]


def legend_below(figure: Figure, names: Iterable[str]) -> None:
    """Put the legend below a figure that is one column of a page wide, and make the figure higher by its lines."""
    columns = 2 if max(map(len, names), default=0) <= 22 else 1
    entries = sum(len(axes.get_legend_handles_labels()[1]) for axes in figure.axes)
    figure.set_figheight(figure.get_figheight() + 0.14 * -(-entries // columns))
    figure.legend(loc="outside lower center", ncols=columns, handlelength=1.6)


def save(figure: Figure, path: Path | str, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write a figure once for each format and return the paths; ``path`` has no suffix."""
    path = Path(path)
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
