"""Figures: they show the numbers that they are given, in one style, as real image files."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

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
    Matrix,
    Panels,
    Pattern,
    Point,
    Reference,
    Series,
    Table,
    TokenStrip,
    TrainingSteps,
)
from attrim.core.site import Site
from attrim.errors import ArtefactError, ParameterError
from attrim.report.paper import draw, save
from attrim.report.paper.strips import ACROSS
from attrim.report.paper.style import PAGE, shades, write
from attrim.stats import Histogram
from attrim.stats.display import Varying, head_bars, histogram_of_heads, layer_curve, row_overlays
from attrim.stats.spread import Majority
from attrim.stats.values import Values

pytestmark = pytest.mark.usefixtures("rendered")
HEADS = {0: [80.0, 82.0], 36: [79.0, 80.0], 72: [70.0, 74.0]}


def histogram_of(sites: int, heads: int, role: str = "encoder") -> Histogram:
    histogram = Histogram()
    for layer in range(sites):
        weights = torch.softmax(3 * torch.randn(2, heads, 20, 20), -1)
        histogram.update(weights, site=Site(f"layer.{layer}", role, layer, heads))
    return histogram


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def curve(*points: Point, **options: Any) -> Curve:
    return Curve("curve", series=[Series.of("a", points)], **options)


def score_against_heads(
    series: dict[str, dict[int, list[float]]], baseline: float | None = 81.0, rise: bool = False
) -> Curve:
    lines = [
        Series.of(name, [Point(heads, float(np.mean(seeds)), min(seeds), max(seeds)) for heads, seeds in line.items()])
        for name, line in series.items()
    ]
    return Curve(
        "score-against-heads", series=lines, x=Axis("constant heads (of 72)", "whole", -3.6, 75.6),
        y=Axis("accuracy (%)"), right=Drop(baseline, rise) if baseline else None, apart=0.72,
    )  # fmt: skip


def score_and_sparsity(points: list[tuple[float, float, float]]) -> Curve:
    bars, scores, shares = zip(*points, strict=True)
    lines = [Series("accuracy", bars, scores), Series("zeros", bars, shares, right=True)]
    right = Axis("zero share of attention weights", low=0.0, high=1.04)
    return Curve(
        "both", series=lines, x=Axis("bar", "log"), y=Axis("accuracy (%)"), right=right,
        references=[Reference(91.0, "unedited")],
    )  # fmt: skip


def test_distribution_draws_every_site_and_all_of_them() -> None:
    histogram = histogram_of(3, 2)
    figure = draw(histogram.distribution_chart())
    left, right = figure.axes
    assert legend_of(figure) == ["encoder 0", "encoder 1", "encoder 2", "all"]
    line = {line.get_label(): line for line in right.get_lines()}["all"]
    place = np.argmin(np.abs(line.get_xdata() - 1e-2))
    assert line.get_ydata()[place] == pytest.approx(float(histogram.sparsity(1e-2).mean()), abs=1e-9)
    assert line.get_ydata()[-1] == pytest.approx(1.0)
    area = left.patches[3].get_data()
    assert np.sum(area.values * np.diff(np.log10(area.edges))) == pytest.approx(1.0, abs=1e-6)


def test_many_sites_get_a_colour_bar_instead_of_a_legend() -> None:
    figure = draw(histogram_of(12, 1).distribution_chart())
    assert legend_of(figure) == ["all"]
    assert "encoder 11" in texts(figure)


def test_head_map_writes_the_numbers_and_leaves_gaps() -> None:
    sites = [Site("a", "encoder", 0, 3), Site("b", "encoder", 1, 2)]
    values = [[0.25, 0.5, 1.0], [0.0, 0.125, float("nan")]]
    figure = draw(HeadMatrix.of("map", values, sites, "share", low=0.0, high=1.0))
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert shown == [".25", ".50", "1", ".00", ".12"]
    assert {"share", "layer", "head"} <= set(texts(figure))


def test_head_map_has_a_panel_for_each_role() -> None:
    sites = [Site(role, role, 0, 2) for role in ("encoder", "decoder", "cross")]
    figure = draw(HeadMatrix.of("map", np.zeros((3, 2)), sites, "share"))
    assert [axes.get_title() for axes in figure.axes[:3]] == ["encoder", "decoder", "cross"]


def test_order_map_writes_places() -> None:
    sites = [Site("a", "encoder", 0, 3), Site("b", "encoder", 1, 2)]
    figure = draw(HeadMatrix.of("order", [[5, 2, 3], [1, 4, float("nan")]], sites, "place in the order"))
    assert [text.get_text() for text in figure.axes[0].texts] == ["5", "2", "3", "1", "4"]


def test_numbers_on_either_side_of_zero_have_a_scale_around_it() -> None:
    chart = HeadMatrix.of("map", [[-0.5, 2.0]], [Site("a", "encoder", 0, 2)], "relevance", diverging=True)
    (image,) = draw(chart).axes[0].images
    assert image.get_clim() == (-2.0, 2.0)


def test_head_histograms_count_weights_below_the_floor() -> None:
    histogram = Histogram()
    weights = torch.full((1, 1, 1, 10), 1e-12)
    weights[..., 0] = 0.5
    histogram.update(weights, site=Site("a", "encoder", 0, 1))
    (axes,) = draw(histogram.heads_chart()).axes
    values = axes.patches[0].get_data().values
    assert values[0] == pytest.approx(9)
    assert values.sum() == pytest.approx(10)


def test_a_grid_of_heads_has_labels_and_leaves_out_heads_that_are_not_there() -> None:
    histogram = histogram_of(1, 3)
    histogram.update(torch.softmax(torch.randn(1, 2, 5, 5), -1), site=Site("b", "encoder", 1, 2))
    figure = draw(histogram.heads_chart())
    assert [axes.axison for axes in figure.axes] == [True] * 5 + [False]
    assert [axes.get_title() for axes in figure.axes[:3]] == ["0", "1", "2"]
    assert [axes.get_ylabel() for axes in figure.axes[::3]] == ["0", "1"]


def test_score_against_sparsity_draws_points_and_controls() -> None:
    points = [Point(0.9, 80.0, 78.0, 82.0, "0.1"), Point(0.5, 90.0, label="0.01")]
    chart = Curve(
        "score", series=[Series.of("threshold", points)], controls=[Point(1.0, 50.0, label="off")],
        references=[Reference(91.0, "unedited")], annotate=True,
    )  # fmt: skip
    figure = draw(chart)
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["threshold"].get_xdata()) == [0.5, 0.9]
    assert list(lines["off"].get_ydata()) == [50.0]
    assert list(lines["unedited"].get_ydata()) == [91.0, 91.0]
    assert [text.get_text() for text in axes.texts] == ["0.01", "0.1"]
    assert legend_of(figure) == ["unedited", "threshold", "off"]


def test_no_axis_goes_beyond_what_can_be() -> None:
    (axes,) = draw(curve(Point(0, 20.0), Point(1, 100.0), y=Axis("accuracy (%)", least=0.0, most=100.0))).axes
    assert axes.get_ylim()[1] == 100.0
    assert 0 < axes.get_ylim()[0] < 20
    assert not axes.get_lines()[0].get_clip_on()  # the marker at 100 is whole


def test_panels_have_their_own_axes_and_shared_colours() -> None:
    x = Axis("zero share")
    accuracy = Curve(
        "", "sst2", series=[Series.of("a", [Point(0.2, 90.0, 89.0, 91.0), Point(0.8, 80.0)])], x=x,
        y=Axis("accuracy (%)"), references=[Reference(91.0)],
    )  # fmt: skip
    perplexity = Curve(
        "", "lm", series=[Series("b", [0.4], [400.0]), Series("a", [0.5], [30.0])], x=x,
        y=Axis("perplexity", "log", reverse=True),
        references=[Reference(20.0, series="a"), Reference(25.0, series="b")],
    )  # fmt: skip
    figure = draw(Panels("panels", charts=[accuracy, perplexity]))
    left, right = figure.axes
    assert (left.get_title(), right.get_title()) == ("sst2", "lm")
    lines = [{line.get_label(): line for line in axes.get_lines()} for axes in (left, right)]
    assert list(lines[0]["a"].get_ydata()) == [90.0, 80.0]
    assert lines[0]["a"].get_color() == lines[1]["a"].get_color() != lines[1]["b"].get_color()
    assert right.get_lines()[0].get_color() == lines[1]["a"].get_color()  # of the unedited model
    assert not left.yaxis_inverted()
    assert right.yaxis_inverted()  # up is better everywhere
    assert right.get_yscale() == "log"
    assert legend_of(figure) == ["a", "b"]


def test_overlays_draw_every_edit_over_the_original() -> None:
    before, after = np.full(10, 0.1), np.eye(10)[3]
    figure = draw(row_overlays("rows", "", before, {"one": after, "two": before}, 1e-10))
    first, second, *rest = figure.axes
    assert [axes.get_title() for axes in (first, second)] == ["one", "two"]
    assert not any(axes.axison for axes in rest)
    original, edited = first.patches
    assert original.get_data().values == pytest.approx(before)
    assert edited.get_data().values == pytest.approx(after)


def test_the_legend_does_not_stand_on_the_label_of_all_panels() -> None:
    before = np.full(10, 0.1)
    figure = draw(row_overlays("rows", "all heads", before, {"one": before, "two": before, "three": before}, 1e-10))
    figure.draw_without_rendering()
    label = next(text for text in figure.texts if text.get_text().startswith("attention weight"))
    first_line = label.get_window_extent().y1 - 0.8 * label.get_fontsize() * figure.dpi / 72
    assert figure.legends[0].get_window_extent().y1 < first_line


def test_a_text_is_wrapped_and_coloured() -> None:
    tokens = [f"token{number}$" for number in range(40)]
    chart = TokenStrip("text", tokens=tokens, values=np.arange(40) / 40, label="share")
    axes = draw(chart).axes[0]
    assert [text.get_text() for text in axes.texts] == tokens
    places = [text.get_position() for text in axes.texts]
    assert all(column + len(name) <= ACROSS for (column, _), name in zip(places, tokens, strict=True))
    (full,) = draw(TokenStrip("text", tokens=["a" * ACROSS], values=[0.0])).axes[0].patches
    assert full.get_x() + full.get_width() <= axes.get_xlim()[1]
    assert len({line for _, line in places}) == 4  # 40 tokens of 7 or 8 letters and a space, 104 a line
    assert len({patch.get_facecolor() for patch in axes.patches}) > 30


def test_equal_numbers_of_tokens_are_coloured_from_0_to_1() -> None:
    for number in (0.0, 0.5, 1.0):
        figure = draw(TokenStrip("text", tokens=["alone", "$again"], values=[number, number]))
        figure.draw_without_rendering()  # a sign that is no formula
        assert figure.axes[1].get_ylim() == (0.0, 1.0)
    assert draw(TokenStrip("text", tokens=["low", "high"], values=[0.2, 0.3])).axes[1].get_ylim() == (0.2, 0.3)


def test_names_with_dollar_signs_are_not_formulas() -> None:
    names = ["$a_$", "$", "$$b^"]
    lines = [Series(name, [1, 2], [1, 2]) for name in names]
    matrix = Pattern("matrix", matrices=[Matrix(np.eye(3))], queries=names, keys=names)
    for chart in (
        Curve("curve", "$x^$", series=lines),
        Bars("bars", groups=[Group(names[0], [1, 2, 3])], labels=names),
        Panels("panels", charts=[Curve("", "$y^$", series=lines)]),
        matrix,
    ):
        draw(chart).draw_without_rendering()


def one_row_of_values() -> Chart:
    values = Values("layer_input")
    values.update(torch.randn(1, 1, 5, 4), site=Site("a", "encoder", 0, 1))
    return values.histogram_chart()


LONG = "a very long name of a score that somebody has given (%)"


@pytest.mark.parametrize(
    "make",
    [
        lambda: HeadMatrix.of(
            "map", np.zeros((2, 4)), [Site(n, "encoder", 0, 4) for n in "ab"], "share of weights ≤ 0.001"
        ),
        lambda: TokenStrip("text", tokens=["one", "two"], values=[0.0, 0.1], label="share of weights ≤ 0.001"),
        one_row_of_values,
        lambda: curve(Point(0, 1.0), x=Axis("bits"), y=Axis(LONG)),
    ],
)
def test_vertical_labels_are_not_cut_off(make: Callable[[], Chart]) -> None:
    figure = draw(make())
    figure.draw_without_rendering()
    for label in [axes.yaxis.label for axes in figure.axes] + figure.texts:
        place = label.get_window_extent()
        assert 0 <= place.y0 <= place.y1 <= figure.bbox.height, label.get_text()


def test_heads_that_are_alike_have_a_readable_histogram() -> None:
    (axes,) = draw(histogram_of_heads("h", "", "bin", {"": [[73.9388, 73.9390], [73.9392, 73.9394]]})).axes
    axes.figure.draw_without_rendering()
    low, high = axes.get_xlim()
    assert high - low >= 1
    assert axes.patches[0].get_data().values.sum() == 4
    assert all(tick == round(tick) for tick in axes.get_yticks())
    (other,) = draw(histogram_of_heads("h", "", "bin", {"": [[1.0, 5.0]]})).axes
    assert tuple(other.patches[0].get_data().edges[[0, -1]]) == (1.0, 5.0)


def test_no_axis_has_an_offset() -> None:
    (axes,) = draw(curve(Point(0, 73.9388), Point(1, 73.9394))).axes
    axes.figure.draw_without_rendering()
    assert axes.yaxis.get_offset_text().get_text() == ""


def test_layers_are_whole_numbers() -> None:
    (axes,) = draw(curve(Point(0, 1.0), Point(1, 2.0), x=Axis("layer", "whole"))).axes
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_steps_stand_at_even_distances_the_largest_first() -> None:
    lines = [Series("a", [1, 4, 16], [1, 2, 3]), Series("b", [4, 8], [2, 2])]
    (axes,) = draw(Curve("bits", series=lines, x=Axis("bits", "steps"))).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["16", "8", "4", "1"]
    assert list(axes.get_lines()[0].get_xdata()) == pytest.approx([2.97, 1.97, -0.03])


def test_numbers_that_cannot_be_below_zero_say_so() -> None:
    majority = Majority()
    majority.update(torch.softmax(torch.randn(1, 2, 9, 9), -1), site=Site("a", "encoder", 0, 2))
    assert [varying.least for varying in majority.varying().values()] == [0, 0]


def test_axes_of_what_begins_at_zero_hold_every_marker() -> None:
    for numbers, top in (([1.46, 1.46], 1.5), ([0.0, 0.0], 1.0)):
        (axes,) = draw(layer_curve("layers", "", "diversity", {"": numbers})).axes
        assert axes.get_ylim()[0] == 0
        assert axes.get_ylim()[1] >= top
    tokens = Bars("tokens", groups=[Group("", [0.0, 0.0])], labels=["a", "b"], y=Axis("share", low=0.0),
                  references=[Reference(0.0, "all tokens")])  # fmt: skip
    (axes,) = draw(tokens).axes
    assert axes.get_ylim() == (0, 1)


def test_error_bars_end_at_what_no_number_can_be_below() -> None:
    for least, low in ((None, -2.0), (0.0, 0.0)):
        bars = Varying(np.array([[1.0]]), np.array([[3.0]]), least=least)
        (axes,) = draw(head_bars("tokens", {"": bars}, [Site("a", "encoder", 0, 1)], "bars")).axes
        (segment,) = axes.containers[0].lines[2][0].get_segments()
        assert segment[:, 1].tolist() == [low, 4.0]


def test_score_and_sparsity_share_the_bars() -> None:
    figure = draw(score_and_sparsity([(0.01, 90.0, 0.5), (0.1, 80.0, 0.9)]))
    left, right = figure.axes
    assert list(left.get_lines()[1].get_xdata()) == list(right.get_lines()[0].get_xdata()) == [0.01, 0.1]
    assert list(right.get_lines()[0].get_ydata()) == [0.5, 0.9]
    assert right.get_ylim() == (0.0, 1.04)
    assert left.yaxis.label.get_color() == left.get_lines()[1].get_color()
    assert legend_of(figure) == ["unedited", "accuracy", "zeros"]


def test_labels_of_a_short_logarithmic_axis_do_not_collide() -> None:
    axes = draw(score_and_sparsity([(bar, 90.0, 0.5) for bar in (0.005, 0.02, 0.03, 0.05)])).axes[0]
    axes.figure.draw_without_rendering()
    low, high = axes.get_xlim()
    inside = [label.get_text() for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
    assert inside == ["0.005", "0.01", "0.02", "0.05"]
    assert not any(label.get_text() for label in axes.get_xticklabels(minor=True))


def test_score_against_heads() -> None:
    figure = draw(score_against_heads({"lambda": HEADS, "random": {0: [81.0], 72: [60.0]}}))
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
    figure = draw(score_against_heads({"lambda": {0: [50.0], 72: [60.0]}}, 50.0, rise=True))
    axes = figure.axes[0]
    (right,) = axes.child_axes
    figure.draw_without_rendering()
    assert right.transData.transform((0, 20.0))[1] == pytest.approx(axes.transData.transform((0, 60.0))[1])


def test_many_series_can_be_told_apart() -> None:
    figure = draw(score_against_heads({str(number): HEADS for number in range(12)}))
    looks = [
        (line.get_color(), line.get_marker(), line.get_linestyle())
        for line in figure.axes[0].get_lines()
        if line.get_label().isdigit()
    ]
    assert len(set(looks)) == len({look[:2] for look in looks}) == 12


def test_without_a_baseline_there_is_no_drop() -> None:
    assert not draw(score_against_heads({"all": {72: [60.0]}}, None)).axes[0].child_axes
    assert draw(score_against_heads({"all": {72: [60.0]}}, 80.0)).axes[0].child_axes


def correlations(values: Any, names: list[str]) -> Pattern:
    return Pattern(
        "rank-correlation", matrices=[Matrix(values)], queries=names, keys=names, scale="diverging", low=-1.0, high=1.0,
        numbers=True, label="rank correlation", x_label="", y_label="",
    )  # fmt: skip


def test_correlation_matrix_has_one_measure_on_each_side() -> None:
    nan = float("nan")
    figure = draw(correlations([[nan, 0.5], [-0.25, nan]], ["divergence", "gradient"]))
    axes = figure.axes[0]
    assert {text.get_position(): text.get_text() for text in axes.texts} == {(1, 0): "0.50", (0, 1): "-0.25"}
    assert {"divergence", "gradient"} <= set(texts(figure))
    flat = draw(correlations(np.full((2, 2), nan), ["a", "b"]))
    assert not flat.axes[0].texts


def test_family_bars() -> None:
    nan = float("nan")
    groups = [Group("1/2", [81.0, nan], points=[[80.0, 82.0], []]), Group("all", [70.0, 50.0], points=[[70.0], [50.0]])]
    chart = Bars(
        "families", groups=groups, labels=["average", "random"], references=[Reference(83.0, "none")],
        y=Axis("score (%)"), legend="constant heads",
    )  # fmt: skip
    figure = draw(chart)
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == [81.0, 70.0, 50.0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["average", "random"]
    assert {"constant heads", "1/2", "all", "none"} <= set(texts(figure))


def test_matrices_have_the_names_of_tokens_as_far_as_there_is_room() -> None:
    few, many = [f"t{number}" for number in range(10)], [f"t{number}" for number in range(200)]
    for names, shown in ((few, few), (many, many[::10])):
        matrices = [Matrix(np.eye(len(names)), f"head {head}") for head in range(4)]
        figure = draw(Pattern("m", matrices=matrices, queries=names, keys=names, scale="root"))
        figure.draw_without_rendering()
        for axes in figure.axes[:4]:
            assert [label.get_text() for label in axes.get_xticklabels()] == shown
            boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
            assert not any(one.y0 < other.y1 and other.y0 < one.y1 for one, other in itertools.pairwise(boxes))


def test_scales_of_matrices() -> None:
    matrices = [Matrix([[0.0, 0.5], [0.25, 0.0]]), Matrix([[0.0, 0.1], [0.0, 0.0]])]
    linear, root, above = (
        [axes.images[0] for axes in draw(Pattern("m", matrices=matrices, scale=scale, bar=0.2)).axes[:2]]  # type: ignore[arg-type]
        for scale in ("linear", "root", "above")
    )
    assert [image.get_clim() for image in linear] == [(0.0, 0.5), (0.0, 0.5)]
    assert [image.get_clim() for image in root] == [(0.0, 0.5), (0.0, 0.1)]
    assert np.asarray(above[0].get_array()).tolist() == [[0, 1], [1, 0]]


def test_bands_and_events_of_training_steps() -> None:
    series = Series("loss", [0, 100, 200], [3.0, 2.0, 1.0], bands=[Band([2.5, 1.5, 0.5], [3.5, 2.5, 1.5])])
    figure = draw(TrainingSteps("steps", series=[series], y=Axis("loss"), events=[Reference(100, "epoch 2")]))
    (axes,) = figure.axes
    (band,) = axes.collections
    assert band.get_paths()[0].get_extents().bounds == (0.0, 0.5, 200.0, 3.0)
    assert list(axes.get_lines()[0].get_xdata()) == [100, 100]
    assert legend_of(figure) == ["epoch 2", "loss"]


def test_cumulative_lines_are_on_the_right() -> None:
    chart = Distribution(
        "d", edges=[0, 1, 2], bins=[Bins("", [0.25, 0.75], filled=True)], lines=[Series("", [1, 2], [0.25, 1.0])],
        right=Axis("share up to the value", low=0.0, high=1.0),
    )  # fmt: skip
    left, right = draw(chart).axes
    assert left.patches[0].get_data().values.tolist() == [0.25, 0.75]
    assert right.get_lines()[0].get_ydata().tolist() == [0.25, 1.0]
    assert right.get_lines()[0].get_color() != matplotlib.colors.to_hex(left.patches[0].get_facecolor())


def test_regions_of_an_image(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    matplotlib.image.imsave(path, np.zeros((48, 64, 3)))
    common: dict[str, Any] = {"width": 64, "height": 48, "boxes": [[0, 0, 10, 10], [20, 20, 60, 40]]}
    chart = ImageRegions("image", values=[0.1, 0.9], labels=["sky", "dog"], image=str(path), **common)
    axes = draw(chart).axes[0]
    assert [patch.get_bbox().bounds for patch in axes.patches] == [(0, 0, 10, 10), (20, 20, 40, 20)]
    assert axes.patches[0].get_linewidth() < axes.patches[1].get_linewidth()
    assert [text.get_text() for text in axes.texts] == ["sky", "dog"]
    assert len(axes.images) == 1
    path.write_text("no image")
    with pytest.raises(ArtefactError, match="cannot be read"):
        draw(chart)


def test_save_writes_readable_files_that_do_not_change(tmp_path: Path) -> None:
    chart = histogram_of(2, 2).distribution_chart()
    first = save(chart, tmp_path / "deep")
    second = save(chart, tmp_path / "again")
    assert [path.name for path in first] == ["distribution.png", "distribution.svg"]
    pixels = matplotlib.image.imread(first[0])
    assert pixels.shape[1] == int(PAGE * 250)
    assert pixels[..., :3].std() > 0.01  # not blank
    assert first[1].read_text().startswith("<?xml")
    assert first[1].read_bytes() == second[1].read_bytes()


def test_all_formats_can_be_written(tmp_path: Path) -> None:
    written = save(score_against_heads({"lambda": HEADS}), tmp_path, ("png", "svg", "pdf"))
    assert [path.suffix for path in written] == [".png", ".svg", ".pdf"]
    assert all(path.stat().st_size > 1000 for path in written)


def test_save_says_in_one_sentence_that_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match="choose another folder"):
        write(Figure(), tmp_path / "file" / "figure", ("png",))
    with pytest.raises(ParameterError, match="without a name"):
        save(Curve("", series=[]), tmp_path)
    with pytest.raises(ParameterError, match="show it in the terminal"):
        draw(Table("t", columns=[Column("a")], rows=[]))


def test_the_style_does_not_leak() -> None:
    before = dict(matplotlib.rcParams)
    draw(curve(Point(0.9, 80.0)))
    assert dict(matplotlib.rcParams) == before


def test_shades_are_distinct_and_visible_on_white() -> None:
    colours = shades(12)
    assert len(set(colours)) == 12
    assert all(sum(matplotlib.colors.to_rgb(colour)) < 2.4 for colour in colours)
