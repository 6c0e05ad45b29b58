"""The compiled facts about rows against the plain versions in torch."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import attrim
from attrim.core.call import Call
from attrim.core.site import Site
from attrim.edits.quantize import Quantize
from attrim.edits.threshold import Threshold
from attrim.errors import DataError
from attrim.kernels import team
from attrim.kernels.described import BinTable, describe
from attrim.kernels.feed import BinBuffers
from attrim.stats import Extremes, Histogram, Majority, RowCurves, RowDistance, TokenSparsity
from attrim.stats.base import Stat
from attrim.stats.bins import BINS, bin_table, log_edges
from attrim.stats.distance import jensen_shannon
from attrim.stats.integers import to_fixed
from attrim.stats.moments import majority
from attrim.stats.rowfacts import plain_row_counts, row_shares
from calls import assert_equal

pytestmark = pytest.mark.skipif(not team.available(), reason="the compiled passes were not built")

SITE = Site("plain", "encoder", 0, 2)
FLOORS, BARS = (1e-8, 0.3), (0.0, 1e-8, 0.1)


def draw_rows(data: st.DataObject, negative: bool = True) -> tuple[Tensor, Tensor]:
    """Weights ``[H, Q, K]`` with ties, zeros and numbers on edges, and valid cells ``[H|1, Q, K]`` with gaps."""
    heads, queries, keys = (data.draw(st.integers(1, most)) for most in (3, 4, 60))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1 << 30)))
    weights = torch.softmax(5 * torch.randn(heads, queries, keys, generator=generator), -1)
    edges = log_edges(1e-8, 100) - 1e-8
    special = torch.cat([edges.float(), torch.tensor([0.0, 1.0, 1.5, 2.0**-149, 0.25, 0.25, 0.5, *BARS])])
    chosen = torch.randint(0, len(special), weights.shape, generator=generator)
    share = data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    weights = torch.where(torch.rand(weights.shape, generator=generator) < share, special[chosen], weights)
    if negative and data.draw(st.booleans()):
        weights = weights * torch.where(torch.rand(weights.shape, generator=generator) < 0.2, -1, 1)
    shape = data.draw(st.sampled_from([1, heads])), queries, keys
    kept = data.draw(st.sampled_from([0.0, 0.5, 0.95, 1.0]))
    valid = torch.rand(shape, generator=generator) < kept
    start, stop = torch.randint(0, keys + 1, (2, queries, 1), generator=generator).sort(0).values
    spans = (torch.arange(keys) >= start) & (torch.arange(keys) < stop)
    if data.draw(st.booleans()):
        valid = spans.expand(shape).contiguous()
    # What does not count may be anything.
    weights = torch.where(valid, weights, data.draw(st.sampled_from([0.0, 0.7, float("nan")])))
    return (weights.mT.contiguous().mT if data.draw(st.booleans()) else weights), valid


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_facts_of_rows(data: st.DataObject) -> None:
    weights, valid = draw_rows(data)
    clean = torch.where(valid, weights, 0.0)
    everywhere = valid.expand(weights.shape)
    facts = describe(weights, valid, SITE, bars=BARS, sums=True, majority=True, extremes=True)
    assert facts is not None
    assert torch.equal(facts.sizes, everywhere.sum(-1))
    small = torch.stack([((clean.abs() <= bar) & valid).sum(-1) for bar in BARS], -1)
    assert torch.equal(facts.small, small)
    fixed = to_fixed(clean)
    assert torch.equal(facts.sums, fixed.sum(-1))
    tokens, reached = majority(fixed)
    assert torch.equal(facts.majority, torch.where(reached, tokens, 0))
    expected = Extremes().gather(clean.double(), everywhere)[..., 0]
    torch.testing.assert_close(facts.extremes, expected, rtol=1e-12, atol=1e-15)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_histograms_of_rows(data: st.DataObject) -> None:
    weights, valid = draw_rows(data)
    clean = torch.where(valid, weights, 0.0)
    floor, bins = data.draw(st.sampled_from(FLOORS)), data.draw(st.sampled_from([1, 100, 700]))
    for dtype in (torch.float32, torch.float64):
        numbers = weights.to(dtype)
        table = bin_table(floor, bins, dtype)
        facts = describe(numbers, valid, SITE, table=table, counts=True, shares=True, medians=True, sums=True)
        assert facts is not None
        expected = plain_row_counts(clean.to(dtype), valid.expand(weights.shape), floor, bins)
        assert torch.equal(facts.counts, expected.int())
        assert torch.equal(facts.shares, row_shares(expected))
        middle = (2 * expected.cumsum(-1) < facts.sizes[..., None]).sum(-1)
        for head, own in enumerate(middle):
            real = own[facts.sizes[head] > 0]
            assert torch.equal(facts.medians[head], torch.bincount(real, minlength=bins))
        assert torch.equal(facts.sums, to_fixed(clean).sum(-1))
        # What an edit made of the rows: their histograms may differ a little, a lot, or not at all.
        edited = torch.where(numbers.abs() > data.draw(st.sampled_from([0.0, 0.1, 9.0])), numbers, 0.0)
        after = describe(edited, valid, SITE, table=table, counts=True, before=facts.counts)
        assert after is not None
        torch.testing.assert_close(after.distance, jensen_shannon(expected, after.counts), rtol=1e-9, atol=1e-9)
        assert (after.distance[(after.counts == facts.counts).all(-1)] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("floor", FLOORS)
@pytest.mark.parametrize("bins", [3, 100, 5000])
def test_numbers_beside_every_edge(dtype: torch.dtype, floor: float, bins: int) -> None:
    edges = log_edges(floor, bins)
    own = torch.tensor(BinTable.of(edges, floor, dtype).edges)[:-1]
    beside = [torch.nextafter(own, torch.zeros_like(own)), own, torch.nextafter(own, torch.ones_like(own))]
    weights = torch.cat([*beside, torch.tensor([0.0, 1.0, 2.0])]).to(dtype)[None, :, None]
    valid = torch.ones(weights.shape, dtype=torch.bool)
    facts = describe(weights, valid, SITE, table=bin_table(floor, bins, dtype), counts=True)
    assert facts is not None
    places = (torch.searchsorted(edges, weights.double() + floor, right=True) - 1).clamp(0, bins - 1)
    assert facts.counts is not None
    assert torch.equal(facts.counts.argmax(-1), places[..., 0])


@pytest.mark.parametrize("floor", [1e-10, *FLOORS])
@pytest.mark.parametrize("bins", [1, 3, 100])
def test_both_ways_to_find_a_bin_agree(floor: float, bins: int) -> None:
    table = bin_table(floor, bins, torch.float32)
    assert table.steps is not None
    own = torch.tensor(table.edges)[:-1]
    beside = [torch.nextafter(own, torch.zeros_like(own)), own, torch.nextafter(own, torch.ones_like(own))]
    spread = 2.0 ** (-60 * torch.rand(331, generator=torch.Generator().manual_seed(0)))
    weights = torch.cat([*beside, spread, torch.tensor([0.0, 1e-45, 1.0, 3e38])])[None, None]
    valid = torch.ones(weights.shape, dtype=torch.bool)
    ways = [describe(weights, valid, SITE, table=way, counts=True) for way in (table, replace(table, steps=None))]
    found = [facts.counts for facts in ways if facts is not None and facts.counts is not None]
    assert len(found) == 2
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0].long(), plain_row_counts(weights, valid, floor, bins))


def test_cells_with_several_edges_have_no_steps() -> None:
    table = bin_table(1e-3, 20_000, torch.float32)
    assert table.most > 1
    assert table.steps is None


EDITS = (
    Threshold(0.0),
    Threshold(0.1),
    Threshold(0.1, renormalize=True),
    Threshold(1.0, "uniform"),
    Threshold(0.5, "row-maximum"),
    Threshold(0.5, "row-maximum", renormalize=True),
    Quantize("linear-slog-clamped-midval", bits=3),
    Quantize("linear-slog-clamped-midval", bits=8, renormalize=True),
)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_rows_after_an_edit(data: st.DataObject) -> None:
    """Edits of rows are those of float64, also of weights on a bar or an edge and of negative ones."""
    weights, valid = draw_rows(data)
    floor, bins = data.draw(st.sampled_from(FLOORS)), data.draw(st.sampled_from([1, 100, 700]))
    call = Call.plain(weights[None], valid[None])
    operations = [edit.compiles(call) for edit in EDITS]
    single, double = (bin_table(floor, bins, dtype) for dtype in (torch.float32, torch.float64))
    facts = describe(weights, valid, SITE, table=single, edits=operations, wide_table=double)
    assert facts is not None
    everywhere = valid.expand(weights.shape)
    clean = torch.where(valid, weights, 0.0).double()
    before = plain_row_counts(clean, everywhere, floor, bins)
    for edit, found in zip(EDITS, facts.edited, strict=True):
        edited = torch.where(valid, edit.edit_weights(clean[None], call)[0], 0.0)
        counts = plain_row_counts(edited, everywhere, floor, bins)
        assert torch.equal(found.shares, row_shares(counts))
        assert (found.sums - to_fixed(edited).sum(-1)).abs().max() <= 1  # a mass may be rounded in another order
        torch.testing.assert_close(found.distance, jensen_shannon(before, counts), rtol=1e-9, atol=1e-9)


def test_bars_beside_a_weight() -> None:
    """A bar between two floats is neither of them: what is above it is decided as in float64."""
    weight = torch.tensor(0.001)
    beside = [torch.nextafter(weight, torch.tensor(end)) for end in (0.0, 1.0)]
    weights = torch.stack([beside[0], weight, beside[1], 1 - 3 * weight])[None, None]
    assert 0.001 < weight.item() < beside[1].item()  # the float is the one above the bar
    call = Call.plain(weights[None])
    single, double = (bin_table(1e-8, 100, dtype) for dtype in (torch.float32, torch.float64))
    for bar in (0.001, weight.item(), beside[1].item()):
        facts = describe(
            weights, call.valid[0], SITE, table=single, edits=[Threshold(bar).compiles(call)], wide_table=double
        )
        assert facts is not None
        assert facts.edited[0].sums.item() == to_fixed(Threshold(bar).edit_weights(weights[None].double(), call)).sum()


def both(stat: type[Stat], options: dict[str, object], weights: Tensor, mask: Tensor | None) -> list[Stat]:
    """A stat that watched by the compiled pass, and one that watched without."""
    stats = []
    for compiled in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not compiled:
                patch.setattr(team, "available", lambda: False)
            made = stat(**options)
            made.begin({"input_ids": torch.arange(weights.shape[2]).expand(len(weights), -1)})
            made.watch(weights, Call.plain(weights, mask))
            stats.append(made)
    return stats


OPTIONS = (
    (TokenSparsity, {"bars": BARS}),
    (Majority, {}),
    (RowCurves, {}),
    (RowCurves, {"floor": 1e-3, "bins": 7, "levels": 3}),
    (Histogram, {"rows": True}),
    (RowDistance, {"edits": ("threshold:0.1",)}),
    (RowDistance, {"edits": ("threshold:0.1,renormalize=true", "quantize:linear-slog-clamped-midval,bits=3")}),
    (RowDistance, {"edits": ("threshold:top=3", "threshold:0.1")}),
    (Extremes, {}),
)


@pytest.mark.parametrize("kind", ["full", "padded", "gaps", "edited"])
@pytest.mark.parametrize(("stat", "options"), OPTIONS)
def test_stats_watch_the_same_with_and_without_it(stat: type[Stat], options: dict[str, object], kind: str) -> None:
    generator = torch.Generator().manual_seed(3)
    weights = torch.softmax(3 * torch.randn(3, 2, 17, 17, generator=generator), -1)
    if kind == "edited":
        weights = torch.where(weights > 0.05, weights, 0.0) - 0.01 * (weights < 0.001)
    masks = {
        "padded": torch.arange(17) < torch.tensor([17, 9, 0])[:, None],
        "gaps": torch.rand(3, 1, 17, 17, generator=generator) < 0.6,
    }
    ours, plain = both(stat, options, weights, masks.get(kind))
    if stat in (Extremes, RowDistance):  # a float that is rounded to fixed point
        for name, tensor in ours.state()[0].items():
            torch.testing.assert_close(tensor.double(), plain.state()[0][name].double(), rtol=1e-9, atol=400)
    else:
        assert_equal(ours, plain)


@pytest.mark.parametrize("stat", [TokenSparsity, Majority, RowCurves, RowDistance, Extremes])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_refused(stat: type[Stat], bad: float) -> None:
    weights = torch.full((1, 1, 3, 20), 0.05)
    weights[0, 0, 1, 7] = bad
    made = stat()
    made.begin({"input_ids": torch.arange(3)[None]})
    with pytest.raises(DataError, match="NaN"):
        made.watch(weights, Call.plain(weights))


def test_numbers_too_large_for_its_fixed_point_are_left_to_torch() -> None:
    weights = torch.full((1, 1, 1, 3), 20_000.0)
    valid = torch.ones(1, 1, 3, dtype=torch.bool)
    assert describe(weights[0], valid, SITE, sums=True) is None
    assert describe(weights[0], valid, SITE, bars=[1.0]) is not None
    stat = Majority()
    stat.watch(weights, Call.plain(weights))
    assert stat.mean("tokens").item() == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes_are_left_to_torch(dtype: torch.dtype) -> None:
    weights = torch.full((1, 2, 3), 1 / 3, dtype=dtype)
    assert describe(weights, torch.ones(1, 2, 3, dtype=torch.bool), SITE, bars=[0.1]) is None
    stat = Majority()
    stat.watch(weights[None], Call.plain(weights[None]))
    assert stat.mean("tokens").item() == 2


def test_the_histogram_of_all_cells_is_added() -> None:
    weights = torch.rand(2, 5, 30)
    weights[..., 3] = 0.0
    valid = torch.ones(1, 5, 30, dtype=torch.bool).tril()
    into = BinBuffers((0, 1), torch.ones(2, BINS, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
    assert describe(weights, valid, SITE, into=into) is not None
    plain = Histogram()
    plain.watch(weights[None], Call.plain(weights[None], valid[None]))
    kept = plain.of("plain").tensors
    assert torch.equal(into.counts - 1, kept["counts"])
    assert torch.equal(into.below_uniform, kept["below_uniform"])


@pytest.mark.parametrize("threads", [1, 2])
def test_any_number_of_threads_gives_the_same(threads: int) -> None:
    weights = torch.softmax(torch.randn(5, 40, 40, generator=torch.Generator().manual_seed(1)), -1)
    valid = torch.ones(1, 40, 40, dtype=torch.bool).tril()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        curves = torch.zeros(5, 100, 51, dtype=torch.int64)
        describe(weights, valid, SITE, table=bin_table(1e-8, 100, torch.float32), curves=curves)
    finally:
        torch.set_num_threads(before)
    assert curves.sum((1, 2)).tolist() == [4000] * 5
    assert numpy.array_equal(curves.sum(-1), numpy.full((5, 100), 40))


def test_measuring_a_model_shows_stats_the_weights_of_the_fused_pass() -> None:
    """Every stat at once gives what it gives of the weights that the model returns."""
    model = attrim.load_model("tiny-bert")
    inputs = {"input_ids": torch.randint(5, 100, (3, 12)), "attention_mask": torch.ones(3, 12, dtype=torch.long)}
    inputs["attention_mask"][1, 7:] = 0
    measured = attrim.measure(model, [inputs], [Majority(), TokenSparsity(bars=(0.05,)), Histogram()])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(**inputs, output_attentions=True).attentions
    plain = TokenSparsity(bars=(0.05,))
    plain.begin(inputs)
    for layer, site in zip(weights, measured[TokenSparsity].sites, strict=True):
        plain.watch(layer, Call.plain(layer, inputs["attention_mask"].bool(), site))
    assert torch.equal(plain.totals()["weights"], measured[TokenSparsity].totals()["weights"])
    assert (plain.totals()["small"] - measured[TokenSparsity].totals()["small"]).abs().max() <= 1
