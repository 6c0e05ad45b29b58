from __future__ import annotations

import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attrim.errors import DataError, ParameterError
from attrim.stats import Histogram
from attrim.stats.bins import BINS, KNOTS, ONE, UNDERFLOW, ZERO, bin_numbers, log_edges

# The row V of spec/sparsity-quantization.md 5.4.
ROW = [0.5, 0.25, 0.125, 0.0625, 0.05, 0.01, 0.002, 0.0005]


def of(values: list[float] | torch.Tensor, **options: object) -> Histogram:
    histogram = Histogram(**options)  # type: ignore[arg-type]
    histogram.update(torch.as_tensor(values, dtype=torch.float32).reshape(1, 1, 1, -1))
    return histogram


def test_special_bins_are_exact() -> None:
    tiny = 2.0**-149
    values = torch.tensor([0.0, -0.0, tiny, 2.0**-126, 1.0, 1.5, math.nextafter(1.0, 0.0)])
    numbers = bin_numbers(values).tolist()
    assert numbers == [ZERO, ZERO, UNDERFLOW, 2, ONE, ONE, ONE]
    below_one = torch.tensor([1.0]).nextafter(torch.tensor([0.0]))
    assert bin_numbers(below_one).item() == BINS - 2


@given(st.floats(min_value=2.0**-126, max_value=1.0, exclude_max=True, width=32))
def test_every_normal_value_lies_between_the_edges_of_its_bin(value: float) -> None:
    number = int(bin_numbers(torch.tensor([value])))
    assert KNOTS[number - 1] <= value < KNOTS[number]
    assert KNOTS[number] / KNOTS[number - 1] <= 1 + 1 / 32


def test_counts_zeros_ones_and_total() -> None:
    histogram = of([0.0, 0.0, 1.0, 0.25, 1e-30])
    assert histogram.total.tolist() == [[5]]
    assert histogram.zeros.tolist() == [[2]]
    assert histogram.ones.tolist() == [[1]]
    assert histogram.sparsity(0.0).item() == pytest.approx(0.4)
    assert histogram.sparsity(1.0).item() == 1.0
    assert histogram.sparsity(-1.0).item() == 0.0


@pytest.mark.parametrize("threshold", [1e-6, 1e-4, 1e-3, 0.00777, 1e-2, 0.3])
def test_sparsity_at_any_threshold_is_right_to_a_fraction_of_a_bin(threshold: float) -> None:
    weights = torch.softmax(3 * torch.randn(2, 3, 200, 200), -1)
    histogram = Histogram()
    histogram.update(weights)
    exact = (weights <= threshold).double().mean((0, 2, 3))
    torch.testing.assert_close(histogram.sparsity(threshold)[0], exact, atol=1e-3, rtol=0)


def test_quantile_inverts_sparsity() -> None:
    weights = torch.softmax(3 * torch.randn(1, 2, 100, 100), -1)
    histogram = Histogram()
    histogram.update(weights)
    for share in (0.01, 0.5, 0.99):
        exact = torch.quantile(weights.double().flatten(2)[0], share, dim=-1)
        torch.testing.assert_close(histogram.quantile(share)[0], exact, atol=0, rtol=0.03)
    assert of([0.0, 0.0, 0.0, 1.0]).quantile(0.5).item() == 0.0
    assert of([0.0, 1.0, 1.0, 1.0]).quantile(0.5).item() == 1.0


@pytest.mark.parametrize("floor", [1e-8, 1e-10, 1e-20])
def test_counts_on_the_grids_of_the_paper(floor: float) -> None:
    weights = torch.softmax(4 * torch.randn(1, 1, 300, 300), -1)
    weights[0, 0, 0, :7] = 0.0
    histogram = Histogram()
    histogram.update(weights)
    edges = log_edges(floor, 100)
    exact, _ = numpy.histogram(weights.double().numpy() + floor, edges.numpy())
    found = histogram.counts(edges - floor)[0, 0]
    assert found[0].item() >= 7
    # One value a + floor may round past 1, which numpy leaves out; the counts are interpolated inside narrow bins.
    numpy.testing.assert_allclose(found.numpy(), exact, atol=0.004 * weights.numel())
    assert found.sum().item() == pytest.approx(weights.numel(), abs=1)


