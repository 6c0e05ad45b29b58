"""Several runs side by side: one panel a task, each with its own score axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from .lines import Axis, Value, draw_lines
from .style import COLOURS, PAGE, styled

ACROSS = 3


@dataclass(frozen=True)
class Panel:
    """The lines of one panel.

    Attributes
    ----------
    score_label : of its own axis.
    series : name to settings; a name has the same colour in every panel.
    unedited : the score of the unedited model by the same names, drawn dashed.
    smaller_is_better : turns the axis round, so that up is better in every panel.
    log_score : a logarithmic axis for scores that explode, such as perplexity.
    """

    title: str
    score_label: str
    series: Mapping[str, Sequence[Value]]
    unedited: Mapping[str, float] = field(default_factory=dict)
    smaller_is_better: bool = False
    log_score: bool = False


@styled
def score_panels(
    panels: Sequence[Panel], place_label: str, axis: Axis = "number", limits: tuple[float, float] | None = None
) -> Figure:
    """Draw the panels, three in a row; ``limits`` are the ends of the axis of the knob."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(PAGE * across / ACROSS + (0.6 if across < ACROSS else 0.0), 2.3 * down + 0.5))
    grid = figure.subplots(down, across, squeeze=False).ravel()
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    handles: dict[str, Artist] = {}
    for axes, panel in zip(grid, panels, strict=False):
        for name, score in panel.unedited.items():
            shade = COLOURS[names.index(name) % len(COLOURS)] if len(panel.unedited) > 1 else "black"
            axes.axhline(score, color=shade, linestyle="--", linewidth=0.8)
        draw_lines(axes, panel.series, axis, names)
        axes.set_title(panel.title, fontsize=8)
        axes.set_xlabel(place_label)
        axes.set_ylabel(panel.score_label)
        if limits is not None:
            axes.set_xlim(limits)
        if panel.log_score:
            axes.set_yscale("log")
        axes.margins(y=0.1)
        if panel.smaller_is_better:
            axes.invert_yaxis()
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    columns = min(3, len(handles))
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns, handlelength=1.6)
    return figure
