"""What every edit must keep, whatever it does: each form of each edit goes through all of these."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

from attrim.core.call import Call
from attrim.core.plan import Plan
from attrim.core.site import Select, Site
from attrim.edits import EDITS, Edit, load_edits, save_edits
from methods import HIDDEN_METHODS, METHODS

every_method = pytest.mark.parametrize("edit", METHODS)
LENGTHS = (7, 4, 1)
HEADS = 3


def softmax_of(scores: Tensor, allowed: Tensor) -> Tensor:
    return torch.softmax(scores.masked_fill(~allowed, float("-inf")), -1).nan_to_num(0.0)


def takes_scores(edit: Edit) -> bool:
    return edit.overrides("edit_scores") or edit.overrides("normalise")


def start(edit: Edit, scores: Tensor, allowed: Tensor) -> Tensor:
    """What the edit works on: scores, or the weights that they give."""
    return scores if takes_scores(edit) else softmax_of(scores, allowed)


def causal(length: int) -> Tensor:
    return torch.ones(1, 1, length, length, dtype=torch.bool).tril()


def same(one: Edit, other: Edit) -> bool:
    """Whether two edits have equal fields, also where equality of the class is that of objects."""
    if type(one) is not type(other):
        return False
    pairs = [(getattr(one, item.name), getattr(other, item.name)) for item in dataclasses.fields(one)]
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def test_every_registered_edit_is_in_the_list() -> None:
    assert {parameter.values[0].registered_name for parameter in METHODS + HIDDEN_METHODS} == set(EDITS)


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_shape_dtype_and_no_nan(edit: Edit, dtype: torch.dtype) -> None:
    allowed = causal(7).expand(2, 1, 7, 7).clone()
    allowed[1, :, 3] = False  # a row with nothing allowed
    before = start(edit, torch.randn(2, HEADS, 7, 7), allowed).to(dtype)
    copy = before.clone()
    after = edit.apply(before, allowed)
    assert after.shape == before.shape
    assert after.dtype == dtype
    assert torch.isfinite(after).all()
    assert (after[1, :, 3] == 0).all()
    assert (after.masked_select(~allowed) == 0).all()
    assert torch.equal(before, copy), "the edit changed its input"


@every_method
def test_it_changes_something(edit: Edit) -> None:
    scores = torch.randn(2, HEADS, 7, 7)
    allowed = torch.ones(1, 1, 7, 7, dtype=torch.bool)
    assert not torch.equal(edit.apply(start(edit, scores, allowed)), softmax_of(scores, allowed))


@every_method
@pytest.mark.parametrize(
    ("dtype", "tiny"), [(torch.float32, 1e-40), (torch.float16, 6e-8), (torch.bfloat16, 1e-40)], ids=str
)
def test_extreme_rows_stay_finite_and_forbidden_cells_stay_zero(edit: Edit, dtype: torch.dtype, tiny: float) -> None:
    """Rows with one certain key, with denormal numbers, all zero, and junk on forbidden cells."""
    rows = [[1.0, 0, 0, 0], [tiny, 2 * tiny, 0, 0], [0, 0, 0, 0], [0.2, 0.2, 0.2, 0.4]]
    weights = torch.tensor(rows, dtype=dtype)[None, None]
    allowed = torch.tensor([True, True, True, False]).expand(1, 1, 4, 4)
    after = edit.apply(weights.requires_grad_(), allowed)
    assert torch.isfinite(after).all()
    assert (after[..., 3] == 0).all()
    if after.requires_grad:
        (gradient,) = torch.autograd.grad(after[..., 0].sum(), weights)
        assert torch.isfinite(gradient).all()


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_gradient_is_finite(edit: Edit, dtype: torch.dtype) -> None:
    """Also where a row has nothing allowed; edits that replace the weights pass no gradient to them."""
    allowed = causal(7).clone()
    allowed[:, :, 3] = False
    scores = torch.randn(2, HEADS, 7, 7, dtype=dtype, requires_grad=True)
    call = Call.plain(scores, allowed)
    weights = Plan([(edit, tuple(range(HEADS)))]).weights(scores.masked_fill(~allowed, -1e4), call)
    loss = weights.square().sum() + 0 * scores.sum()
    (gradient,) = torch.autograd.grad(loss, scores)
    assert torch.isfinite(gradient).all()
    assert (gradient.masked_select(~allowed) == 0).all()


def padded_call(side: str) -> Call:
    """Three texts of 7, 4 and 1 tokens padded to 7, in a causal self-attention."""
    real = torch.stack([torch.arange(7) < length for length in LENGTHS])
    lead = torch.zeros(3, dtype=torch.int64)
    if side == "left":
        real, lead = real.flip(-1), torch.tensor([7 - length for length in LENGTHS])
    allowed = causal(7) & real[:, None, None, :]
    site = Site("plain", "encoder", 0, HEADS)
    return Call(site, allowed, real, real, tuple(range(HEADS)), query_lead=lead, key_lead=lead)


@every_method
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_padded_batch_equals_its_single_texts(edit: Edit, side: str) -> None:
    call = padded_call(side)
    scores = torch.randn(3, HEADS, 7, 7)
    plan = Plan([(edit, call.heads)])
    batch = plan.weights(scores.masked_fill(~call.allowed, -1e9), call)
    for number, length in enumerate(LENGTHS):
        block = slice(0, length) if side == "right" else slice(7 - length, 7)
        alone_scores = scores[number : number + 1, :, block, block].masked_fill(~causal(length), -1e9)
        alone = plan.weights(alone_scores, Call.plain(alone_scores, causal(length)))
        torch.testing.assert_close(batch[number : number + 1, :, block, block], alone)


@every_method
def test_a_cached_step_equals_the_row_of_the_whole(edit: Edit) -> None:
    scores = torch.randn(1, HEADS, 6, 6).masked_fill(~causal(6), -1e9)
    plan = Plan([(edit, tuple(range(HEADS)))])
    whole = plan.weights(scores, Call.plain(scores, causal(6)))
    for step in range(6):
        row = scores[:, :, step : step + 1, : step + 1]
        call = dataclasses.replace(Call.plain(row), position=step)
        torch.testing.assert_close(plan.weights(row, call), whole[:, :, step : step + 1, : step + 1])


@every_method
def test_a_selection_leaves_other_heads_alone(edit: Edit) -> None:
    scores = torch.randn(2, 4, 5, 5)
    allowed = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    before = start(edit, scores, allowed)
    untouched = before if not takes_scores(edit) else torch.softmax(scores, -1)
    everywhere = edit.apply(before)
    for heads in (list(chosen) for size in range(1, 5) for chosen in itertools.combinations(range(4), size)):
        partly = dataclasses.replace(edit, select=Select(heads=heads)).apply(before)
        for head in range(4):
            assert torch.equal(partly[:, head], everywhere[:, head] if head in heads else untouched[:, head])


@every_method
def test_saved_and_loaded_it_is_the_same(edit: Edit, tmp_path) -> None:
    chosen = dataclasses.replace(edit, select=Select(roles="encoder", layers=[0, -1], heads=[(0, 1), ("plain", 0)]))
    loaded = load_edits(save_edits([edit, chosen], tmp_path))
    assert [same(*pair) for pair in zip(loaded, [edit.to_save(), chosen.to_save()], strict=True)] == [True, True]
    tensor = start(edit, torch.randn(2, HEADS, 7, 7), torch.ones(1, 1, 7, 7, dtype=torch.bool))
    assert torch.equal(loaded[1].apply(tensor), chosen.apply(tensor))


@every_method
def test_equality_and_hash_do_not_break_on_tensors(edit: Edit) -> None:
    other = dataclasses.replace(edit, select=Select(heads=0))
    assert edit == edit
    assert edit != other
    assert len({edit, other}) == 2
