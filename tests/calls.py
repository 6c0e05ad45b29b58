"""Attention calls of any shape, mask and layout for the tests of kernels, and how stats of two passes are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor

from attrim.core.call import Call
from attrim.kernels.feed import Feed
from attrim.stats import Moments
from attrim.stats.base import Stat
from attrim.stats.integers import from_wide


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


def draw_call(data: st.DataObject) -> tuple[Tensor, Tensor, Tensor, Call, float]:
    """Query, key, value, the call and the scaling; some queries are padding."""
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
    return query, key, value, call, data.draw(st.sampled_from([0.5, 1.0, 2.0])) * size**-0.5


def draw_pieces(data: st.DataObject) -> Callable[[int, int, int, Feed], dict[str, int]]:
    """Any way to divide the work of the fused pass in which no two threads add to the same sums."""

    def pieces(batch: int, heads: int, queries: int, feed: Feed) -> dict[str, int]:
        apart = feed.cells is None and data.draw(st.booleans())
        return {
            "parts": data.draw(st.integers(1, 4)), "together": data.draw(st.integers(1, heads)), "apart": int(apart),
        }  # fmt: skip

    return pieces


def make_rows(rows: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Call]:
    """Query, key, values of 0 and call of one head that has these weights, up to rounding; shorter rows get zeros."""
    keys = max(len(row) for row in rows)
    scores = torch.full((len(rows), keys), -200.0)
    for row, own in zip(scores, rows, strict=True):
        row[: len(own)] = own.double().log().clamp(min=-200)
    call = Call.plain(torch.empty(1, 1, len(rows), keys))
    return torch.eye(len(rows))[None, None], scores.T.contiguous()[None, None], torch.zeros(1, 1, keys, 3), call


def draw_rows(data: st.DataObject) -> list[Tensor]:
    """Rows of weights that make it hard to say how many are a majority.

    A row is groups of equal or nearly equal weights, some groups half of the row or nothing, in any order. So its mean
    logarithm says little about the weights in its middle, and sums of its weights come near to a half, or are one.
    """
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1 << 30)))
    rows = []
    for _ in range(data.draw(st.integers(1, 8))):
        groups = data.draw(st.lists(st.sampled_from([1, 2, 3, 8, 9, 16, 17, 40, 100, 200]), min_size=1, max_size=5))
        shares = [data.draw(st.sampled_from([0.0, 1e-12, 1e-3, 0.25, 0.5, 1.0, 1.01, 2.0])) for _ in groups]
        shares[0] += 0.0 if any(shares[1:]) else 1.0
        parts = [torch.full((count,), share / count) for count, share in zip(groups, shares, strict=True)]
        row = torch.cat(parts).double()
        row *= 1 + data.draw(st.sampled_from([0.0, 3e-7, 1e-3, 0.9])) * torch.rand(row.shape, generator=generator)
        rows.append((row / row.sum())[torch.randperm(len(row), generator=generator)])
    return rows


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
