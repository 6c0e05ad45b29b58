from __future__ import annotations

import math

import pytest
import torch

from attrim.stats import Moments

ROW = [0.5, 0.25, 0.125, 0.0625, 0.05, 0.01, 0.002, 0.0005]


def of(weights: torch.Tensor, mask: torch.Tensor | None = None) -> Moments:
    moments = Moments()
    moments.update(weights, mask)
    return moments


def test_tokens_to_majority_of_the_golden_row() -> None:
    assert of(torch.tensor(ROW).reshape(1, 1, 1, -1)).tokens_to_majority().item() == 2


@pytest.mark.parametrize("size", range(1, 40))
def test_a_uniform_row_needs_one_more_than_half(size: int) -> None:
    assert of(torch.full((1, 1, 1, size), 1 / size)).tokens_to_majority().item() == size // 2 + 1


def test_rows_that_never_reach_a_majority_are_counted_apart() -> None:
    moments = of(torch.tensor([[0.9, 0.1], [0.3, 0.2]]).reshape(1, 1, 2, 2))
    assert moments.tokens_to_majority().item() == 1
    assert moments.not_reached().item() == 0.5
    assert moments.row_error().item() == pytest.approx(0.25, abs=1e-7)
    assert moments.largest_row_error().item() == pytest.approx(0.5, abs=1e-7)


def test_against_torch() -> None:
    weights = torch.softmax(2 * torch.randn(3, 2, 20, 20), -1)
    moments = of(weights)
    values = weights.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(moments.maximum()[0], values.amax(1))
    torch.testing.assert_close(moments.minimum()[0], values.amin(1))
    torch.testing.assert_close(moments.mean()[0], values.mean(1), atol=1e-10, rtol=0)
    torch.testing.assert_close(moments.std()[0], values.std(1, correction=0), atol=1e-8, rtol=0)
    entropy = torch.distributions.Categorical(probs=weights.double()).entropy().mean((0, 2))
    torch.testing.assert_close(moments.entropy()[0], entropy, atol=1e-6, rtol=0)


def test_only_valid_cells_count() -> None:
    weights = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.9, 0.1, 0.0]]).reshape(1, 1, 3, 3)
    moments = of(weights, torch.tensor([[True, True, False]]))
    assert moments.minimum().item() == 0.5
    assert moments.maximum().item() == 0.5
    assert moments.entropy().item() == pytest.approx(math.log(2), abs=1e-9)
    assert moments.std().item() == pytest.approx(0, abs=1e-6)


def test_an_example_without_valid_cells_changes_nothing() -> None:
    moments = of(torch.full((1, 1, 2, 2), 0.5))
    before = moments.state()[0]["plain/cells"].clone()
    moments.update(torch.full((1, 1, 2, 2), 0.5), torch.zeros(1, 1, 2, 2, dtype=torch.bool))
    assert torch.equal(moments.state()[0]["plain/cells"], before)
    assert moments.maximum().item() == 0.5
