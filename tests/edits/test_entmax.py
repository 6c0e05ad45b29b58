"""Entmax and sparsemax: the oracle P7 of spec/attention-pruning.md, gradients, and rows with nothing allowed."""

from __future__ import annotations

import pytest
import torch

from attrim.core.call import Call
from attrim.core.plan import Plan
from attrim.edits.entmax import Entmax, entmax
from attrim.edits.mask import Mask
from attrim.edits.sparsemax import Sparsemax
from attrim.errors import ParameterError

INFINITE = float("-inf")


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((1, 0.5, 0, -1), (0.624198, 0.291667, 0.084136, 0)),
        ((2, 0, 0, 0), (1, 0, 0, 0)),
        ((0, 0, 0, 0), (0.25, 0.25, 0.25, 0.25)),
        ((3, 2, -32768, 1), (0.830719, 0.169281, 0, 0)),
        ((3, 2, INFINITE, 1), (0.830719, 0.169281, 0, 0)),
    ],
)
def test_oracle_p7(scores: tuple[float, ...], expected: tuple[float, ...]) -> None:
    found = Entmax(1.5).apply(torch.tensor(scores, dtype=torch.float32)[None, None, None])[0, 0, 0]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32), rtol=0, atol=1e-6)


def test_a_removed_cell_leaves_the_entmax_of_the_others() -> None:
    scores = torch.tensor([3.0, 2.0, 9.0, 1.0])[None, None, None]
    cells = torch.tensor([[[False, False, True, False]]])
    call = Call.plain(scores)
    found = Plan([(Mask(cells), (0,)), (Entmax(), (0,))]).weights(scores, call)[0, 0, 0]
    torch.testing.assert_close(found, torch.tensor([0.830719, 0.169281, 0, 0]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("alpha", [1.05, 1.5, 1.7, 2.0, 3.0])
def test_it_solves_its_definition(alpha: float) -> None:
    """Sums to 1, and the weights are those of the definition for the threshold that they imply."""
    scores = torch.randn(3, 2, 5, 9, dtype=torch.float64)
    scores[..., 4] = INFINITE
    weights = entmax(scores, alpha)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 5, dtype=torch.float64), rtol=0, atol=1e-6)
    best = weights.argmax(-1, keepdim=True)
    threshold = (alpha - 1) * scores.gather(-1, best) - weights.gather(-1, best) ** (alpha - 1)
    expected = ((alpha - 1) * scores - threshold).clamp_min(0) ** (1 / (alpha - 1))
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5)


def test_near_one_it_is_softmax_and_two_is_sparsemax() -> None:
    scores = torch.randn(2, 2, 4, 6)
    torch.testing.assert_close(entmax(scores, 1.0005), torch.softmax(scores, -1), rtol=0, atol=2e-3)
    assert torch.equal(Sparsemax().apply(scores), Entmax(2.0).apply(scores))
    torch.testing.assert_close(entmax(scores, 2.0), entmax(scores, 2.0 + 1e-6), rtol=0, atol=1e-4)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_gradients(alpha: float) -> None:
    scores = torch.randn(1, 1, 3, 5, dtype=torch.float64)
    forbidden = torch.zeros(1, 1, 3, 5, dtype=torch.bool)
    forbidden[0, 0, 1] = True  # a row with nothing allowed
    forbidden[0, 0, 2, 3:] = True
    scores.requires_grad_()

    def weights(given: torch.Tensor) -> torch.Tensor:
        return entmax(given.masked_fill(forbidden, INFINITE), alpha)

    assert torch.autograd.gradcheck(weights, scores, atol=1e-4)
    (gradient,) = torch.autograd.grad(weights(scores)[..., 0].sum(), scores)
    assert torch.isfinite(gradient).all()
    assert (gradient[forbidden] == 0).all()
    assert (weights(scores)[0, 0, 1] == 0).all()


@pytest.mark.parametrize("alpha", [1.0, 0.5, float("nan"), float("inf")])
def test_what_does_not_fit_is_refused(alpha: float) -> None:
    with pytest.raises(ParameterError, match="alpha"):
        Entmax(alpha)
