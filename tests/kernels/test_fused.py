"""The fused pass, on every kind of processor that this machine can be, against attention in double precision.

What it counts is compared bit for bit: it writes out the weights that it computed, and the stats' own reference counts
them.
"""

from __future__ import annotations

import dataclasses
import importlib

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
from attrim.stats.integers import from_wide

pytestmark = pytest.mark.skipif(not team.available(), reason="the compiled passes were not built")

BEST = importlib.import_module("attrim.kernels._compiled").BEST_PATH if team.available() else 0
PATHS = team.PATHS[1 : BEST + 1]


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(team, "path", lambda: team.PATHS.index(request.param))
    return request.param


def strided(generator: torch.Generator, batch: int, heads: int, length: int, size: int, layout: str) -> Tensor:
    """Normal numbers ``[B, H, L, D]`` in one of the layouts that models have."""
    if layout == "heads last":
        return torch.randn(batch, length, heads, size, generator=generator).transpose(1, 2)
    if layout == "part of a projection":
        return torch.randn(batch, length, heads, 3 * size, generator=generator)[..., size : 2 * size].transpose(1, 2)
    if layout == "numbers first":
        return torch.randn(batch, heads, size, length, generator=generator).transpose(2, 3)
    return torch.randn(batch, heads, length, size, generator=generator)


LAYOUTS = ("heads last", "part of a projection", "numbers first", "contiguous")


def make_allowed(kind: str, batch: int, queries: int, keys: int, generator: torch.Generator) -> Tensor:
    """Allowed cells ``[B|1, 1, Q, K]`` of which every query has one span."""
    key, query = torch.arange(keys), torch.arange(queries)[:, None]
    ahead = keys - queries
    length = torch.randint(0, keys + 1, (batch,), generator=generator)
    right = (key[None] < length[:, None])[:, None, None, :]
    left = right.flip(-1)
    causal = (key[None] <= query + ahead)[None, None]
    window = causal & (key[None] > query + ahead - 5)[None, None]
    start, stop = torch.randint(0, keys + 1, (2, batch, queries), generator=generator).sort(0).values
    spans = ((key >= start[..., None]) & (key < stop[..., None]))[:, None]
    return {
        "full": torch.ones(1, 1, queries, keys, dtype=torch.bool),
        "right padding": right.expand(-1, 1, queries, -1),
        "left padding": left.expand(-1, 1, queries, -1),
        "causal": causal.expand(1, 1, queries, keys),
        "causal, left padding": causal & left,
        "window": window,
        "any spans": spans,
    }[kind]


KINDS = ("full", "right padding", "left padding", "causal", "causal, left padding", "window", "any spans")


def exact(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Weights ``[B, H, Q, K]`` and outputs ``[B, Q, H, D]`` in double precision; 0 for a query without keys."""
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.double().repeat_interleave(groups, 1) for tensor in (key, value))
    scores = (query.double() @ key.transpose(2, 3) * scaling).masked_fill(~allowed, -torch.inf)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return weights, (weights @ value).transpose(1, 2)


def assert_equal(left: Stat, right: Stat) -> None:
    mine, theirs = left.state()[0], right.state()[0]
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert torch.equal(mine[name], theirs[name]), name


def assert_moments(mine: Moments, theirs: Moments) -> None:
    """Everything equal but the entropy, which the fused pass takes from the scores."""
    for name, tensor in mine.state()[0].items():
        other = theirs.state()[0][name]
        if name.endswith("/entropy"):
            torch.testing.assert_close(from_wide(tensor), from_wide(other), rtol=3e-6, atol=1e-5)
        else:
            assert torch.equal(tensor, other), name


def run_and_compare(
    query: Tensor, key: Tensor, value: Tensor, call: Call, scaling: float, some: tuple[int, ...]
) -> None:
    """Weights and outputs against double precision; the stats against what they count of the very same weights."""
    edges = find_edges(call.allowed)
    assert edges is not None
    batch, heads = query.shape[:2]
    spans = Spans.of(edges, call.queries, batch)
    histogram, mean, moments = Histogram(), Mean(), Moments()
    everything = tuple(range(heads))
    feed = Feed.begin(call, spans, [(histogram, everything), (mean, some), (moments, everything)])
    weights = torch.zeros(batch, heads, query.shape[2], key.shape[2])
    output = fused(query, key, value, scaling, spans, feed, weights)
    plain_histogram, plain_mean = Histogram(), Mean()
    plain_histogram.watch(weights, call)
    plain_mean.watch(weights[:, list(some)], call.for_heads(some))
    assert_equal(histogram, plain_histogram)
    assert_equal(mean, plain_mean)
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
    batch, groups, shared = (data.draw(st.integers(1, 3)) for _ in range(3))
    queries, keys = (data.draw(st.integers(1, 70)) for _ in range(2))
    size, value_size = (data.draw(st.sampled_from([1, 3, 8, 16, 17, 32, 40, 64, 97])) for _ in range(2))
    layouts = [data.draw(st.sampled_from(LAYOUTS)) for _ in range(3)]
    kind = data.draw(st.sampled_from(KINDS))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1 << 30)))
    heads = groups * shared
    query = strided(generator, batch, heads, queries, size, layouts[0])
    key = strided(generator, batch, shared, keys, size, layouts[1])
    value = strided(generator, batch, shared, keys, value_size, layouts[2])
    allowed = make_allowed(kind, batch, queries, keys, generator)
    call = Call.plain(query.new_empty(batch, heads, queries, keys), allowed)
    real = torch.rand(batch, queries, generator=generator) < 0.8
    lead = torch.randint(0, 1 + min(queries, keys) // 2, (batch,), generator=generator) if kind == "any spans" else None
    if lead is not None:  # leading padding has no slot of its own, so neither its queries nor its keys count
        real &= torch.arange(queries) >= lead[:, None]
        allowed = allowed & (torch.arange(keys) >= lead[:, None])[:, None, None]
    call = dataclasses.replace(call, allowed=allowed, queries=real, query_lead=lead, key_lead=lead)
    some = tuple(sorted(data.draw(st.sets(st.integers(0, heads - 1), min_size=1))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "path", lambda: team.PATHS.index(kernel))
        patch.setattr(attending, "_parts", lambda *_: data.draw(st.integers(1, 4)))
        run_and_compare(query, key, value, call, data.draw(st.sampled_from([0.5, 1.0, 2.0])) * size**-0.5, some)


@pytest.mark.parametrize("keys", [320, 333, 1030])
def test_lengths_of_real_batches(path: str, keys: int) -> None:
    generator = torch.Generator().manual_seed(keys)
    query, key, value = (strided(generator, 2, 2, keys, 64, "heads last") for _ in range(3))
    for kind in ("full", "causal"):
        call = Call.plain(query.new_empty(2, 2, keys, keys), make_allowed(kind, 2, keys, keys, generator))
        run_and_compare(query, key, value, call, 0.125, (0, 1))


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
    fused(query, key, value, 1.0, spans, Feed.begin(call, spans, [(histogram, (0,))]), weights)
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
