"""Edits inside of the fused pass against the edits' own moments, on every path of this machine.

The pass writes out the weights that it computed before any edit, so that both sides edit the very same numbers: nothing
depends on which side of a bar or an edge a rounding error falls.
"""

from __future__ import annotations

import dataclasses
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import attrim
from attrim.codebooks.codebook import Codebook
from attrim.core.call import Call
from attrim.core.plan import Plan
from attrim.edits.base import Edit
from attrim.errors import DataError
from attrim.kernels import attend as attending
from attrim.kernels import team
from attrim.kernels.attend import attend, fused
from attrim.kernels.blocks import Spans, find_edges
from attrim.kernels.feed import Feed
from attrim.kernels.operations import Operations, find_operations
from attrim.stats import Histogram, Mean, Moments
from calls import assert_equal, assert_moments, draw_call, draw_pieces, draw_rows, make_rows

pytestmark = pytest.mark.skipif(not team.available(), reason="the compiled passes were not built")

BEST = importlib.import_module("attrim.kernels._compiled").BEST_PATH if team.available() else 0
PATHS = team.PATHS[1 : BEST + 1]
Chosen = list[tuple[Edit, tuple[int, ...]]]

METHOD = "linear-slog-clamped-midval"
LIFTED = Codebook(torch.tensor([0.01, 0.1, 0.1, 0.5]), torch.tensor([0.003, 0.05, 0.2, 0.3, 0.9]), name="lifted")
"""Zero does not stay zero, and one code has no weights."""
MANY = attrim.Quantize(METHOD, bits=8)
"""More codes than are compared with one by one."""

EDITS = {
    "absolute bar": attrim.Threshold(0.02),
    "no bar": attrim.Threshold(0.0),
    "bar of uniform": attrim.Threshold(1.0, "uniform"),
    "bar of the maximum": attrim.Threshold(0.3, "row-maximum"),
    "bar above all": attrim.Threshold(1.0, "row-maximum", True),
    "absolute bar, renormalised": attrim.Threshold(0.02, renormalize=True),
    "bar of uniform, renormalised": attrim.Threshold(1.5, "uniform", True),
    "few codes": attrim.Quantize(METHOD, bits=3),
    "few codes, renormalised": attrim.Quantize(METHOD, bits=2, renormalize=True),
    "sixteen codes": attrim.Quantize(METHOD, bits=4),
    "many codes": MANY,
    "zero is lifted": attrim.Quantize(LIFTED),
    "zero is lifted, renormalised": attrim.Quantize(LIFTED, renormalize=True),
}


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(team, "path", lambda: team.PATHS.index(request.param))
    return request.param


def spans_of(call: Call, batch: int) -> Spans:
    edges = find_edges(call.allowed)
    assert edges is not None
    return Spans.of(edges, call.queries, batch)


def operations_of(edits: Chosen, call: Call) -> Operations:
    operations = find_operations(edits, call)
    assert operations is not None
    return operations


def renormalizes(edit: Edit) -> bool:
    return bool(getattr(edit, "renormalize", False))


