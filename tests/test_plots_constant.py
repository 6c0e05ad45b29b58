"""The figures of the constant study show the numbers that they are given."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from attrim.core.site import Site
from attrim.plots import save
from attrim.plots.budgets import score_against_heads
from attrim.plots.families import family_bars
from attrim.plots.orders import correlation_matrix, order_map

CURVE = {0: [80.0, 82.0], 36: [79.0, 80.0], 72: [70.0, 74.0]}


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def test_score_against_heads() -> None:
    figure = score_against_heads({"lambda": CURVE, "random": {0: [81.0], 72: [60.0]}}, 72, "accuracy (%)")
    axes = figure.axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["lambda"].get_xdata()) == pytest.approx([-0.36, 35.64, 71.64])  # to the left of the other series
    assert list(lines["lambda"].get_ydata()) == [81.0, 79.5, 72.0]
    ends = [bar.get_segments()[0][:, 1].tolist() for bar in axes.collections]
    assert ends[:3] == [[80.0, 82.0], [79.0, 80.0], [70.0, 74.0]]
    (right,) = axes.child_axes
    figure.draw_without_rendering()
    for score, drop in ((81.0, 0.0), (72.9, 10.0)):  # both axes have them at the same height
        assert right.transData.transform((0, drop))[1] == pytest.approx(axes.transData.transform((0, score))[1])
    assert {"constant heads (of 72)", "accuracy (%)", "relative drop (%)"} <= set(texts(figure))


def test_a_rise_of_perplexity_is_a_drop() -> None:
    figure = score_against_heads({"lambda": {0: [50.0], 72: [60.0]}}, 72, "perplexity", smaller_is_better=True)
    axes = figure.axes[0]
    (right,) = axes.child_axes
    figure.draw_without_rendering()
    assert right.transData.transform((0, 20.0))[1] == pytest.approx(axes.transData.transform((0, 60.0))[1])


def test_many_series_can_be_told_apart() -> None:
    figure = score_against_heads({str(number): CURVE for number in range(12)}, 72)
    looks = [
        (line.get_color(), line.get_marker(), line.get_linestyle())
        for line in figure.axes[0].get_lines()
        if line.get_label().isdigit()
    ]
    assert len(set(looks)) == len({look[:2] for look in looks}) == 12


def test_without_a_baseline_there_is_no_drop() -> None:
    assert not score_against_heads({"all": {72: [60.0]}}, 72).axes[0].child_axes
    assert score_against_heads({"all": {72: [60.0]}}, 72, baseline=80.0).axes[0].child_axes


def test_order_map_writes_places() -> None:
    sites = [Site("a", "encoder", 0, 3), Site("b", "encoder", 1, 2)]
    figure = order_map([[5, 2, 3], [1, 4, float("nan")]], sites)
    assert [text.get_text() for text in figure.axes[0].texts] == ["5", "2", "3", "1", "4"]


def test_correlation_matrix_has_one_measure_on_each_side() -> None:
    spearman = np.array([[1.0, 0.5], [0.5, 1.0]])
    kendall = np.array([[1.0, -0.25], [-0.25, 1.0]])
    axes = correlation_matrix(["divergence", "gradient"], spearman, kendall).axes[0]
    assert {text.get_position(): text.get_text() for text in axes.texts} == {(1, 0): "0.50", (0, 1): "-0.25"}
    flat = correlation_matrix(["a", "b"], np.full((2, 2), np.nan), np.full((2, 2), np.nan))
    assert not flat.axes[0].texts


def test_family_bars() -> None:
    figure = family_bars({"average": {"1/2": [80.0, 82.0], "all": [70.0]}, "random": {"all": [50.0]}}, baseline=83.0)
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == [81.0, 70.0, 50.0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["average", "random"]
    assert {"constant heads", "1/2", "all", "none"} <= set(texts(figure))


def test_all_of_them_can_be_written(tmp_path: Path) -> None:
    written = save(score_against_heads({"lambda": CURVE}, 72), tmp_path / "curve", ("png", "svg", "pdf"))
    assert [path.suffix for path in written] == [".png", ".svg", ".pdf"]
    assert all(path.stat().st_size > 1000 for path in written)
