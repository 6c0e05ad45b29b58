"""The level tables and the V, W and X tables of the paper's quantisers."""

from __future__ import annotations

import statistics

import pytest
import torch
from torch import Tensor

from attrim.codebooks import METHODS, make_codebook
from attrim.edits.quantize import Quantize
from codebooks.tables import FITTED, FIXED, GROUPED, LEVELS, V_TABLE, W_TABLE, X_TABLE, V, W, X, row

DTYPES = [torch.float64, torch.float32]


def close(found: Tensor, expected: list[float]) -> None:
    """Six digits, as the tables have."""
    torch.testing.assert_close(found.double().flatten(), torch.tensor(expected).double(), rtol=5e-6, atol=0)


def quantised(edit: Quantize, numbers: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    return edit.apply(torch.tensor(numbers, dtype=dtype).view(1, 1, 1, -1)).flatten()


def test_every_method_is_known() -> None:
    assert set(METHODS) == {*FIXED, *GROUPED, *FITTED}


@pytest.mark.parametrize(("method", "bits"), LEVELS)
def test_levels(method: str, bits: int) -> None:
    close(make_codebook(method, bits).values, LEVELS[method, bits])


@pytest.mark.parametrize(("method", "bits"), V_TABLE)
def test_v_as_released(method: str, bits: int) -> None:
    close(quantised(Quantize(method, bits, as_coded=True), V), V_TABLE[method, bits])


@pytest.mark.parametrize(("method", "bits"), W_TABLE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_w_as_released(method: str, bits: int, dtype: torch.dtype) -> None:
    close(quantised(Quantize(method, bits, as_coded=True), W, dtype), W_TABLE[method, bits])


@pytest.mark.parametrize("method", X_TABLE)
def test_x_as_released(method: str) -> None:
    close(quantised(Quantize(method, 2, as_coded=True), X), X_TABLE[method])


@pytest.mark.parametrize(
    "table", [(V, V_TABLE, torch.float64), (W, W_TABLE, torch.float64), (W, W_TABLE, torch.float32)]
)
@pytest.mark.parametrize("bits", [2, 3])
@pytest.mark.parametrize("method", [method for method in FIXED if method != "power-of-two"])
def test_codebooks_give_the_same_tables(method: str, bits: int, table) -> None:
    """Fixed methods differ from the released code only at ties (there is none in W) and at 1."""
    numbers, expected, dtype = table
    close(quantised(Quantize(method, bits), numbers, dtype), expected[method, bits])


def test_ties_go_up_in_float64_whatever_the_grid() -> None:
    """0.01 is an edge of two methods at 2 bits; in float32 the number is a little less than 0.01, so below the edge."""
    for bits, below in ((2, 0.00316228), (4, 0.00794328)):
        book = make_codebook("linear-slog-clamped-midval", bits)
        assert 0.01 in book.edges.tolist()
        up = float(book.apply(torch.tensor([0.01], dtype=torch.float64)))
        assert up > 0.01
        assert float(book.apply(torch.tensor([0.01]))) == pytest.approx(below, rel=1e-5)
    assert 0.5 in make_codebook("linear-slinear", 3).edges.tolist()


@pytest.mark.parametrize("method", [*FIXED, *GROUPED])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_x_corrected(method: str, bits: int, dtype: torch.dtype) -> None:
    """Nothing above 1, the top weight not zero, zero stays zero."""
    found = quantised(Quantize(method, bits), X, dtype)
    assert (found <= 1).all()
    assert found[0] > 0
    assert found[-1] == 0


def test_released_oddities_at_higher_bits() -> None:
    close(quantised(Quantize("linear-slinear-midval", 3, as_coded=True), [1.0]), [1.0625])
    close(quantised(Quantize("linear-slog-midval", 3, as_coded=True), [1.0]), [4.21697])
    # The released code computes 2^63 with 64 bits; the cut below is then counted twice.
    close(quantised(Quantize("uniform-slog-clamped-mean", 6, as_coded=True), V)[3:4], [0.125])
    close(quantised(Quantize("uniform-slog-clamped-mean", 5, as_coded=True), V)[3:4], [0.0625])
    # A weight on the first edge, where the division rounds down.
    close(quantised(Quantize("linear-slinear-clamped-midval", 2, as_coded=True), [0.25075]), [0.125875])
    # 3.5 steps in float64, a little less in float32.
    close(quantised(Quantize("linear-slinear", 3, as_coded=True), [0.5], torch.float32), [0.428571])
    close(quantised(Quantize("linear-slinear", 4, as_coded=True), [0.5], torch.float32), [0.466667])
    close(quantised(Quantize("linear-slinear", 4, as_coded=True), [0.5]), [0.533333])


def test_released_levels_lift_zeros_only_where_they_are_fewer_than_half() -> None:
    edit = Quantize("uniform-slog-mean", 2, as_coded=True)
    close(quantised(edit, [0.5, 0.3, 0.15, 0.05, *[0.0] * 6]), [0.15, 0.15, 0.15, 0.025, *[0.0] * 6])
    close(quantised(edit, [0.5, 0.3, 0.15, 0.05, 0.0]), [0.15, 0.15, 0.15, 0.025, 0.025])


def test_released_levels_by_population_are_exact_in_float64() -> None:
    ranked = sorted(number / 7 for number in W if number / 7 > 1e-3)
    numbers = [number / 7 for number in W]
    step = len(ranked) // 3
    lowest = {
        "uniform-slinear-clamped-mean": (1e-3 + ranked[step]) / 2,
        "uniform-slog-clamped-mean": statistics.fmean(ranked[: len(ranked) // 2]),
        "uniform-slog-mean": statistics.fmean(sorted(numbers)[: len(numbers) // 2]),
    }
    for method, level in lowest.items():
        found = quantised(Quantize(method, 2, as_coded=True), numbers)
        assert float(found[found > 0].min()) == pytest.approx(level, rel=1e-14)


def test_majority() -> None:
    close(quantised(Quantize("bin-majority", mass=0.5, as_coded=True), V), row(2, 2))
    close(quantised(Quantize("bin-majority", mass=0.9, as_coded=True), V), row(*[14.4] * 4))
    close(quantised(Quantize("bin-majority", mass=0.5), V), row(0.25, 0.25))
    close(quantised(Quantize("bin-majority", mass=0.9), V), row(*[0.225] * 4))
    close(quantised(Quantize("bin-majority"), [0.0] * 8), row())
    close(quantised(Quantize("bin-majority", as_coded=True), [0.0] * 8), row())
    close(quantised(Quantize("bin-majority"), [0.2, 0.2, 0.05]), [0.25, 0.25, 0])  # never exceeds a half


def test_population_keeps_the_mass_of_what_it_keeps() -> None:
    """Means of the own bin keep the sum, which the released code does not."""
    kept = sum(number for number in W if number >= 1e-3)
    for method in ("uniform-slinear-clamped-mean", "uniform-slog-clamped-mean"):
        for bits in (1, 2, 3, 8):
            found = quantised(Quantize(method, bits), W)
            assert float(found.sum()) == pytest.approx(kept)
            assert len(found[found > 0].unique()) <= 2**bits - 1
    assert quantised(Quantize("uniform-slinear-clamped-mean", 3), W).tolist()[:7] == pytest.approx(W[:7])


def test_released_ranking_by_token_is_by_row() -> None:
    rows = torch.tensor([W, [number / 2 for number in W]], dtype=torch.float64).view(1, 1, 2, 8)
    both = Quantize("ranking-token", 2, as_coded=True).apply(rows)
    for place in range(2):
        alone = Quantize("ranking-token", 2, as_coded=True).apply(rows[:, :, place : place + 1])
        assert torch.equal(both[:, :, place : place + 1], alone)
    # Cuts at 10^-1.29 and 10^-0.9, each a bin of 0.03 decades lower.
    close(both[0, 0, 0], row(1, 1, 1, 10**-0.93, 10**-0.93, 10**-1.32, 10**-1.32))
