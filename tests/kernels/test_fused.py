"""The fused pass, on every kind of processor that this machine can be, against attention in double precision.

What it counts is compared bit for bit: it writes out the weights that it computed, and the stats' own reference counts
them.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attrim.core.call import Call
from attrim.errors import DataError, ParameterError
from attrim.kernels import attend as attending
from attrim.kernels import team
from attrim.kernels.attend import attend, fused, fuses
from attrim.kernels.blocks import Spans, find_edges
from attrim.kernels.feed import Feed
from attrim.stats import Histogram, Mean, Moments
from attrim.stats.base import Stat
from attrim.stats.integers import ONE
from attrim.stats.moments import MAJORITY
from calls import assert_equal, assert_moments, draw_call, draw_pieces, draw_rows, make_allowed, make_rows, strided

pytestmark = pytest.mark.skipif(not team.available(), reason="the compiled passes were not built")

BEST = importlib.import_module("attrim.kernels._compiled").BEST_PATH if team.available() else 0
PATHS = team.PATHS[1 : BEST + 1]


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(team, "path", lambda: team.PATHS.index(request.param))
    return request.param


def exact(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Weights ``[B, H, Q, K]`` and outputs ``[B, Q, H, D]`` in double precision; 0 for a query without keys."""
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.double().repeat_interleave(groups, 1) for tensor in (key, value))
    scores = (query.double() @ key.transpose(2, 3) * scaling).masked_fill(~allowed, -torch.inf)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return weights, (weights @ value).transpose(1, 2)


def run_and_compare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    call: Call,
    scaling: float,
    some: tuple[int, ...],
    binned: tuple[int, ...] | None = None,
) -> None:
    """Weights and outputs against double precision; the stats against what they count of the very same weights.

    Parameters
    ----------
    some, binned : the heads with averages, where there are any, and those with a histogram (default: all).
    """
    edges = find_edges(call.allowed)
    assert edges is not None
    batch, heads = query.shape[:2]
    spans = Spans.of(edges, call.queries, batch)
    histogram, mean, moments = Histogram(), Mean(), Moments()
    everything = tuple(range(heads))
    binned = everything if binned is None else binned
    stats: list[tuple[Any, tuple[int, ...]]] = [(histogram, binned), (mean, some), (moments, everything)]
    feed = Feed.begin(call, spans, [(stat, chosen) for stat, chosen in stats if chosen])
    weights = torch.zeros(batch, heads, query.shape[2], key.shape[2])
    output = fused(query, key, value, scaling, spans, feed, weights=weights)
    plain_histogram, plain_mean = Histogram(), Mean()
    for stat, plain, chosen in ((histogram, plain_histogram, binned), (mean, plain_mean, some)):
        if chosen:
            plain.watch(weights[:, list(chosen)], call.for_heads(chosen))
            assert_equal(stat, plain)
    plain_moments = Moments()
    plain_moments.watch(weights, call)
    assert_moments(moments, plain_moments)
    expected, mixed = exact(query, key, value, call.allowed, scaling)
    torch.testing.assert_close(weights.double(), expected, atol=1e-9, rtol=1e-5)
    torch.testing.assert_close(output.double(), mixed, atol=1e-6 * float(value.abs().amax()), rtol=1e-6)
    assert output.is_contiguous()


