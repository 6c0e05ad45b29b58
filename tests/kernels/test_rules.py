"""Spans of keys against the cells that they stand for."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from attrim.attention import dropping
from attrim.core.call import Call
from attrim.core.site import Site
from attrim.edits.base import Edit
from attrim.edits.mask import Mask
from attrim.edits.mask_outside_window import MaskOutsideWindow
from attrim.edits.window import Window
from attrim.kernels import team
from attrim.kernels.rules import KeptSpans
from attrim.kernels.sparse import SIDE, SparsePlan, attend_sparse
from attrim.kernels.ways import kept_cells

SITE = Site("site", "encoder", 0, 2)


def draw(seed: int, queries: int, keys: int) -> NDArray[np.bool_]:
    """Cells in runs, as rules give them."""
    generator = np.random.default_rng(seed)
    flips = generator.random((queries, keys)) < generator.choice([0.0, 0.1, 0.5])
    return (flips.cumsum(1) + generator.integers(0, 2, (queries, 1))) % 2 == 1


@given(queries=st.integers(1, 50), keys=st.integers(1, 60), seed=st.integers(0, 999))
@settings(max_examples=100, deadline=None)
def test_spans_are_cells(queries: int, keys: int, seed: int) -> None:
    cells, others = draw(seed, queries, keys), draw(seed + 1, queries, keys)
    spans = KeptSpans.of_cells(cells)
    assert (spans.cells() == cells).all()
    assert (spans.cells(slice(3, 9)) == cells[3:9]).all()
    assert (KeptSpans.intersection([spans, KeptSpans.of_cells(others)]).cells() == (cells & others)).all()
    stop = np.random.default_rng(seed).integers(0, keys + 1, queries)
    assert (spans.up_to(stop).cells() == (cells & (np.arange(keys) < stop[:, None]))).all()
    assert KeptSpans.everything((queries, keys)).cells().all()


@given(
    queries=st.integers(1, 50),
    keys=st.integers(1, 60),
    reorder=st.booleans(),
    causal=st.booleans(),
    seed=st.integers(0, 999),
)
@settings(max_examples=100, deadline=None)
def test_a_plan_by_rule_is_that_of_the_cells(queries: int, keys: int, reorder: bool, causal: bool, seed: int) -> None:
    cells = np.stack([draw(seed, queries, keys), draw(seed + 1, queries, keys), draw(seed, queries, keys)])
    wanted = SparsePlan.of(torch.from_numpy(cells), reorder=reorder, causal=causal)
    found = SparsePlan.by_rule([KeptSpans.of_cells(own) for own in cells], reorder=reorder, causal=causal)
    assert found.pattern_of[0] == found.pattern_of[2]
    assert len(found.block_begin) == len(wanted.block_begin)
    for head in range(3):
        for own, other in zip(blocks(found, head), blocks(wanted, head), strict=True):
            for left, right in zip(own, other, strict=True):
                assert left.dtype == right.dtype
                assert (left == right).all()


def blocks(plan: SparsePlan, head: int) -> list[tuple[NDArray[np.generic], ...]]:
    """Rows, columns and bits of the blocks of a head."""
    pattern = plan.pattern_of[head]
    return [
        (plan.rows[block], plan.columns[own] + plan.shift[block], plan.kept[own])
        for block in range(plan.block_begin[pattern], plan.block_begin[pattern + 1])
        for own in [slice(plan.column_begin[block], plan.column_end[block])]
    ]


@given(
    queries=st.integers(1, 40),
    keys=st.integers(1, 40),
    position=st.integers(0, 30),
    key_position=st.integers(0, 8),
    size=st.integers(1, 12),
    first=st.integers(0, 5),
    stored=st.tuples(st.integers(1, 3), st.integers(1, 24), st.integers(1, 24)),
    unseen=st.sampled_from(["keep", "prune", "offset"]),
    density=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=200, deadline=None)
def test_rules_of_edits_are_what_they_drop(
    queries: int, keys: int, position: int, key_position: int, size: int, first: int, stored: tuple[int, int, int],
    unseen: str, density: float, seed: int,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool)
    site = Site("site", "decoder", 0, stored[0])
    heads = tuple(range(stored[0]))
    call = Call(site, allowed, allowed[0, :, :, 0], allowed[0, :, 0], heads, position, key_position)
    cells = torch.rand(*stored, generator=generator) < density
    edits: list[Edit] = [
        Window(size, first),
        Mask(cells, unseen),  # type: ignore[arg-type]
        MaskOutsideWindow(cells, size, first),
    ]
    for edit in edits:
        spans, dropped = edit.kept_spans(call), edit.drops(call)
        assert dropped is not None
        if spans is None:
            assert isinstance(edit, Mask | MaskOutsideWindow)
            assert position + queries <= stored[1]
            assert key_position + keys <= stored[2]
            continue
        assert len(spans) in (1, len(heads))
        for head, own in enumerate(spans):
            assert (own.cells() == ~dropped[0, min(head, dropped.shape[1] - 1)].numpy()).all()


def test_rows_that_get_something_else_than_zero_have_no_rule() -> None:
    allowed = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    call = Call(SITE, allowed, allowed[0, :, :, 0], allowed[0, :, 0], (0, 1))
    assert Mask(torch.ones(2, 3, 3, dtype=torch.bool), empty="uniform").kept_spans(call) is None


@pytest.mark.skipif(not team.available(), reason="the compiled passes were not built")
@pytest.mark.parametrize("causal", [False, True])
def test_long_texts_have_plans_without_cells(causal: bool) -> None:
    """A matrix of cells would have 1 GiB for each head."""
    length, generator = 32768, torch.Generator().manual_seed(0)
    mask = Mask(torch.rand(2, 96, 96, generator=generator) < 0.8, "offset", distances=torch.ones(2, 3))
    edits = [(Window(256, 4), (0, 1)), (mask, (1,))]
    call = dropping.whole_call(SITE, (0, 1), (length, length))
    tracemalloc.start()
    plan = dropping.make_plan(call, edits, reorder=True, causal=causal)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert plan is not None
    assert peak < 50e6
    query, key, value = (torch.randn(1, 2, length, 8, generator=generator) for _ in range(3))
    start = torch.zeros(1, length, dtype=torch.int64)
    stop = torch.arange(1, length + 1)[None] if causal else torch.full((1, length), length)
    found = attend_sparse(query, key, value, 8**-0.5, plan, start, stop)
    for row in (0, 7, 50, 95, 96, 97, 5000, 20001, length - 1):
        one = torch.ones(1, 1, 1, length, dtype=torch.bool)
        step = Call(SITE, one, one[0, :, :, 0], one[0, :, 0], (0, 1), position=row)
        dropped = torch.cat([Window(256, 4).drops(step), Window(256, 4).drops(step) | mask.removed(step)[:, 1:]], 1)
        scores = (query[:, :, row : row + 1].double() @ key.double().mT) * 8**-0.5
        seen = ~dropped & (torch.arange(length) < stop[0, row])
        weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1).nan_to_num(0.0)
        torch.testing.assert_close(found[:, row].double(), (weights @ value.double())[:, :, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["window", "distances", "far distances"])
def test_plans_by_distance_do_not_grow_with_the_text(kind: str, causal: bool) -> None:
    """Blocks share their columns; where queries keep all that is far away, there are as many as keys on both sides."""
    generator = torch.Generator().manual_seed(0)
    shares = torch.rand(2, 401, generator=generator)
    shares[:, :8] = shares[:, -8:] = 0.0 if kind == "far distances" else 1.0
    cells = torch.rand(2, 64, 64, generator=generator) < 0.5
    edit = Window(200) if kind == "window" else Mask(cells, "offset", distances=shares)
    stored = {}
    for length in (1280, 2560):
        call = dropping.whole_call(SITE, (0, 1), (length, length))
        plan = dropping.make_plan(call, [(edit, (0, 1))], reorder=True, causal=causal)
        assert plan is not None
        dropped = edit.drops(call)
        assert dropped is not None
        for head in range(2):
            kept = ~dropped[0, min(head, dropped.shape[1] - 1)]
            assert (kept_cells(plan, int(plan.pattern_of[head])) == (kept.tril() if causal else kept).numpy()).all()
        stored[length] = len(plan.columns)
        assert stored[length] < int(plan.computed().sum()) / SIDE / 4
    most = 2 * 2 * (2560 - 1280) if kind == "far distances" else 0
    # The blocks of the stored cells see what is behind these, up to the end of the text.
    most += 2 * 4 * (2560 - 1280) if kind == "far distances" else 0
    assert stored[2560] <= stored[1280] + most


def test_a_step_of_a_generation_asks_for_its_keys_alone() -> None:
    keys = 100_000
    one = torch.ones(1, 1, 1, 1, dtype=torch.bool).expand(1, 1, 1, keys)
    call = Call(SITE, one, one[0, :, :, 0], one[0, :, 0], (0, 1), position=keys - 1)
    plan = dropping.make_plan(call, [(Window(64, 4), (0, 1))], reorder=False)
    assert plan is not None
    assert plan.columns.tolist() == [*range(4), *range(keys - 64, keys)]
