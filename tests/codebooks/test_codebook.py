"""Codebooks: the bin of a weight in every dtype, ties, axes of their own, the compiled look-up, bad input."""

from __future__ import annotations

import bisect
import struct

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from attrim.codebooks import Codebook, make_codebook
from attrim.codebooks.lookup import FEWEST, make_table
from attrim.codebooks.rounding import round_up
from attrim.errors import ParameterError, ShapeError, UnknownName
from codebooks.tables import FIXED

HALVES = [torch.float16, torch.bfloat16]
DTYPES = [torch.float64, torch.float32, *HALVES]
unit = st.floats(0, 1)
methods = st.sampled_from(FIXED)
bits = st.integers(1, 16)


def by_hand(book: Codebook, numbers: list[float]) -> list[int]:
    return [bisect.bisect_right(book.edges.tolist(), number) for number in numbers]


@given(method=methods, bits=st.integers(1, 8), numbers=st.lists(unit, min_size=1), dtype=st.sampled_from(DTYPES))
def test_codes_are_those_of_the_exact_number(method: str, bits: int, numbers: list[float], dtype: torch.dtype) -> None:
    book = make_codebook(method, bits)
    near_edges = book.edges[:20].to(dtype)  # rounded up or down, as it comes
    weights = torch.cat([torch.tensor(numbers, dtype=dtype), near_edges])
    assert book.codes(weights).tolist() == by_hand(book, weights.double().tolist())
    assert book.apply(weights).dtype == dtype


@given(method=methods, bits=bits, numbers=st.lists(unit, min_size=2), dtype=st.sampled_from(DTYPES))
def test_monotone_idempotent_and_bounded(method: str, bits: int, numbers: list[float], dtype: torch.dtype) -> None:
    book = make_codebook(method, bits)
    weights = torch.tensor([0.0, 1.0, *numbers], dtype=dtype).sort().values
    once = book.apply(weights)
    assert (once.diff() >= 0).all()
    assert torch.equal(book.apply(once), once)
    assert once[0] == 0
    assert 0 < once[-1] <= 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("method", FIXED)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 16])
def test_every_level_stays_when_quantised_again(method: str, count: int, dtype: torch.dtype) -> None:
    book = make_codebook(method, count)
    levels = book.apply(book.edges.to(dtype))
    assert torch.equal(book.apply(levels), levels)


@given(numbers=st.lists(unit, min_size=1), dtype=st.sampled_from(DTYPES))
def test_rounding_up(numbers: list[float], dtype: torch.dtype) -> None:
    exact = torch.tensor(numbers, dtype=torch.float64)
    up = round_up(exact, dtype)
    assert (up.double() >= exact).all()
    just_below = (up.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]) - 1).view(dtype)
    assert ((just_below.double() < exact) | (exact == 0)).all()


def test_the_lower_tie_rule() -> None:
    weights = torch.tensor([0.25, 0.5, 0.75])
    upper = Codebook(torch.tensor([0.25, 0.5]), torch.tensor([0.0, 0.3, 0.6]))
    lower = Codebook(upper.edges, upper.values, tie="lower")
    assert upper.codes(weights).tolist() == [1, 2, 2]
    assert lower.codes(weights).tolist() == [0, 1, 2]
    # 0.1 in float32 is above the exact tenth, so it passes the edge under both rules.
    tenth = Codebook(torch.tensor([0.1], dtype=torch.float64), torch.tensor([0.0, 1.0]), tie="lower")
    assert tenth.codes(torch.tensor([0.1])).tolist() == [1]
    assert tenth.codes(torch.tensor([0.1], dtype=torch.float64)).tolist() == [0]


@pytest.mark.parametrize("leading", [(2, 3, 4), (2, 3, 1), (2, 1, 1), (1, 3, 1), (1, 1, 1), (1, 3, 4), (2, 1, 4)])
def test_axes_with_edges_of_their_own(leading: tuple[int, ...]) -> None:
    edges = torch.rand(*leading, 5, dtype=torch.float64).sort(-1).values
    book = Codebook(edges, torch.rand(*leading, 6, dtype=torch.float64))
    weights = torch.rand(2, 3, 4, 7)
    found = book.apply(weights)
    wide_edges, wide_values = edges.expand(2, 3, 4, -1), book.values.expand(2, 3, 4, -1)
    for example in range(2):
        for head in range(3):
            for query in range(4):
                own = Codebook(wide_edges[example, head, query], wide_values[example, head, query])
                assert torch.equal(found[example, head, query], own.apply(weights[example, head, query]))


