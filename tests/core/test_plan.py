"""The order of moments, the guards, and the reduction of calls."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attrim.core.call import Call
from attrim.core.plan import Plan, guarded_softmax
from attrim.edits.base import Edit
from attrim.errors import ShapeError
from watching import Keep, Scale


@dataclass(frozen=True)
class Drop(Edit):
    """Removes some keys before the softmax."""

    keys: tuple[int, ...] = ()

    def edit_scores(self, scores: Tensor, call: Call) -> Tensor:
        gone = torch.zeros(scores.shape[-1], dtype=torch.bool)
        gone[list(self.keys)] = True
        return scores.masked_fill(gone, float("-inf"))


@dataclass(frozen=True)
class Squares(Edit):
    """Another way of normalising: squares of the positive scores."""

    def normalise(self, scores: Tensor, call: Call) -> Tensor:
        squares = scores.clamp(min=0).square()
        return squares / squares.sum(-1, keepdim=True).clamp(min=1e-9)


def plan(*edits: Edit, heads: tuple[int, ...] = (0, 1)) -> Plan:
    return Plan([(edit, heads) for edit in edits])


def test_a_removed_cell_leaves_the_rest_normalised() -> None:
    scores = torch.tensor([1.0, 2.0, 3.0, 0.0]).expand(1, 2, 1, 4)
    mask = torch.tensor([True, True, True, False]).expand(1, 1, 1, 4)
    weights = plan(Drop((0,))).weights(scores, Call.plain(scores, mask))
    torch.testing.assert_close(weights[0, 0, 0], torch.tensor([0, 0.268941, 0.731059, 0]), atol=1e-6, rtol=0)


def test_a_row_with_nothing_left_is_zero_and_so_is_its_gradient() -> None:
    scores = torch.tensor([1.0, 2.0, 3.0, 0.0]).repeat(1, 2, 1, 1).requires_grad_()
    mask = torch.tensor([True, True, True, False]).expand(1, 1, 1, 4)
    weights = plan(Drop((0, 1, 2))).weights(scores, Call.plain(scores, mask))
    assert not weights.any()
    weights.sum().backward()
    assert scores.grad is not None
    assert not scores.grad.any()


def test_structural_masks_win_over_any_edit() -> None:
    weights = torch.full((1, 2, 3, 3), 1 / 3)
    causal = torch.ones(3, 3, dtype=torch.bool).tril()[None, None]
    assert not plan(Scale(1.0, plus=5.0)).edited(weights, Call.plain(weights, causal)).triu(1).any()


def test_another_normaliser_on_some_heads() -> None:
    scores = torch.tensor([3.0, 1.0, -1.0]).expand(1, 2, 1, 3)
    weights = plan(Squares(), heads=(1,)).weights(scores, Call.plain(scores))
    torch.testing.assert_close(weights[0, 0, 0], torch.softmax(scores[0, 0, 0], -1))
    torch.testing.assert_close(weights[0, 1, 0], torch.tensor([0.9, 0.1, 0.0]))


def test_stats_see_their_heads_after_all_edits() -> None:
    weights, keep = torch.rand(2, 2, 3, 3), Keep()
    both = Plan([(Scale(0.5), (0, 1))], [(keep, (1,))])
    both.edited(weights, Call.plain(weights))
    torch.testing.assert_close(keep.tensors["plain"], weights[:, 1:] * 0.5)
    assert keep.calls["plain"].heads == (1,)


@given(st.lists(st.lists(st.floats(-50, 50) | st.just(float("-inf")), min_size=3, max_size=3), min_size=1, max_size=4))
def test_guarded_softmax_never_gives_nan(rows: list[list[float]]) -> None:
    scores = torch.tensor(rows, requires_grad=True)
    weights = guarded_softmax(scores)
    sums = weights.sum(-1)
    empty = torch.isneginf(scores).all(-1)
    torch.testing.assert_close(sums, (~empty).float())
    weights.square().sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_gradients_pass_through_a_plan() -> None:
    scores = torch.randn(1, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    edits = plan(Drop((1,)), Scale(0.7), heads=(0,))
    assert torch.autograd.gradcheck(lambda tensor: edits.weights(tensor, Call.plain(tensor)), scores)


def test_calls_are_reduced_by_head_and_example() -> None:
    weights = torch.rand(2, 3, 4, 4)
    mask = torch.rand(2, 3, 4, 4) > 0.3
    call = Call.plain(weights, mask)
    assert torch.equal(call.for_heads([2, 0]).allowed, mask[:, [2, 0]])
    assert call.for_heads([2, 0]).heads == (2, 0)
    assert torch.equal(call.for_example(1).allowed, mask[1:])


def test_positions_do_not_count_leading_padding() -> None:
    weights = torch.rand(2, 1, 2, 4)
    call = Call.plain(weights)
    shifted = Call(
        call.site, call.allowed, call.queries, call.keys, (0,), 2, 0, torch.tensor([0, 1]), torch.tensor([0, 1])
    )
    assert shifted.query_slots().tolist() == [[2, 3], [1, 2]]
    assert shifted.key_slots().tolist() == [[0, 1, 2, 3], [-1, 0, 1, 2]]


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 1, 5, 5)])
def test_a_mask_that_does_not_fit_is_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="does not fit weights of shape"):
        Call.plain(torch.rand(2, 2, 4, 4), torch.ones(shape, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"\[B, H, Q, K\]"):
        Call.plain(torch.rand(4, 4))
