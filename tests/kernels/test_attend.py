"""The fused path against plain softmax attention and the stats' own reference."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from attrim.core.call import Call
from attrim.errors import DataError
from attrim.kernels import attend as fused
from attrim.kernels import blocks as cutting
from attrim.kernels import team
from attrim.kernels.attend import attend
from attrim.kernels.blocks import Block, Spans, blocks, find_edges
from attrim.kernels.feed import BinBuffers, Extent, Feed, divide
from attrim.stats import Histogram, Majority, Mean, Moments, Sample
from attrim.stats.base import Stat
from attrim.stats.bins import BINS
from calls import assert_equal, assert_moments

HEADS = 4
ALL = tuple(range(HEADS))


def masks(queries: int = 9) -> dict[str, Tensor]:
    """Allowed cells ``[B|1, 1, Q, K]`` of three examples, by the kind of the mask."""
    slots = torch.arange(queries)
    real = slots[None] < torch.tensor([queries, 2, 5])[:, None]
    causal = slots[:, None] >= slots[None]
    return {
        "full": torch.ones(1, 1, queries, queries, dtype=torch.bool),
        "right padding": real[:, None, None, :].expand(-1, 1, queries, -1),
        "left padding": real.flip(1)[:, None, None, :].expand(-1, 1, queries, -1),
        "causal": causal[None, None],
        "causal, left padding": causal[None, None] & real.flip(1)[:, None, None, :],
        "window": (causal & (slots[:, None] - slots[None] < 3))[None, None],
        "nothing": torch.zeros(1, 1, queries, queries, dtype=torch.bool),
    }


def problem(allowed: Tensor, groups: int = 1) -> tuple[Tensor, Tensor, Tensor, Call, Tensor]:
    """Query, key, value, the call and the weights of stock attention."""
    batch, size = 3, 8
    queries, keys = allowed.shape[-2:]
    query = torch.randn(batch, queries, HEADS, size).transpose(1, 2)  # strided, as models have it
    key, value = (torch.randn(batch, keys, HEADS // groups, size).transpose(1, 2) for _ in range(2))
    scores = query @ key.repeat_interleave(groups, 1).transpose(2, 3) * 0.5
    weights = torch.softmax(scores.masked_fill(~allowed, torch.finfo(torch.float32).min), -1)
    call = Call.plain(weights, allowed)
    real = call.keys if queries == keys else torch.ones(1, queries, dtype=torch.bool)
    lead = real.int().argmax(-1)
    return query, key, value, dataclasses.replace(call, queries=real, query_lead=lead, key_lead=lead), weights


def spans_of(call: Call, batch: int) -> Spans:
    edges = find_edges(call.allowed)
    assert edges is not None
    return Spans.of(edges, call.queries, batch)


def reference(weights: Tensor, call: Call) -> tuple[Histogram, Mean]:
    histogram, mean = Histogram(), Mean()
    histogram.watch(weights, call)
    mean.watch(weights, call)
    return histogram, mean


@pytest.mark.parametrize("kind", masks())
def test_the_same_weights_give_the_same_integers(kind: str) -> None:
    *_, call, weights = problem(masks()[kind])
    histogram, mean = Histogram(), Mean()
    spans = spans_of(call, 3)
    feed = Feed.begin(call, spans, [(histogram, ALL), (mean, ALL)])
    for block in blocks(spans, HEADS):
        feed.add(weights[block.examples, block.heads, block.queries, block.keys].contiguous(), block)
    for ours, plain in zip((histogram, mean), reference(weights, call), strict=True):
        assert_equal(ours, plain)


def test_integers_of_special_values() -> None:
    special = [0.0, -0.0, 2.0**-149, 2.0**-126, 2.0**-37, 1.5 * 2.0**-36, 2.5 * 2.0**-36, 0.1, 0.5, 1.0, 1.0000001]
    weights = torch.tensor(special).reshape(1, 1, 1, -1)
    call = Call.plain(weights)
    spans = spans_of(call, 1)
    histogram, mean = Histogram(), Mean()
    feed = Feed.begin(call, spans, [(histogram, (0,)), (mean, (0,))])
    feed.add(weights, Block(slice(0, 1), slice(0, 1), slice(0, 1), slice(0, len(special)), True))
    for ours, plain in zip((histogram, mean), reference(weights, call), strict=True):
        assert_equal(ours, plain)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kind", masks())
@pytest.mark.parametrize("cells", [cutting.CELLS, 100, 1])
def test_output_and_stats_for_any_mask_and_block_size(
    kind: str, groups: int, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team, "path", lambda: team.PATHS.index("torch"))
    monkeypatch.setattr(fused, "blocks", lambda spans, heads: blocks(spans, heads, cells))
    query, key, value, call, weights = problem(masks()[kind], groups)
    histogram, mean = Histogram(), Mean()
    output = attend(query, key, value, call, find_edges(call.allowed), 0.5, [(histogram, ALL), (mean, ALL)])
    assert output is not None
    assert output.is_contiguous()
    assert torch.isfinite(output).all()
    expected = (weights @ value.repeat_interleave(groups, 1)).transpose(1, 2)
    some = call.allowed.any(-1)[:, 0].expand(3, -1)  # a query without keys has no meaningful output
    torch.testing.assert_close(output[some], expected[some], atol=1e-5, rtol=1e-5)
    plain_histogram, plain_mean = reference(weights, call)
    assert torch.equal(histogram.total, plain_histogram.total)
    assert torch.equal(mean.counts("plain"), plain_mean.counts("plain"))
    torch.testing.assert_close(mean.matrix("plain"), plain_mean.matrix("plain"), atol=1e-6, rtol=0)


def test_a_step_of_generation() -> None:
    allowed = torch.ones(1, 1, 1, 6, dtype=torch.bool)
    query, key, value, call, weights = problem(allowed)
    call = dataclasses.replace(call, position=5, query_lead=None, key_lead=None)
    histogram, mean = Histogram(), Mean()
    output = attend(query, key, value, call, find_edges(call.allowed), 0.5, [(histogram, ALL), (mean, ALL)])
    torch.testing.assert_close(output, (weights @ value).transpose(1, 2), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mean.matrix("plain")[:, 5], weights.mean(0)[:, 0].double(), atol=1e-6, rtol=0)


def test_every_stat_watches_its_own_heads() -> None:
    query, key, value, call, weights = problem(masks()["full"])
    histogram, mean = Histogram(), Mean()
    attend(query, key, value, call, find_edges(call.allowed), 0.5, [(histogram, (1, 3)), (mean, (2,))])
    assert histogram.total.tolist() == [[0, 243, 0, 243]]
    torch.testing.assert_close(mean.matrix("plain")[2], weights.mean(0)[2].double(), atol=1e-6, rtol=0)
    assert mean.matrix("plain")[[0, 1, 3]].abs().sum() == 0


def test_blocks_cover_every_cell_once_and_stay_small() -> None:
    allowed = masks()["right padding"]
    spans = spans_of(problem(allowed)[3], 3)
    for cells in (1, 30, 100, 10_000):
        seen = torch.zeros(3, HEADS, 9, 9)
        for block in blocks(spans, HEADS, cells):
            part = seen[block.examples, block.heads, block.queries, block.keys]
            part += 1
            assert part.numel() <= max(cells, 9)
        assert (seen[allowed.expand_as(seen)] == 1).all()


@pytest.mark.parametrize("case", ["gaps", "heads", "gradient", "half", "not built", "not fused", "nothing"])
def test_what_it_cannot_do_is_left_to_the_reference(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = masks()["full"].clone()
    if case == "gaps":
        allowed[..., 3] = False
    if case == "heads":
        allowed = torch.ones(1, HEADS, 9, 9, dtype=torch.bool).tril()
    query, key, value, call, _ = problem(allowed)
    stats: list[tuple[Stat, tuple[int, ...]]] = [(Histogram(), ALL)]
    if case == "gradient":
        query.requires_grad_()
    if case == "half":
        query, key, value = query.bfloat16(), key.bfloat16(), value.bfloat16()
    if case == "not built":
        monkeypatch.setattr(team, "available", lambda: False)
    if case == "not fused":  # without the fused pass there are no weights to show
        monkeypatch.setattr(team, "path", lambda: team.PATHS.index("torch"))
        stats.append((Sample(count=1), ALL))
    watching = [] if case == "nothing" else stats
    assert attend(query, key, value, call, find_edges(call.allowed), 0.5, watching) is None
    assert not stats[0][0].state()[0]


def test_any_stat_can_opt_in_to_the_compiled_pass() -> None:
    """A stat that kernels know nothing about, fed by the compiled pass as ``watch`` would feed it."""

    class Totals(Stat):
        def __init__(self) -> None:
            self.counts = torch.zeros(HEADS, BINS, dtype=torch.int64)
            self.below = torch.zeros(HEADS, dtype=torch.int64)

        def watch(self, tensor: Tensor, call: Call) -> None:
            raise AssertionError("the compiled pass should have been used")

        def compiles(self, call: Call) -> type[BinBuffers]:
            return BinBuffers

        def buffers(self, call: Call, heads: tuple[int, ...], extent: Extent) -> BinBuffers:
            assert (extent.examples, extent.queries, extent.keys) == (3, 9, 9)
            return BinBuffers(heads, self.counts, self.below)

    query, key, value, call, weights = problem(masks()["causal"])
    totals = Totals()
    output = attend(query, key, value, call, find_edges(call.allowed), 0.5, [(totals, ALL)])
    assert output is not None
    histogram, _ = reference(weights, call)
    assert totals.counts.sum(-1).tolist() == histogram.total[0].tolist()


def test_a_subclass_that_watches_in_its_own_way_is_not_compiled() -> None:
    class Doubled(Mean):
        def watch(self, tensor: Tensor, call: Call) -> None:
            super().watch(2 * tensor, call)

    *_, call, _ = problem(masks()["full"])
    plain, doubled = Mean(), Doubled()
    assert divide([(doubled, ALL), (plain, ALL)], call) == ([(plain, ALL)], [(doubled, ALL)])


def test_facts_about_rows_ask_for_the_fused_pass() -> None:
    call = problem(masks()["full"])[3]
    moments, mean = (Moments(), ALL), (Mean(), ALL)
    assert divide([moments, mean], call) == ([moments, mean], [])
    assert divide([moments, mean], call, fused=False) == ([mean], [moments])


@pytest.mark.skipif(not team.available() or team.PATHS[team.path()] == "torch", reason="there is no fused pass here")
@pytest.mark.parametrize("cells", [cutting.CELLS, 700, 1])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", masks())
def test_other_stats_are_shown_the_weights(kind: str, groups: int, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any number of examples at a time, beside stats that the pass feeds; each stat sees its own heads."""

    class Keep(Stat):
        def __init__(self) -> None:
            self.seen: list[tuple[Tensor, Call]] = []

        def watch(self, tensor: Tensor, call: Call) -> None:
            self.seen.append((tensor, call))  # not copied: later examples must not change it

    monkeypatch.setattr(fused, "CELLS", cells)
    query, key, value, call, weights = problem(masks()[kind], groups)
    keep, sample, histogram, mean, moments = Keep(), Sample(count=3), Histogram(), Mean(), Moments()
    stats = [(keep, ALL), (sample, (1, 2)), (histogram, ALL), (mean, (0, 3)), (moments, ALL)]
    output = attend(query, key, value, call, find_edges(call.allowed), 0.5, stats)
    assert output is not None
    seen = torch.cat([tensor for tensor, _ in keep.seen])
    assert len(keep.seen) == {cutting.CELLS: 1, 700: 2, 1: 3}[cells]
    assert [(part.first, part.batch) for _, part in keep.seen] == {
        cutting.CELLS: [(0, 3)], 700: [(0, 3), (2, 3)], 1: [(0, 3), (1, 3), (2, 3)],
    }[cells]  # fmt: skip
    torch.testing.assert_close(seen, weights * call.allowed, atol=1e-6, rtol=1e-5)
    whole = Histogram(), Mean(), Sample(count=3), Moments()
    for stat, heads in zip(whole, (ALL, (0, 3), (1, 2), ALL), strict=True):
        stat.watch(seen[:, list(heads)], call.for_heads(heads))
    for ours, plain in zip((histogram, mean, sample), whole, strict=False):
        assert_equal(ours, plain)
    assert_moments(moments, whole[3])
    some = call.allowed.any(-1)[:, 0].expand(3, -1)
    expected = (weights @ value.repeat_interleave(groups, 1)).transpose(1, 2)
    torch.testing.assert_close(output[some], expected[some], atol=1e-5, rtol=1e-5)


def test_the_second_stat_of_a_kind_is_shown_the_weights() -> None:
    call = problem(masks()["full"])[3]
    stats = [(Histogram(), ALL), (Mean(), ALL), (Histogram(), (1,)), (Histogram(rows=True), ALL)]
    assert divide(stats, call) == (stats[:2], stats[2:])


@pytest.mark.parametrize("kind", [Histogram, Mean, Sample, Majority])
def test_nan_is_refused(kind: type[Stat]) -> None:
    query, key, value, call, _ = problem(masks()["full"])
    query[0, 0, 0, 0] = float("nan")
    with pytest.raises(DataError, match="NaN"):
        attend(query, key, value, call, find_edges(call.allowed), 0.5, [(kind(), ALL)])
