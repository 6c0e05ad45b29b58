"""Figures: they show the numbers that they are given, in one style, as real image files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from attrim.core.site import Site
from attrim.errors import ArtefactError
from attrim.plots import Point, distribution, head_histograms, head_map, save, score_against_sparsity
from attrim.plots.errorbars import Bars, head_error_bars
from attrim.plots.layers import layer_lines
from attrim.plots.lines import Value, score_lines
from attrim.plots.means import histogram_of_heads
from attrim.plots.overlay import row_overlays
from attrim.plots.panels import Panel, score_panels
from attrim.plots.style import PAGE, shades
from attrim.plots.text import ACROSS, token_text
from attrim.plots.thresholds import score_and_sparsity
from attrim.plots.tokens import token_sparsity
from attrim.plots.values import value_histograms
from attrim.stats import Histogram
from attrim.stats.spread import Majority
from attrim.stats.values import Values
from attrim.studies.sparsity.scores import KNOBS
from attrim.studies.sparsity.sweep import LAYER
from attrim.studies.sparsity.weights import majority_bars


def histogram_of(sites: int, heads: int, role: str = "encoder") -> Histogram:
    histogram = Histogram()
    for layer in range(sites):
        weights = torch.softmax(3 * torch.randn(2, heads, 20, 20), -1)
        histogram.update(weights, site=Site(f"layer.{layer}", role, layer, heads))
    return histogram


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def test_distribution_draws_every_site_and_all_of_them() -> None:
    histogram = histogram_of(3, 2)
    left, right = distribution(histogram).axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["encoder 0", "encoder 1", "encoder 2", "all"]
    curve = right.get_lines()[3]  # three sites, then all
    place = np.argmin(np.abs(curve.get_xdata() - 1e-2))
    assert curve.get_ydata()[place] == pytest.approx(float(histogram.sparsity(1e-2).mean()), abs=1e-9)
    assert curve.get_ydata()[-1] == pytest.approx(1.0)
    area = left.patches[3].get_data()
    assert np.sum(area.values * np.diff(np.log10(area.edges))) == pytest.approx(1.0, abs=1e-6)


def test_many_sites_get_a_colour_bar_instead_of_a_legend() -> None:
    figure = distribution(histogram_of(12, 1))
    assert figure.axes[0].get_legend() is None
    assert "encoder 11" in texts(figure)


def test_head_map_writes_the_numbers_and_leaves_gaps() -> None:
    sites = [Site("a", "encoder", 0, 3), Site("b", "encoder", 1, 2)]
    figure = head_map([[0.25, 0.5, 1.0], [0.0, 0.125, float("nan")]], sites, "share")
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert shown == [".25", ".50", "1", ".00", ".12"]
    assert {"share", "layer", "head"} <= set(texts(figure))


def test_head_map_has_a_panel_for_each_role() -> None:
    sites = [Site(role, role, 0, 2) for role in ("encoder", "decoder", "cross")]
    figure = head_map(np.zeros((3, 2)), sites, "share", limits=None)
    assert [axes.get_title() for axes in figure.axes[:3]] == ["encoder", "decoder", "cross"]


def test_head_histograms_counts_weights_below_the_floor() -> None:
    histogram = Histogram()
    weights = torch.full((1, 1, 1, 10), 1e-12)
    weights[..., 0] = 0.5
    histogram.update(weights, site=Site("a", "encoder", 0, 1))
    (axes,) = head_histograms(histogram).axes
    values = axes.patches[0].get_data().values
    assert values[0] == pytest.approx(9)
    assert values.sum() == pytest.approx(10)


def test_score_against_sparsity_draws_points_and_controls() -> None:
    points = [Point("0.1", 0.9, 80.0, 78.0, 82.0), Point("0.01", 0.5, 90.0)]
    figure = score_against_sparsity({"threshold": points}, [Point("off", 1.0, 50.0)], 91.0)
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["threshold"].get_xdata()) == [0.5, 0.9]
    assert list(lines["off"].get_ydata()) == [50.0]
    assert list(lines["unedited"].get_ydata()) == [91.0, 91.0]


def test_panels_have_their_own_axes_and_shared_colours() -> None:
    accuracy = Panel("sst2", "accuracy (%)", {"a": [Value(0.2, 90.0, 89.0, 91.0), Value(0.8, 80.0)]}, {"a": 91.0})
    both = {"a": [Value(0.5, 30.0)], "b": [Value(0.4, 400.0)]}
    perplexity = Panel("lm", "perplexity", both, {"a": 20.0, "b": 25.0}, smaller_is_better=True, log_score=True)
    figure = score_panels([accuracy, perplexity], "zero share")
    left, right = figure.axes
    assert (left.get_title(), right.get_title()) == ("sst2", "lm")
    lines = [{line.get_label(): line for line in axes.get_lines()} for axes in (left, right)]
    assert list(lines[0]["a"].get_ydata()) == [90.0, 80.0]
    assert lines[0]["a"].get_color() == lines[1]["a"].get_color() != lines[1]["b"].get_color()
    assert not left.yaxis_inverted()
    assert right.yaxis_inverted()  # up is better everywhere
    assert right.get_yscale() == "log"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


def test_overlays_draw_every_edit_over_the_original() -> None:
    before, after = np.full(10, 0.1), np.eye(10)[3]
    first, second, *rest = row_overlays(before, {"one": after, "two": before}, 1e-10).axes
    assert [axes.get_title() for axes in (first, second)] == ["one", "two"]
    assert not any(axes.axison for axes in rest)
    original, edited = first.patches
    assert original.get_data().values == pytest.approx(before)
    assert edited.get_data().values == pytest.approx(after)


def test_a_text_is_wrapped_and_coloured() -> None:
    tokens = [(f"token{number}$", number / 40) for number in range(40)]
    axes = token_text(tokens, "share").axes[0]
    assert [text.get_text() for text in axes.texts] == [name for name, _ in tokens]
    places = [text.get_position() for text in axes.texts]
    assert all(column + len(name) <= ACROSS for (column, _), (name, _) in zip(places, tokens, strict=True))
    (full,) = token_text([("a" * ACROSS, 0.0)], "share").axes[0].patches
    assert full.get_x() + full.get_width() <= axes.get_xlim()[1]
    assert len({line for _, line in places}) == 4  # 40 tokens of 7 or 8 letters and a space, 104 a line
    assert len({patch.get_facecolor() for patch in axes.patches}) > 30


def test_equal_numbers_of_tokens_are_coloured_from_0_to_1() -> None:
    for number in (0.0, 0.5, 1.0):
        figure = token_text([("alone", number), ("$again", number)], "share")
        figure.draw_without_rendering()  # a sign that is no formula
        assert figure.axes[1].get_ylim() == (0.0, 1.0)
    assert token_text([("low", 0.2), ("high", 0.3)], "share").axes[1].get_ylim() == (0.2, 0.3)


def one_row_of_values() -> Figure:
    values = Values("layer_input")
    values.update(torch.randn(1, 1, 5, 4), site=Site("a", "encoder", 0, 1))
    return value_histograms(values, "layer input")


@pytest.mark.parametrize(
    "draw",
    [
        lambda: head_map(np.zeros((2, 4)), [Site(n, "encoder", 0, 4) for n in "ab"], "share of weights ≤ 0.001"),
        lambda: token_text([("one", 0.0), ("two", 0.1)], "share of weights ≤ 0.001"),
        one_row_of_values,
        lambda: score_lines({"a": [Value(0, 1.0)]}, "bits", "a very long name of a score that somebody has given (%)"),
    ],
)
def test_vertical_labels_are_not_cut_off(draw: Callable[[], Figure]) -> None:
    figure = draw()
    figure.draw_without_rendering()
    for label in [axes.yaxis.label for axes in figure.axes] + figure.texts:
        place = label.get_window_extent()
        assert 0 <= place.y0 <= place.y1 <= figure.bbox.height, label.get_text()


def test_heads_that_are_alike_have_a_readable_histogram() -> None:
    (axes,) = histogram_of_heads({"": [[73.9388, 73.9390], [73.9392, 73.9394]]}, "bin").axes
    axes.figure.draw_without_rendering()
    low, high = axes.get_xlim()
    assert high - low >= 1
    assert axes.patches[0].get_data().values.sum() == 4
    assert all(tick == round(tick) for tick in axes.get_yticks())
    (other,) = histogram_of_heads({"": [[1.0, 5.0]]}, "bin").axes
    assert tuple(other.patches[0].get_data().edges[[0, -1]]) == (1.0, 5.0)


def test_no_axis_has_an_offset() -> None:
    (axes,) = score_lines({"a": [Value(0, 73.9388), Value(1, 73.9394)]}, "bits", "score").axes
    axes.figure.draw_without_rendering()
    assert axes.yaxis.get_offset_text().get_text() == ""


def test_layers_are_whole_numbers() -> None:
    (axes,) = score_lines({"a": [Value(0, 1.0), Value(1, 2.0)]}, "layer", "score", axis="whole").axes
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_the_sparsity_study_says_which_numbers_are_whole_or_not_below_zero() -> None:
    assert KNOBS[LAYER][2] == "whole"
    majority = Majority()
    majority.update(torch.softmax(torch.randn(1, 2, 9, 9), -1), site=Site("a", "encoder", 0, 2))
    assert [bars.least for bars in majority_bars(majority).values()] == [0, 0]


def test_axes_of_what_begins_at_zero_hold_every_marker() -> None:
    for numbers, top in (([1.46, 1.46], 1.5), ([0.0, 0.0], 1.0)):
        (axes,) = layer_lines({"": numbers}, "diversity").axes
        assert axes.get_ylim()[0] == 0
        assert axes.get_ylim()[1] >= top
    (axes,) = token_sparsity([("a", 0.0), ("b", 0.0)], 0.001, 0.0).axes
    assert axes.get_ylim() == (0, 1)


def test_error_bars_end_at_what_no_number_can_be_below() -> None:
    for least, low in ((-np.inf, -2.0), (0.0, 0.0)):
        bars = Bars(np.array([[1.0]]), np.array([[3.0]]), least=least)
        (axes,) = head_error_bars({"tokens": bars}, [Site("a", "encoder", 0, 1)]).axes
        (segment,) = axes.containers[0].lines[2][0].get_segments()
        assert segment[:, 1].tolist() == [low, 4.0]


def test_score_and_sparsity_share_the_bars() -> None:
    points = [(0.1, Point("0.1", 0.9, 80.0, 78.0, 82.0)), (0.01, Point("0.01", 0.5, 90.0))]
    left, right = score_and_sparsity(points, 91.0, "accuracy (%)").axes
    assert list(left.get_lines()[1].get_xdata()) == list(right.get_lines()[0].get_xdata()) == [0.01, 0.1]
    assert list(right.get_lines()[0].get_ydata()) == [0.5, 0.9]


def test_save_writes_readable_files_that_do_not_change(tmp_path: Path) -> None:
    histogram = histogram_of(2, 2)
    first = save(distribution(histogram), tmp_path / "deep" / "figure")
    second = save(distribution(histogram), tmp_path / "again" / "figure")
    assert [path.name for path in first] == ["figure.png", "figure.svg"]
    pixels = matplotlib.image.imread(first[0])
    assert pixels.shape[1] == int(PAGE * 250)
    assert pixels[..., :3].std() > 0.01  # not blank
    assert first[1].read_text().startswith("<?xml")
    assert first[1].read_bytes() == second[1].read_bytes()


def test_save_says_in_one_sentence_that_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match="choose another folder"):
        save(Figure(), tmp_path / "file" / "figure")


def test_the_style_does_not_leak() -> None:
    before = dict(matplotlib.rcParams)
    score_against_sparsity({"threshold": [Point("0.1", 0.9, 80.0)]})
    assert dict(matplotlib.rcParams) == before


def test_shades_are_distinct_and_visible_on_white() -> None:
    colours = shades(12)
    assert len(set(colours)) == 12
    assert all(sum(matplotlib.colors.to_rgb(colour)) < 2.4 for colour in colours)


def test_labels_of_a_short_logarithmic_axis_do_not_collide() -> None:
    points = [(bar, Point(str(bar), 0.5, 90.0)) for bar in (0.005, 0.02, 0.03, 0.05)]
    axes = score_and_sparsity(points, 91.0, "accuracy (%)").axes[0]
    axes.figure.draw_without_rendering()
    low, high = axes.get_xlim()
    inside = [label.get_text() for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
    assert inside == ["0.005", "0.01", "0.02", "0.05"]
    assert not any(label.get_text() for label in axes.get_xticklabels(minor=True))
