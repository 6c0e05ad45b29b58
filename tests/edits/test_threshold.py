from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from attrim.edits.threshold import Threshold, keep_mass, keep_top, threshold
from attrim.errors import ParameterError

# The vector V of spec/sparsity-quantization.md 5.4, as one row.
V = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.05, 0.01, 0.002, 0.0005], dtype=torch.float64)[None, None, None]


def rows(count: int = 4, keys: int = 9) -> st.SearchStrategy[Tensor]:
    """Rows of attention: scores through a softmax, some of them very peaky."""
    scores = hnp.arrays("float32", (1, 1, count, keys), elements=st.floats(-40, 40, width=32))
    return scores.map(lambda array: torch.softmax(torch.from_numpy(array), -1))


bars = st.floats(0, 2, width=32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_a_weight_equal_to_the_bar_falls(dtype: torch.dtype) -> None:
    weights = torch.tensor([[0.001, 0.3, 0.699]], dtype=dtype)[None, None]
    assert (threshold(weights, 0.001) == 0).tolist() == [[[[True, False, False]]]]
    assert (threshold(weights, 0.3) == 0).tolist() == [[[[True, True, False]]]]


def test_the_paper_rule_on_v() -> None:
    """A bar is absolute, kept values do not change and are not renormalised."""
    kept = threshold(V, 1e-3)
    assert torch.equal(kept, torch.where(V > 1e-3, V, torch.zeros_like(V)))
    assert kept.sum().item() == pytest.approx(0.9995)
    assert (threshold(V, 0.5) == 0).all()


def test_renormalize_divides_by_what_is_left() -> None:
    kept = threshold(V, 0.1, renormalize=True)
    torch.testing.assert_close(kept[0, 0, 0, :3], torch.tensor([4, 2, 1], dtype=torch.float64) / 7)
    assert (threshold(V, 0.9, renormalize=True) == 0).all()


def test_uniform_counts_only_allowed_keys() -> None:
    weights = torch.tensor([[0.4, 0.3, 0.3, 0.0], [0.4, 0.6, 0.0, 0.0]])[None, None]
    allowed = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]], dtype=torch.bool)[None, None]
    kept = threshold(weights, 1.0, allowed, "uniform")  # bars 1/3 and 1/2
    assert (kept > 0).tolist() == [[[[True, False, False, False], [False, True, False, False]]]]


@pytest.mark.parametrize("keys", [3, 7, 48])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_uniform_rows_equal_their_bar_and_fall(keys: int, dtype: torch.dtype) -> None:
    weights = torch.full((1, 1, 1, keys), 1 / keys, dtype=dtype)
    assert (threshold(weights, 1.0, relative_to="uniform") == 0).all()


def test_row_maximum() -> None:
    kept = threshold(V, 0.1, relative_to="row-maximum")  # the bar is 0.05
    assert (kept > 0).sum() == 4


def test_top_number_and_share() -> None:
    assert (keep_top(V, 3) > 0).sum() == 3
    assert (keep_top(V, 0.3) > 0).sum() == 3  # 2.4 of 8, rounded up
    assert torch.equal(keep_top(V, 1.0), V)
    assert torch.equal(keep_top(V, 100), V)
    assert (keep_top(V, 1) > 0).sum() == 1


def test_top_share_rounds_up_as_in_exact_arithmetic() -> None:
    """As floats 0.1 * 30 is above 3, and 0.29 * 100 is below 29: neither may change the number of keys."""
    keys = 120
    allowed = torch.ones(keys, keys, dtype=torch.bool).tril()[None, None]  # row i allows i + 1 keys
    for percent in range(1, 101):
        kept = (keep_top(torch.full((1, 1, keys, keys), 0.5), percent / 100, allowed) > 0).sum(-1)[0, 0]
        assert kept.tolist() == [-(-percent * (row + 1) // 100) for row in range(keys)]


def test_top_share_is_of_allowed_keys_and_ties_keep_the_earlier_key() -> None:
    allowed = torch.tensor([False, True, True, True, True, False])
    kept = keep_top(torch.full((1, 1, 1, 6), 0.25), 0.5, allowed)
    assert (kept > 0).tolist() == [[[[False, True, True, False, False, False]]]]


@pytest.mark.parametrize(("mass", "count"), [(0.4, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.9, 4), (0.9375, 4), (1.0, 8)])
def test_mass_keeps_the_fewest_that_reach_it(mass: float, count: int) -> None:
    assert (keep_mass(V, mass) > 0).sum() == count


@given(weights=rows(), low=bars, high=bars, relative=st.sampled_from(["one", "uniform", "row-maximum"]))
def test_zero_share_does_not_fall_with_the_bar(weights: Tensor, low: float, high: float, relative: str) -> None:
    low, high = sorted((low, high))
    zeros = [(threshold(weights, bar, relative_to=relative) == 0).sum() for bar in (low, high)]
    assert zeros[0] <= zeros[1]


@given(weights=rows(), bar=bars, relative=st.sampled_from(["one", "uniform", "row-maximum"]))
def test_threshold_is_idempotent(weights: Tensor, bar: float, relative: str) -> None:
    edit = Threshold(bar, relative_to=relative)
    once = edit.apply(weights)
    assert torch.equal(edit.apply(once), once)


@given(weights=rows(), top=st.integers(1, 12) | st.floats(0.01, 1))
def test_top_is_idempotent_and_keeps_the_largest(weights: Tensor, top: int | float) -> None:
    once = keep_top(weights, top)
    assert torch.equal(keep_top(once, top), once)
    dropped = weights.masked_fill(once > 0, 0).amax(-1)
    smallest_kept = once.masked_fill(once == 0, 2).amin(-1)
    assert (dropped <= smallest_kept).all()


@given(weights=rows(), mass=st.floats(0.01, 0.99))
def test_mass_is_idempotent_reached_and_no_larger_than_needed(weights: Tensor, mass: float) -> None:
    once = keep_mass(weights, mass)
    assert torch.equal(keep_mass(once, mass), once)
    kept = once.double().sum(-1)
    smallest = once.double().masked_fill(once == 0, 2).amin(-1)
    assert (kept >= mass - 1e-6).all()
    assert (kept - smallest < mass + 1e-6).all()


@given(weights=rows())
def test_bar_zero_is_the_identity(weights: Tensor) -> None:
    for relative in ("one", "uniform", "row-maximum"):
        assert torch.equal(Threshold(0.0, relative_to=relative).apply(weights), weights)


def test_gradient_passes_kept_weights_only() -> None:
    weights = V.clone().requires_grad_()
    threshold(weights, 0.1).sum().backward()
    assert weights.grad is not None
    assert torch.equal(weights.grad, (V > 0.1).double())
    assert torch.autograd.gradcheck(lambda x: threshold(x, 0.1, renormalize=True), weights)
    assert torch.autograd.gradcheck(lambda x: keep_top(x, 3, renormalize=True), weights)
    assert torch.autograd.gradcheck(lambda x: keep_mass(x, 0.8), weights)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one"),
        ({"bar": 0.1, "top": 3}, "bar and top"),
        ({"bar": -1.0}, "negative"),
        ({"bar": float("nan")}, "negative"),
        ({"bar": 1.0, "relative_to": "rows"}, "relative_to"),
        ({"top": 3, "relative_to": "uniform"}, "goes with bar"),
        ({"top": 0}, "whole number"),
        ({"top": 1.5}, "whole number"),
        ({"top": True}, "whole number"),
        ({"mass": 0.0}, "mass"),
        ({"mass": 1.1}, "mass"),
    ],
)
def test_wrong_parameters_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Threshold(**fields)