def test_counts_at_zero_and_one_follow_numpy() -> None:
    values = [0.0, 0.0, 0.3, 0.75, 1.0]
    edges = [0.0, 0.5, 1.0]
    assert of(values).counts(edges)[0, 0].tolist() == numpy.histogram(values, edges)[0].tolist()
    assert of(values).counts([1.0, 2.0])[0, 0].tolist() == [1.0]


def test_decades_are_shares() -> None:
    decades = of([1e-12, 2e-4, 3e-3, 0.2, 1.0]).decades()[0, 0]
    assert decades.tolist() == pytest.approx([0.2, 0, 0, 0, 0, 0, 0, 0.2, 0.2, 0, 0.4], abs=1e-6)


def test_share_below_uniform_uses_the_allowed_keys_of_each_row() -> None:
    weights = torch.tensor([[0.1, 0.9, 0.0, 0.0], [0.4, 0.3, 0.3, 0.0]]).reshape(1, 1, 2, 4)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]], dtype=torch.bool).reshape(1, 1, 2, 4)
    histogram = Histogram()
    histogram.update(weights, mask)
    assert histogram.total.item() == 5
    assert histogram.share_below_uniform().item() == pytest.approx(3 / 5)  # 0.1 < 1/2 and 0.3, 0.3 < 1/3


def test_golden_bins_and_median_of_the_row() -> None:
    histogram = of(ROW, rows=True)
    row = histogram.row_histogram()[0, 0]
    assert row.nonzero().flatten().tolist() == [58, 66, 75, 83, 84, 88, 92, 96]
    torch.testing.assert_close(row.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert histogram.median_bins()[0, 0].nonzero().item() == 83
    assert histogram.median_bin().item() == 83
    assert histogram.diversity().item() == 0


def test_short_and_long_rows_weigh_the_same() -> None:
    histogram = Histogram(rows=True)
    histogram.update(torch.full((1, 1, 1, 2), 0.5))
    histogram.update(torch.full((1, 1, 1, 100), 0.01))
    occupied = histogram.row_histogram()[0, 0]
    assert occupied[occupied > 0].tolist() == pytest.approx([0.5, 0.5])
    medians = [75, 96]
    assert histogram.median_bin().item() == pytest.approx(numpy.mean(medians))
    assert histogram.diversity().item() == pytest.approx(numpy.std(medians))


def test_row_deciles() -> None:
    rows = torch.tensor([[0.0] * 10, [0.0] * 5 + [0.2] * 5, [0.1] * 10]).reshape(1, 1, 3, 10)
    histogram = Histogram(rows=True)
    histogram.update(rows)
    expected = torch.zeros(10, dtype=torch.float64)
    expected[[0, 5, 9]] = 1 / 3
    torch.testing.assert_close(histogram.row_deciles()[0, 0], expected)


def test_row_facts_need_rows() -> None:
    with pytest.raises(ParameterError, match="rows=True"):
        of(ROW).diversity()


@pytest.mark.parametrize("options", [{"floor": 0.0}, {"bins": 0}])
def test_impossible_grids_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        Histogram(**options)  # type: ignore[arg-type]


def test_nan_is_refused_inside_and_ignored_outside_the_valid_cells() -> None:
    weights = torch.tensor([0.5, 0.5, float("nan")]).reshape(1, 1, 1, 3)
    histogram = Histogram()
    histogram.update(weights, torch.tensor([[True, True, False]]).reshape(1, 1, 1, 3))
    assert histogram.total.item() == 2
    with pytest.raises(DataError, match="NaN"):
        histogram.update(weights)


def test_nothing_watched_is_an_error() -> None:
    with pytest.raises(DataError, match="watched nothing"):
        _ = Histogram().total


def test_negative_weights_are_not_zeros() -> None:
    """``gate:-1`` turns the signs; what is zero stays what is zero."""
    weights = torch.tensor([0.0, 0.25, 0.75, 0.0, 1e-6, 1.0]).view(1, 1, 2, 3)
    plain, turned = Histogram(rows=True), Histogram(rows=True)
    plain.update(weights)
    turned.update(-weights)
    assert turned.zeros.tolist() == [[2]]
    for name, tensor in plain.records["plain"].tensors.items():
        assert torch.equal(turned.records["plain"].tensors[name], tensor), name