def run_and_compare(
    query: Tensor, key: Tensor, value: Tensor, call: Call, scaling: float, edits: Chosen, some: tuple[int, ...]
) -> None:
    """Edited weights, outputs and stats against what the edits and stats make of the weights before them."""
    batch, heads = query.shape[:2]
    spans = spans_of(call, batch)
    before, after = torch.zeros(2, batch, heads, query.shape[2], key.shape[2])
    fused(query, key, value, scaling, spans, Feed.begin(call, spans, ()), weights=before)
    histogram, mean, moments = Histogram(), Mean(), Moments()
    feed = Feed.begin(call, spans, [(histogram, some), (mean, call.heads), (moments, call.heads)])
    output = fused(query, key, value, scaling, spans, feed, operations_of(edits, call), after)
    expected = Plan(edits).edited(before, call)
    if any(renormalizes(edit) for edit, _ in edits):
        torch.testing.assert_close(after, expected, rtol=3e-6, atol=1e-30)
    else:
        assert torch.equal(after, expected)
    mixed = (after.double() @ value.double().repeat_interleave(heads // value.shape[1], 1)).transpose(1, 2)
    torch.testing.assert_close(output.double(), mixed, atol=2e-6 * float(value.abs().amax()), rtol=1e-6)
    plain_histogram, plain_mean, plain_moments = Histogram(), Mean(), Moments()
    plain_histogram.watch(after[:, list(some)], call.for_heads(some))
    plain_mean.watch(after, call)
    plain_moments.watch(after, call)
    assert_equal(histogram, plain_histogram)
    assert_equal(mean, plain_mean)
    assert_moments(moments, plain_moments)


@pytest.mark.parametrize("kernel", PATHS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_edits_that_leave_equal_weights_or_less_than_a_half(kernel: str, data: st.DataObject) -> None:
    query, key, value, call = make_rows(draw_rows(data))
    edit = EDITS[data.draw(st.sampled_from(sorted(EDITS)))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "path", lambda: team.PATHS.index(kernel))
        run_and_compare(query, key, value, call, 1.0, [(edit, (0,))], (0,))


@pytest.mark.parametrize("keys", [5000, 40_000])
def test_the_entropy_of_long_rows(path: str, keys: int) -> None:
    """Sums of thousands of floats must not lose digits: of equal weights every step rounds the same way."""
    rows = [torch.full((keys,), 1 / keys), torch.rand(keys, generator=torch.Generator().manual_seed(0)) / keys]
    query, key, value, call = make_rows(rows)
    spans, moments, plain = spans_of(call, 1), Moments(), Moments()
    weights = torch.zeros(1, 1, len(rows), keys)
    operations = operations_of([(attrim.Threshold(0.0), (0,))], call)
    fused(query, key, value, 1.0, spans, Feed.begin(call, spans, [(moments, (0,))]), operations, weights)
    plain.watch(weights, call)
    torch.testing.assert_close(moments.entropy(), plain.entropy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kernel", PATHS)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_edits_of_any_shape_mask_and_layout(kernel: str, data: st.DataObject) -> None:
    query, key, value, call, scaling = draw_call(data)
    chosen = [
        (EDITS[name], tuple(sorted(data.draw(st.sets(st.sampled_from(call.heads), min_size=1)))))
        for name in data.draw(st.lists(st.sampled_from(sorted(EDITS)), min_size=1, max_size=3))
    ]
    # What comes after a division is compared with a bar or an edge, and there rounding could decide.
    while any(renormalizes(edit) for edit, _ in chosen[:-1]):
        chosen.pop()
    some = tuple(sorted(data.draw(st.sets(st.sampled_from(call.heads), min_size=1))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "path", lambda: team.PATHS.index(kernel))
        patch.setattr(attending, "_pieces", draw_pieces(data))
        run_and_compare(query, key, value, call, scaling, chosen, some)


@pytest.mark.parametrize("name", EDITS)
def test_lengths_of_real_batches(path: str, name: str) -> None:
    torch.manual_seed(5)
    query, key, value = torch.randn(3, 2, 3, 333, 32)
    causal = torch.ones(1, 1, 333, 333, dtype=torch.bool).tril()
    for allowed in (None, causal):
        call = Call.plain(query.new_empty(2, 3, 333, 333), allowed)
        run_and_compare(query, key, value, call, 0.3, [(EDITS[name], (0, 2))], (0, 1))


def test_a_weight_equal_to_a_bar_falls(path: str) -> None:
    """Equal scores give weights of exactly 1/64 and a bar of exactly as much."""
    call = Call.plain(torch.empty(1, 1, 2, 64))
    tensors = torch.zeros(1, 1, 2, 4), torch.randn(1, 1, 64, 4), torch.ones(1, 1, 64, 4)
    for edit, left in (
        (attrim.Threshold(1 / 64), 0),
        (attrim.Threshold(1.0, "uniform"), 0),
        (attrim.Threshold(1.0, "row-maximum"), 0),
        (attrim.Threshold(0.99 / 64), 1),
        (attrim.Threshold(0.99, "uniform"), 1),
        (attrim.Threshold(0.99, "row-maximum"), 1),
    ):
        output = attend(*tensors, call, find_edges(call.allowed), 1.0, edits=[(edit, (0,))])
        assert output is not None
        assert (output == left).all()


def test_edits_alone_need_no_stat_and_nothing_to_do_is_refused() -> None:
    query, key, value = torch.randn(3, 1, 2, 20, 8)
    call = Call.plain(query.new_empty(1, 2, 20, 20))
    edges = find_edges(call.allowed)
    assert attend(query, key, value, call, edges, None, edits=[(attrim.Threshold(0.1), (0,))]) is not None
    assert attend(query, key, value, call, edges, None) is None


@pytest.mark.parametrize(
    "edit",
    [
        attrim.Threshold(top=3),
        attrim.Threshold(mass=0.5),
        attrim.Uniform(),
        attrim.Quantize("bin-majority", mass=0.5, bits=3),
        attrim.Quantize(METHOD, bits=3, as_coded=True),
        attrim.Quantize(Codebook(torch.tensor([0.5]), torch.tensor([0.0, 1.5]))),
        attrim.Quantize(Codebook(torch.tensor([0.5]), torch.tensor([-0.0, 1.0]))),
        attrim.Quantize(Codebook(torch.tensor([0.5]), torch.tensor([0.0, 1.0]), tie="lower")),
    ],
    ids=str,
)
def test_what_is_no_row_operation_is_left_to_the_reference(edit: Edit) -> None:
    query, key, value = torch.randn(3, 1, 2, 20, 8)
    call = Call.plain(query.new_empty(1, 2, 20, 20))
    both = [(attrim.Threshold(0.1), (0,)), (edit, (0, 1))]
    assert attend(query, key, value, call, find_edges(call.allowed), None, edits=both) is None


def test_products_of_torch_edit_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "path", lambda: team.PATHS.index("torch"))
    query, key, value = torch.randn(3, 1, 2, 20, 8)
    call = Call.plain(query.new_empty(1, 2, 20, 20))
    edits = [(attrim.Threshold(0.1), (0, 1))]
    assert attend(query, key, value, call, find_edges(call.allowed), None, [(Histogram(), (0, 1))], edits) is None


def test_a_subclass_that_edits_in_its_own_way_is_not_compiled() -> None:
    @dataclasses.dataclass(frozen=True)
    class Doubled(attrim.Threshold):
        def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
            return 2 * super().edit_weights(weights, call)

    call = Call.plain(torch.empty(1, 1, 2, 2))
    assert attrim.Threshold(0.1).compiles(call) is not None
    assert Doubled(0.1).compiles(call) is None
    assert not Doubled(0.1).overrides("compiles")


def test_what_is_not_a_number(path: str) -> None:
    """A bar drops it, a codebook and stats refuse it: as the reference does."""
    query, key, value = torch.randn(3, 1, 2, 20, 8)
    query[0, 1, 3] = torch.nan
    call = Call.plain(query.new_empty(1, 2, 20, 20))
    edges = find_edges(call.allowed)
    bar, codebook = attrim.Threshold(0.01), attrim.Quantize(METHOD, bits=3)
    weights = torch.full((1, 2, 20, 20), 0.05)
    weights[0, 1, 3] = torch.nan
    assert (Plan([(bar, (0, 1))]).edited(weights, call)[0, 1, 3] == 0).all()
    dropped = attend(query, key, value, call, edges, None, [(Histogram(), (0, 1))], [(bar, (0, 1))])
    assert dropped is not None
    assert (dropped[0, 3, 1] == 0).all()
    chain = [(bar, (0, 1)), (codebook, (0, 1))]
    assert attend(query, key, value, call, edges, None, edits=chain) is not None
    with pytest.raises(DataError, match="NaN"):
        attend(query, key, value, call, edges, None, edits=[(codebook, (0, 1))])
    with pytest.raises(DataError, match="NaN"):
        attend(query, key, value, call, edges, None, [(Histogram(), (0, 1))], [(bar, (0,))])
    untouched = attend(query, key, value, call, edges, None, [(Histogram(), (0,))], [(bar, (0,))])
    assert untouched is not None
    assert untouched[0, 3, 1].isnan().all()