def float_of(word: int) -> float:
    return struct.unpack("<f", struct.pack("<I", word))[0]


floats = st.integers(0, 0x3F800000).map(float_of) | st.floats(0, 1, width=32) | st.floats(-2, 2, width=32)


@given(method=methods, bits=st.integers(1, 12), numbers=st.lists(floats, min_size=1, max_size=40))
def test_the_compiled_look_up_gives_the_same_bits(method: str, bits: int, numbers: list[float]) -> None:
    book = make_codebook(method, bits)
    edges = round_up(book.edges, torch.float32)
    words = edges.view(torch.int32)
    around = torch.cat([words - 1, words, words + 1]).clamp_min(0).view(torch.float32)
    weights = torch.cat([torch.tensor(numbers), around])
    weights = weights.repeat(FEWEST // len(weights) + 1)
    fast, reference = book.apply(weights), book.apply(weights, fast=False)
    assert torch.equal(fast.view(torch.int32), reference.view(torch.int32))


def test_the_look_up_takes_equal_edges_and_refuses_large_tables() -> None:
    book = Codebook(torch.tensor([0.25, 0.25, 0.5]), torch.tensor([0.0, 0.1, 0.3, 0.6]))
    weights = torch.linspace(0, 1, FEWEST)
    assert torch.equal(book.apply(weights), book.apply(weights, fast=False))
    for count, fits in ((8, True), (16, False)):
        edges = make_codebook("linear-slog", count).edges.float()
        values = torch.zeros(len(edges) + 1)
        assert (make_table(edges, values, values.double()) is not None) == fits


def test_a_view_is_looked_up_in_its_own_order() -> None:
    book = make_codebook("linear-slog-clamped-midval", 3)
    weights = torch.rand(2, 3, 40, 50).transpose(2, 3)
    assert torch.equal(book.apply(weights), book.apply(weights, fast=False))


def test_state_and_back() -> None:
    book = make_codebook("quant-8-log", 4, low=0.01, high=0.9)
    again = Codebook.load(book.state())
    assert torch.equal(again.edges, book.edges)
    assert torch.equal(again.values, book.values)
    assert (again.name, again.bits, again.scope, again.tie) == ("quant-8-log", 4, None, "upper")


@pytest.mark.parametrize(
    ("edges", "values", "error"),
    [
        ([0.5], [0.0], ShapeError),
        ([[0.5], [0.6]], [0.0, 1.0], ShapeError),
        ([0.5, 0.4], [0.0, 0.1, 0.2], ParameterError),
        ([-0.5], [0.0, 0.1], ParameterError),
        ([float("nan")], [0.0, 0.1], ParameterError),
        ([0.5], [0.0, float("nan")], ParameterError),
    ],
)
def test_what_is_no_codebook(edges: list[float], values: list[float], error: type[Exception]) -> None:
    with pytest.raises(error):
        Codebook(torch.tensor(edges), torch.tensor(values))


def test_bad_options() -> None:
    with pytest.raises(ShapeError, match="does not fit weights"):
        _ = Codebook(torch.rand(2, 1, 1, 1), torch.rand(2, 1, 1, 2)).apply(torch.rand(3, 1, 1, 4))
    with pytest.raises(ParameterError, match="depends on the weights"):
        make_codebook("uniform-slog-mean", 3)
    with pytest.raises(UnknownName, match="did you mean 'linear-slog'"):
        make_codebook("linear-slogg", 3)
    with pytest.raises(ParameterError, match="A logarithmic grid cannot begin at 0"):
        make_codebook("quant-8-log", 3, low=0.0)
    with pytest.raises(ParameterError, match="within 0 and 1"):
        make_codebook("quant-8-linear", 3, low=0.5, high=0.5)
    with pytest.raises(ParameterError, match="has no 'low'"):
        make_codebook("linear-slog", 3, low=0.5)
    with pytest.raises(ParameterError, match="A codebook has edges and values"):
        Codebook.load({"levels": [1]})


@given(low=st.floats(1e-6, 0.4), high=st.floats(0.6, 1), bits=st.integers(1, 6))
def test_ladders_reach_both_ends(low: float, high: float, bits: int) -> None:
    for method in ("quant-8-linear", "quant-8-log"):
        book = make_codebook(method, bits, low=low, high=high)
        assert float(book.values[-1]) == pytest.approx(high, rel=1e-15)
        steps = book.edges.diff() if method.endswith("linear") else book.edges.log().diff()
        assume(len(steps) > 0)
        assert torch.allclose(steps, steps[0], rtol=1e-6)
