"""Every stat has tables and charts, which show what it counted and can be drawn, printed and stored."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

import attrim
from attrim.core.charts import Column, Curve, Distribution, HeadMatrix, Panels, Pattern, Table, TokenStrip, dump, load
from attrim.core.site import Select, Site
from attrim.errors import ParameterError
from attrim.models.loading import load_model, load_tokenizer
from attrim.report.paper import draw
from attrim.report.terminal import show
from attrim.stats import Histogram, Mean, Moments, Sample
from attrim.stats.base import Stat
from attrim.stats.bundle import Stats
from attrim.stats.display import token_label
from attrim.stats.rowfacts import RowCurves
from attrim.stats.token_sparsity import TokenSparsity, TokenTable
from attrim.stats.values import Values
from methods import OTHER_STATS, STATS

TEXTS = ["one", "a longer text", "the longest text of them all costs $5", "the end"]
SITE = Site("a", "encoder", 0, 2)


def every_stat() -> list[Stat]:
    return [param.values[0]() for param in (*STATS[1:], *OTHER_STATS)]  # type: ignore[operator]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("tiny-bert")


@pytest.fixture(scope="module")
def batches(tokenizer: Any) -> list[dict[str, Tensor]]:
    return [dict(tokenizer(TEXTS[n : n + 2], return_tensors="pt", padding=True)) for n in range(0, 4, 2)]


@pytest.fixture(scope="module")
def stats(batches: list[dict[str, Tensor]]) -> Stats:
    return attrim.measure(load_model("tiny-bert"), batches, every_stat())


def printed(chart: Any) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(show(chart))
    return captured.get()


NAMES = [type(stat).__name__ for stat in every_stat()]


@pytest.mark.parametrize("name", NAMES)
def test_every_stat_has_tables_and_charts(stats: Stats, tokenizer: Any, name: str) -> None:
    tables, charts = stats[name].tables(tokenizer), stats[name].charts(tokenizer)
    assert tables
    assert charts
    for chart in (*tables, *charts):
        assert chart.name
        assert load(json.loads(json.dumps(dump(chart)))) == chart
        assert len(printed(chart).splitlines()) > 3
    for table in tables:
        assert table.rows
    for chart in charts:
        draw(chart)


def test_names_are_unique_also_of_a_second_stat_of_a_kind(stats: Stats, batches: list[dict[str, Tensor]]) -> None:
    names = [chart.name for chart in stats.charts()]
    assert len(set(names)) == len(names)
    both = attrim.measure(load_model("tiny-bert"), batches, [Histogram(), Histogram()])
    assert [chart.name for chart in both.charts()][:5:4] == ["distribution", "distribution-2"]
    assert [table.name for table in both.tables()] == ["shares", "shares-2"]


def test_stats_of_some_heads_are_shown(batches: list[dict[str, Tensor]], tokenizer: Any) -> None:
    some = attrim.measure(load_model("tiny-bert"), batches, every_stat(), Select(layers=[1], heads=[0]))
    for chart in some.charts(tokenizer):
        draw(chart)
        printed(chart)
    assert all(table.rows for table in some.tables(tokenizer))


def test_the_table_of_a_histogram_has_the_share_of_all_weights() -> None:
    histogram = Histogram()
    histogram.update(torch.tensor([[[[0.9, 0.1], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]]]), site=SITE)
    (table,) = histogram.tables()
    assert [column.name for column in table.columns] == ["role", "layer", "weights", *histogram.shares()]
    assert table.texts()[-1] == ["all", "", "8", "12.5 %", "12.5 %", "12.5 %", "25.0 %"]
    assert "12.5 %" in printed(table)


def test_head_matrices_hold_the_numbers_of_the_stat(stats: Stats) -> None:
    histogram, moments = stats["Histogram"], stats["Moments"]
    assert isinstance(histogram, Histogram)
    assert isinstance(moments, Moments)
    (chart,) = [chart for chart in histogram.charts() if chart.name == "sparsity-of-heads"]
    assert isinstance(chart, HeadMatrix)
    assert torch.equal(torch.tensor(chart.values), histogram.sparsity(1e-3))
    assert chart.label == "share of weights ≤ 0.001"
    first = moments.charts()[0]
    assert isinstance(first, HeadMatrix)
    assert torch.equal(torch.tensor(first.values), moments.entropy())


def test_rows_of_a_layer_have_the_curves_of_the_rows(stats: Stats) -> None:
    histogram, curves = stats["Histogram"], stats["RowCurves"]
    assert isinstance(histogram, Histogram)
    assert isinstance(curves, RowCurves)
    site = histogram.sites[1]
    chart = histogram.rows_chart(site, curves)
    assert chart.name == f"rows-encoder-{site.layer}"
    panel = chart.charts[1]
    assert isinstance(panel, Distribution)
    (line,) = panel.lines
    assert line.y.tolist() == curves.quantile(0.5)[1, 1].tolist()
    assert [band.high.tolist() for band in line.bands] == [curves.quantile(q)[1, 1].tolist() for q in (0.95, 0.75)]
    assert panel.bins[0].values.tolist() == histogram.row_histogram()[1, 1].tolist()


def test_average_patterns_are_one_figure_and_large_ones_are_pooled() -> None:
    mean = Mean()
    weights = torch.zeros(1, 2, 200, 200)
    weights[0, 1, 150, 3] = 1.0
    mean.update(weights, site=SITE)
    pattern, distances = mean.charts()
    assert isinstance(pattern, Pattern)
    assert (pattern.rows, pattern.columns) == (("0",), ("0", "1"))
    assert [matrix.values.shape for matrix in pattern.matrices] == [(50, 50), (50, 50)]
    assert pattern.matrices[1].values[37, 0] == 1.0  # the largest of 4 x 4 cells
    assert pattern.matrices[1].values.sum() == 1.0
    assert isinstance(distances, Panels)
    draw(pattern)


def test_matrices_name_the_example_and_its_tokens(stats: Stats, tokenizer: Any) -> None:
    sample = stats["Sample"]
    assert isinstance(sample, Sample)
    site = sample.sites[0]
    for number in sample.examples:
        whole, own, above = sample.site_charts(site, tokenizer, number)
        assert isinstance(whole, Pattern)
        assert isinstance(own, Pattern)
        assert isinstance(above, Pattern)
        assert f"example {number}" in whole.x_label
        wanted = [token_label(tokenizer, token) for token in tokenizer(TEXTS[number])["input_ids"]]
        assert list(whole.queries) == list(whole.keys) == wanted
        assert len(whole.keys) == whole.matrices[0].values.shape[1]
        assert torch.equal(torch.tensor(whole.matrices[1].values), sample.matrices(site)[number][1].double())
        assert (own.scale, above.scale, above.bar) == ("root", "above", 5e-4)
    with pytest.raises(ParameterError, match="Example 99 was not kept"):
        sample.site_charts(site, tokenizer, 99)


def test_samples_without_tokens_have_matrices_without_names() -> None:
    sample = Sample()
    sample.update(torch.softmax(torch.randn(1, 2, 5, 5), -1), site=SITE)
    (chart,) = sample.charts()
    assert isinstance(chart, Pattern)
    assert chart.queries == chart.keys == ()
    draw(chart)


def test_tokens_of_a_sample_survive_merging_and_saving(
    batches: list[dict[str, Tensor]], tokenizer: Any, tmp_path: Any
) -> None:
    model = load_model("tiny-bert")
    one = attrim.measure(model, batches[:1], [Sample(1)])
    two = attrim.measure(model, batches[1:], [Sample(1, first=2)])
    one.merge(two).save(tmp_path)
    sample = Stats.load(tmp_path)["Sample"]
    assert isinstance(sample, Sample)
    (number,) = sample.examples
    queries, _ = sample.names(sample.sites[0], number, tokenizer)
    assert queries == [token_label(tokenizer, token) for token in tokenizer(TEXTS[number])["input_ids"]]
    tensors = sample.of(sample.sites[0]).tensors
    assert sorted(tensors) == sorted(["seen", f"example-{number}", f"queries-{number}", f"keys-{number}"])


def test_tokens_have_names_where_there_is_a_tokenizer(stats: Stats, tokenizer: Any) -> None:
    tokens, texts = stats["TokenSparsity"], stats["TokenTable"]
    assert isinstance(tokens, TokenSparsity)
    assert isinstance(texts, TokenTable)
    assert "[CLS]" in {row[0] for row in tokens.tables(tokenizer)[0].rows}
    assert all(str(row[0]).startswith("#") for row in tokens.tables()[0].rows)
    strip = texts.charts(tokenizer)[0]
    assert isinstance(strip, TokenStrip)
    assert strip.tokens[0] == "[CLS]"
    assert strip.values.tolist() == [row.sparsity for row in texts.rows(texts.examples[0])]
    curves = tokens.curves_chart("curves", tokenizer)
    assert isinstance(curves, Curve)
    assert curves.series[-1].y.tolist() == tokens.overall()
    assert {series.look for series in curves.series} == {"muted", "series", "total"}


def test_values_of_all_heads_are_put_together() -> None:
    values = Values("output", low=-1.0, high=1.0, bins=2)
    numbers = torch.tensor([[[[-0.5, 0.5]], [[0.25, 3.0]]]])
    values.update(numbers, site=SITE)
    (table,) = values.tables()
    row = dict(zip([column.name for column in table.columns], table.rows[0], strict=True))
    assert row["mean"] == pytest.approx(float(numbers.mean()))
    assert row["std"] == pytest.approx(float(numbers.std(correction=0)))
    assert (row["smallest"], row["largest"], row["outside"]) == (-0.5, 3.0, 0.25)


def test_printed_texts_are_never_cut() -> None:
    names = [f"quantize:linear-slog-clamped-midval,bits={bits} then threshold:0.001,renormalize=true" for bits in "34"]
    table = Table("t", columns=[Column("setting")], rows=[[name] for name in names])
    console = Console(width=40)
    with console.capture() as captured:
        console.print(show(table))
    joined = "".join(line.strip("│┃ ") for line in captured.get().splitlines())
    assert all(name.replace(" ", "") in joined.replace(" ", "") for name in names)