@pytest.mark.parametrize("kernel", PATHS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_shape_mask_and_layout(kernel: str, data: st.DataObject) -> None:
    query, key, value, call, scaling = draw_call(data)
    some, binned = (tuple(sorted(data.draw(st.sets(st.sampled_from(call.heads))))) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "path", lambda: team.PATHS.index(kernel))
        patch.setattr(attending, "_pieces", draw_pieces(data))
        run_and_compare(query, key, value, call, scaling, some, binned)


@pytest.mark.parametrize("keys", [320, 333, 1030])
def test_lengths_of_real_batches(path: str, keys: int) -> None:
    generator = torch.Generator().manual_seed(keys)
    query, key, value = (strided(generator, 2, 2, keys, 64, "heads last") for _ in range(3))
    for kind in ("full", "causal"):
        call = Call.plain(query.new_empty(2, 2, keys, keys), make_allowed(kind, 2, keys, keys, generator))
        run_and_compare(query, key, value, call, 0.125, (0, 1))


def describe(rows: list[Tensor]) -> Tensor:
    """Compare the moments of rows with those of the reference; gives the weights ``[rows, K]``."""
    query, key, value, call = make_rows(rows)
    edges = find_edges(call.allowed)
    assert edges is not None
    spans = Spans.of(edges, call.queries, 1)
    for number in range(len(rows)):  # each alone, so that errors of two rows do not cancel out
        own = dataclasses.replace(call, queries=torch.arange(len(rows))[None] == number)
        moments, plain = Moments(), Moments()
        weights = torch.zeros(1, 1, len(rows), key.shape[2])
        spans = Spans.of(edges, own.queries, 1)
        fused(query, key, value, 1.0, spans, Feed.begin(own, spans, [(moments, (0,))]), weights=weights)
        plain.watch(weights, own)
        assert_moments(moments, plain)
    return weights[0, 0]


@pytest.mark.parametrize("kernel", PATHS)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_the_majority_of_rows_whose_sums_come_near_to_a_half(kernel: str, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "path", lambda: team.PATHS.index(kernel))
        describe(draw_rows(data))


def test_the_majority_of_rows_that_are_hard_to_guess(path: str) -> None:
    """One key; equal weights; a half and many that are the other; a little more than a half, then many far below."""
    many = torch.full((1000,), 1 / 1000)
    rows = [torch.ones(1), torch.tensor([0.5, 0.5]), torch.full((16,), 1 / 16), torch.full((1001,), 1 / 1001)]
    rows += [
        torch.cat([torch.tensor([share]), (1 - share) * many]) for share in (0.49, 0.4999999, 0.5, 0.5000002, 0.51)
    ]
    rows += [torch.cat([torch.full((99,), 0.49 / 99), 0.5100001 * many]), torch.logspace(0, -40, 300).softmax(0)]
    weights = describe(rows)
    torch.testing.assert_close(weights[6, 0], torch.tensor(0.5), atol=1e-5, rtol=0)


def test_the_majority_where_sums_of_floats_are_not_sure(path: str) -> None:
    """Some of the weights are a half up to the last bit of a float, so that only fixed point tells on which side."""
    generator, half = torch.Generator().manual_seed(0), MAJORITY / ONE
    rows = []
    for _ in range(20):
        large, small = (0.5 + torch.rand(size, generator=generator).double() for size in (1500, 5000))
        rows.append(torch.cat([half * large / large.sum(), (1 - half) * small / small.sum()]))
    describe(rows)


def test_every_weight_down_to_the_smallest_float(path: str) -> None:
    """Scores that float32 holds exactly, so that only the exponential and the division can be wrong."""
    keys = torch.linspace(0, -160, 20001).mul(64).round().div(64)
    query, key, value = torch.ones(1, 1, 1, 1), keys.view(1, 1, -1, 1), torch.ones(1, 1, len(keys), 1)
    call = Call.plain(query.new_empty(1, 1, 1, len(keys)))
    edges = find_edges(call.allowed)
    assert edges is not None
    spans = Spans.of(edges, call.queries, 1)
    histogram = Histogram()
    weights = torch.zeros(1, 1, 1, len(keys))
    fused(query, key, value, 1.0, spans, Feed.begin(call, spans, [(histogram, (0,))]), weights=weights)
    found = weights.flatten().double()
    expected = torch.exp(keys.double()) * found[0]
    normal = expected >= 2.0**-126
    assert ((found - expected).abs() / expected)[normal].max() < 3e-7
    assert (found - expected)[~normal].abs().max() <= 2.0**-149
    assert float(found.sum()) == pytest.approx(1, abs=1e-6)
    assert int(histogram.zeros) == int((found == 0).sum()) > 5000
    plain = Histogram()
    plain.watch(weights, call)
    assert_equal(histogram, plain)


def test_equal_scores_give_exactly_equal_weights(path: str) -> None:
    query, key = torch.zeros(1, 1, 2, 4), torch.randn(1, 1, 64, 4)
    mean = Mean()
    call = Call.plain(query.new_empty(1, 1, 2, 64))
    attend(query, key, torch.ones(1, 1, 64, 4), call, find_edges(call.allowed), 1.0, [(mean, (0,))])
    assert (mean.matrix("plain") == 1 / 64).all()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("stat", [Histogram, Mean])
def test_what_is_not_a_number_is_refused_where_it_counts(path: str, wrong: float, stat: type[Stat]) -> None:
    query, key, value = (torch.randn(2, 2, 20, 8).abs() for _ in range(3))
    real = torch.arange(20)[None] < torch.tensor([20, 15])[:, None]
    call = Call.plain(query.new_empty(2, 2, 20, 20), real)
    edges = find_edges(call.allowed)
    query[1, 0, 17] = wrong  # a query that is padding
    output = attend(query, key, value, call, edges, None, [(stat(), (0, 1))])
    assert output is not None
    assert torch.isfinite(output[real]).all()
    query[1, 0, 3] = wrong
    with pytest.raises(DataError, match="NaN"):
        attend(query, key, value, call, edges, None, [(stat(), (0, 1))])


def test_keys_that_are_padding_may_hold_anything(path: str) -> None:
    query, key, value = (torch.randn(2, 2, 20, 8) for _ in range(3))
    real = torch.arange(20)[None] < torch.tensor([20, 15])[:, None]
    call = Call.plain(query.new_empty(2, 2, 20, 20), real)
    key[1, :, 15:], value[1, :, 15:] = float("nan"), float("inf")
    output = attend(query, key, value, call, find_edges(call.allowed), None, [(Histogram(), (0, 1))])
    assert output is not None
    assert torch.isfinite(output).all()


def test_where_the_fused_pass_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(1, 1, 3, 8)
    assert fuses(tensor, tensor, tensor)
    wide = torch.randn(1, 1, 3, 257)
    assert not fuses(wide, wide, tensor)
    assert not fuses(tensor, tensor, wide)
    long = torch.empty(1, 1, 1, 1).expand(1, 1, 300_000, 8)
    assert not fuses(tensor, long, long)
    monkeypatch.setattr(team, "path", lambda: 0)
    assert not fuses(tensor, tensor, tensor)


@pytest.mark.parametrize("queries", [1, 100])
def test_any_number_of_threads_gives_the_same(path: str, queries: int) -> None:
    query = torch.randn(3, 5, queries, 16)
    key, value = torch.randn(2, 3, 5, 130, 16)
    call = Call.plain(query.new_empty(3, 5, queries, 130))
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            stats = Histogram(), Mean()
            watched = [(stat, tuple(range(5))) for stat in stats]
            output = attend(query, key, value, call, find_edges(call.allowed), None, watched)
            results.append((output, stats))
    finally:
        torch.set_num_threads(before)
    for output, stats in results[1:]:
        assert torch.equal(output, results[0][0])
        for one, other in zip(stats, results[0][1], strict=True):
            assert_equal(one, other)


def test_the_kernel_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = team.path.__wrapped__
    monkeypatch.delenv("ATTRIM_KERNEL", raising=False)
    assert choose() == (BEST if team.PATHS[BEST] != "portable" else 0)  # torch's products are faster than those
    for number, name in enumerate(team.PATHS[: BEST + 1]):
        monkeypatch.setenv("ATTRIM_KERNEL", name)
        assert choose() == number
    monkeypatch.setenv("ATTRIM_KERNEL", "avx1024")
    with pytest.raises(ParameterError, match=r"^ATTRIM_KERNEL=avx1024 is not a kernel of this machine; it has torch,"):
        choose()
