"""The sparse pass against dense attention with a mask, on every path of this machine."""

from __future__ import annotations

import functools
import importlib
import operator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attrim.errors import ShapeError
from attrim.kernels import team
from attrim.kernels.sparse import SIDE, SparsePlan, attend_sparse
from stock_attention import dense

pytestmark = pytest.mark.skipif(not team.available(), reason="the compiled passes were not built")
BEST = importlib.import_module("attrim.kernels._compiled").BEST_PATH if team.available() else 0
FUSED = team.PATHS[1 : BEST + 1]


@pytest.mark.parametrize("path", FUSED)
@given(
    batch=st.integers(1, 3),
    groups=st.integers(1, 2),
    shared=st.integers(1, 3),
    queries=st.integers(1, 50),
    keys=st.integers(1, 70),
    size=st.integers(1, 70),
    value_size=st.integers(1, 40),
    density=st.sampled_from([0.0, 0.02, 0.2, 0.7, 1.0]),
    reorder=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_equals_dense_attention_with_a_mask(
    path: str, batch: int, groups: int, shared: int, queries: int, keys: int, size: int, value_size: int,
    density: float, reorder: bool, seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    heads = groups * shared
    # As in models, the heads of a token lie side by side, so that neither of these is contiguous.
    query = torch.randn(batch, queries, heads, size).transpose(1, 2)
    key = torch.randn(batch, keys, groups, size).transpose(1, 2)
    value = torch.randn(batch, groups, value_size, keys).mT
    kept = torch.rand(heads, queries, keys) < density
    kept[-1] = kept[0]
    start = torch.randint(0, keys + 1, (batch, queries))
    stop = torch.minimum(start + torch.randint(0, keys + 1, (batch, queries)), torch.tensor(keys))
    plan = SparsePlan.of(kept, reorder=reorder)
    number = team.PATHS.index(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "path", lambda: number)
        found = attend_sparse(query, key, value, size**-0.5, plan, start, stop)
        half = [tensor.bfloat16() for tensor in (query, key, value)]
        low = attend_sparse(half[0], half[1], half[2], size**-0.5, plan, start, stop)
    assert torch.allclose(found.double(), dense(query, key, value, kept, start, stop), atol=1e-5)
    assert low.dtype == torch.bfloat16
    wanted = dense(half[0], half[1], half[2], kept, start, stop)
    assert torch.allclose(low.double(), wanted, atol=1e-5, rtol=2**-8)


@given(heads=st.integers(1, 4), queries=st.integers(1, 60), keys=st.integers(1, 40), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_a_plan_has_every_kept_cell_once(heads: int, queries: int, keys: int, seed: int) -> None:
    torch.manual_seed(seed)
    kept = torch.rand(heads, queries, keys) < 0.3
    for reorder in (False, True):
        plan = SparsePlan.of(kept, reorder=reorder)
        for head in range(heads):
            found = np.zeros((queries, keys), dtype=int)
            pattern = plan.pattern_of[head]
            rows_seen = []
            for block in range(plan.block_begin[pattern], plan.block_begin[pattern + 1]):
                own = slice(plan.column_begin[block], plan.column_end[block])
                columns = plan.columns[own] + plan.shift[block]
                assert (np.diff(columns) > 0).all()
                rows_seen += [row for row in plan.rows[block] if row >= 0]
                for place, row in enumerate(plan.rows[block]):
                    if row >= 0:
                        found[row, columns] += plan.kept[own] >> place & 1
            assert sorted(rows_seen) == list(range(queries))
            assert (found == kept[head].numpy()).all()


def test_reordering_makes_blocks_smaller() -> None:
    """Even queries keep the first half and odd ones the second: side by side every block needs all keys."""
    kept = torch.zeros(1, 64, 64, dtype=torch.bool)
    kept[:, ::2, :32] = kept[:, 1::2, 32:] = True
    assert SparsePlan.of(kept, reorder=False).computed().tolist() == [64 * 64]
    assert SparsePlan.of(kept).computed().tolist() == [64 * 32]


def test_a_plan_of_longer_texts_serves_shorter_ones() -> None:
    torch.manual_seed(0)
    kept = torch.rand(2, 90, 80) < 0.3
    query, key, value = torch.randn(1, 2, 37, 8), torch.randn(1, 2, 51, 8), torch.randn(1, 2, 51, 8)
    start, stop = torch.zeros(1, 37, dtype=torch.int64), torch.full((1, 37), 51)
    found = attend_sparse(query, key, value, 8**-0.5, SparsePlan.of(kept), start, stop)
    wanted = dense(query, key, value, kept[:, :37, :51], start, stop)
    assert torch.allclose(found.double(), wanted, atol=1e-5)
    with pytest.raises(ShapeError, match="up to 90 queries"):
        attend_sparse(torch.randn(1, 2, 91, 8), key, value, 1.0, SparsePlan.of(kept), start, stop)


def test_heads_of_one_pattern_share_it() -> None:
    kept = torch.rand(1, 33, 33) < 0.5
    plan = SparsePlan.of(torch.cat([kept, ~kept, kept, kept]))
    assert len(plan.block_begin) == 3
    assert len({*plan.pattern_of[[0, 2, 3]]}) == 1
    assert (np.diff(plan.block_begin) == -(-33 // SIDE)).all()


@given(
    heads=st.integers(1, 4),
    queries=st.integers(1, 60),
    keys=st.integers(1, 40),
    causal=st.booleans(),
    density=st.sampled_from([0.0, 0.1, 0.6]),
    seed=st.integers(0, 99),
)
@settings(max_examples=50, deadline=None)
def test_the_cost_of_a_plan_is_counted(
    heads: int, queries: int, keys: int, causal: bool, density: float, seed: int
) -> None:
    torch.manual_seed(seed)
    kept = torch.rand(heads, queries, keys) < density
    kept[-1] = kept[0]
    plan = SparsePlan.of(kept, causal=causal)
    costs = plan.costs(8, 5)
    assert sorted(head for cost in costs for head in cost.heads) == list(range(heads))
    for cost in costs:
        cells = kept[list(cost.heads)]
        allowed = torch.ones_like(cells)
        if causal:
            cells, allowed = cells.tril(), allowed.tril()
        assert cost.allowed == int(allowed.sum())
        assert cost.kept == int(cells.sum())
        assert cost.computed == plan.computed()[list(cost.heads)].sum()
        assert cost.flops == 2 * cost.computed * 13
        assert cost.bytes == 4 * 13 * (cost.computed // SIDE + len(cost.heads) * queries)
    total = functools.reduce(operator.add, costs)
    assert total.heads == tuple(range(heads))
    assert total.computed == plan.computed().sum()
    assert total.union_density >= total.density


def test_numbers_that_are_not_finite_are_not_hidden() -> None:
    query = torch.randn(1, 1, 20, 8)
    query[0, 0, 3, 0] = torch.nan
    plan = SparsePlan.of(torch.ones(1, 20, 20, dtype=torch.bool))
    spans = torch.zeros(1, 20, dtype=torch.int64), torch.full((1, 20), 20)
    found = attend_sparse(query, torch.randn(1, 1, 20, 8), torch.randn(1, 1, 20, 8), 1.0, plan, *spans)
    assert torch.isnan(found[0, 3]).all()
    assert torch.isfinite(found[0, [row for row in range(20) if row != 3]]).all()


def unfit() -> dict[str, dict[str, Tensor]]:
    """Tensors beyond which the kernel would read, by what is wrong with them."""
    query, edge = torch.randn(2, 4, 8, 16), torch.zeros(2, 8, dtype=torch.int64)
    half = {"key": query.bfloat16(), "value": query.bfloat16()}
    return {
        "fewer examples": {"key": query[:1], "value": query[:1]},
        "another size": {"key": query[..., :8]},
        "fewer keys": {"key": query[:, :, :4]},
        "groups that do not divide": {"key": query[:, :3], "value": query[:, :3]},
        "mixed dtypes": half,
        "double": {name: query.double() for name in ("query", "key", "value")},
        "32 bits": {"start": edge.int(), "stop": edge.int()},
        "spans of one example": {"start": edge[:1], "stop": edge[:1]},
    }


@pytest.mark.parametrize("changed", unfit().values(), ids=unfit())
def test_tensors_that_do_not_fit_are_refused(changed: dict[str, Tensor]) -> None:
    given = {name: torch.randn(2, 4, 8, 16) for name in ("query", "key", "value")}
    edges = {name: torch.full((2, 8), edge) for name, edge in (("start", 0), ("stop", 8))}
    plan = SparsePlan.of(torch.ones(4, 8, 8, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"do not fit one another|all float32 or all bfloat16"):
        attend_sparse(**{**given, **edges, "scaling": 1.0, "plan": plan, **changed})  # type: ignore[arg-type]


def test_spans_end_with_the_keys() -> None:
    query, plan = torch.randn(1, 2, 5, 8), SparsePlan.of(torch.ones(2, 40, 40, dtype=torch.bool))
    start = torch.zeros(1, 5, dtype=torch.int64)
    found, expected = (attend_sparse(query, query, query, 1.0, plan, start, start + stop) for stop in (40, 5))
    assert torch.equal(found, expected)
