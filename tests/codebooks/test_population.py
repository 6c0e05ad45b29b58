"""Methods that look at the weights: what shares a codebook, and that neither padding nor other texts matter."""

from __future__ import annotations

import itertools

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attrim.edits.quantize import Quantize
from codebooks.tables import GROUPED

SCOPES = [
    (method, scope)
    for method in ("uniform-slinear-clamped-mean", "uniform-slog-clamped-mean", "uniform-slog-mean")
    for scope in ("row", "head", "layer")
] + [("ranking-head", "head"), ("ranking-head", "layer"), ("ranking-token", "row"), ("binarization", "row"),
     ("bin-majority", "row")]  # fmt: skip
every_scope = pytest.mark.parametrize(("method", "scope"), SCOPES)


def attention(*shape: int, seed: int = 0) -> Tensor:
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3
    return torch.softmax(scores, -1)


def test_all_of_them_are_here() -> None:
    assert {method for method, _ in SCOPES} == set(GROUPED)


@every_scope
def test_parts_that_share_no_codebook_do_not_matter_to_each_other(method: str, scope: str) -> None:
    edit = Quantize(method, 3, scope=scope)
    weights = attention(2, 3, 9, 9)
    whole = edit.apply(weights)
    for example in range(2):
        part = weights[example : example + 1]
        if scope == "layer":
            assert torch.equal(edit.apply(part), whole[example : example + 1])
            continue
        for head in range(3):
            one = part[:, head : head + 1]
            if scope == "head":
                assert torch.equal(edit.apply(one), whole[example : example + 1, head : head + 1])
                continue
            for query in range(9):
                row = one[:, :, query : query + 1]
                assert torch.equal(edit.apply(row)[0, 0, 0], whole[example, head, query])


@every_scope
def test_a_shared_codebook_has_few_levels(method: str, scope: str) -> None:
    weights = attention(2, 3, 40, 40)
    found = Quantize(method, 2, scope=scope).apply(weights)
    axes = {"layer": 1, "head": 2, "row": 3}[scope]
    for group in found.flatten(0, axes - 1).flatten(1):
        assert 1 <= len(group[group > 0].unique()) <= 3


@every_scope
@given(length=st.integers(1, 12), more=st.integers(1, 6), left=st.booleans(), seed=st.integers(0, 99))
def test_padding_does_not_matter(method: str, scope: str, length: int, more: int, left: bool, seed: int) -> None:
    edit = Quantize(method, 3, scope=scope)
    alone = attention(1, 2, length, length, seed=seed)
    size = length + more
    own = slice(more, size) if left else slice(0, length)
    padded = attention(1, 2, size, size, seed=seed + 1)  # junk, which the mask forbids
    padded[:, :, own, own] = alone
    real = torch.zeros(1, size, dtype=torch.bool)
    real[:, own] = True
    other = attention(1, 2, size, size, seed=seed + 2)
    batch = torch.cat([other, padded])
    mask = torch.cat([torch.ones_like(real), real])
    torch.testing.assert_close(edit.apply(batch, mask)[1:, :, own, own], edit.apply(alone), rtol=1e-6, atol=0)


@every_scope
def test_it_is_monotone_within_a_group(method: str, scope: str) -> None:
    weights = attention(1, 1, 1, 200)
    found = Quantize(method, 3, scope=scope).apply(weights).flatten()
    assert (found[weights.flatten().argsort()].diff() >= 0).all()


@every_scope
@pytest.mark.parametrize(
    "rows", [[[0.0, 0.0, 0.0]], [[1.0, 0.0, 0.0]], [[0.4, 0.4, 0.2]], [[1.0]], [[5e-4, 2e-4, 0.0]]]
)
@pytest.mark.parametrize("bits", [1, 8, 16])
def test_few_weights(method: str, scope: str, rows: list[list[float]], bits: int) -> None:
    """No weight, one weight, equal weights: the released code fails on some of these."""
    weights = torch.tensor(rows)[None, None]
    found = Quantize(method, bits, scope=scope).apply(weights)
    assert ((found >= 0) & (found <= 1)).all()
    assert (found[weights == 0] == 0).all()
    if rows[0][0] >= 0.4:
        assert found[0, 0, 0, 0] > 0


def test_equal_population_by_hand() -> None:
    """Against a plain loop over sorted weights; 300 weights from 1e-3 on in 7 bins."""
    weights = attention(1, 1, 30, 30)
    found = Quantize("uniform-slinear-clamped-mean", 3).apply(weights)[0, 0].numpy().ravel()
    values = weights.numpy().ravel().astype(numpy.float64)
    kept = numpy.sort(values[values >= 1e-3])
    edges = [1e-3] + [kept[number * len(kept) // 7] for number in range(1, 7)] + [2.0]
    expected = numpy.zeros_like(values)
    for low, high in itertools.pairwise(edges):
        inside = (values >= low) & (values < high)
        expected[inside] = values[inside].mean()
    numpy.testing.assert_allclose(found, expected, rtol=1e-6)


def test_halving_population_by_hand() -> None:
    """The cuts of the paper for 1000 weights: 500, 750, 875, 937, 968, 983."""
    weights = torch.linspace(0.002, 1, 1000, dtype=torch.float64).view(1, 1, 1, -1)
    for bits, cuts in ((2, [500, 750]), (3, [500, 750, 875, 937, 968, 983])):
        found = Quantize("uniform-slog-clamped-mean", bits).apply(weights).flatten()
        assert (found.diff() > 0).nonzero().flatten().add(1).tolist() == cuts


def test_a_later_token_does_not_matter_by_row() -> None:
    """A causal row sees only its own keys, so a scope of rows keeps a decoder causal."""
    causal = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    weights = attention(1, 2, 6, 6) * causal
    edit = Quantize("uniform-slog-mean", 2, scope="row")
    whole = edit.apply(weights, causal)
    part = edit.apply(weights[..., :4, :4], causal[..., :4, :4])
    assert torch.equal(whole[..., :4, :4], part)
