from __future__ import annotations

import dataclasses

import pytest
import torch

from attrim.core.call import Call
from attrim.core.site import Site
from attrim.errors import DataError, SelectionError
from attrim.stats import Mean
from attrim.stats.mean import MOST_EXAMPLES

# spec/papa.md O1: two examples of lengths 3 and 2.
FIRST = [[0.5, 0.3, 0.2, 0], [0.1, 0.8, 0.1, 0], [0.25, 0.25, 0.5, 0], [0.4, 0.3, 0.3, 0]]
SECOND = [[0.6, 0.4, 0, 0], [0.2, 0.8, 0, 0], [0.5, 0.5, 0, 0], [0.7, 0.3, 0, 0]]


def lengths(*sizes: int, longest: int) -> torch.Tensor:
    return torch.arange(longest)[None] < torch.tensor(sizes)[:, None]


def close(found: torch.Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(found.double(), torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


def test_oracle_o1() -> None:
    mean = Mean()
    mean.update(torch.tensor([FIRST, SECOND])[:, None], lengths(3, 2, longest=4))
    close(mean.counts("plain")[0], [[2, 2, 1], [2, 2, 1], [1, 1, 1]])
    close(mean.sums("plain")[0], [[1.1, 0.7, 0.2], [0.3, 1.6, 0.1], [0.25, 0.25, 0.5]])
    matrix = mean.matrix("plain")[0]
    close(matrix, [[0.55, 0.35, 0.2], [0.15, 0.8, 0.1], [0.25, 0.25, 0.5]])
    close(matrix.sum(-1, keepdim=True), [[1.10], [1.05], [1.00]])


def formula(layer: int, head: int) -> torch.Tensor:
    """Scores of spec/papa.md O8, weights ``[3, 4, 4]`` of three examples of lengths 4, 3, 2."""
    example, query, key = torch.meshgrid(torch.arange(3), torch.arange(4), torch.arange(4), indexing="ij")
    scores = ((example + 1) * (query + 1) + (layer + 1) * (head + 1) * (key + 1)) % 5
    real = lengths(4, 3, 2, longest=4)
    return torch.softmax(scores.double().masked_fill(~real[:, None], -torch.inf), -1)


def test_oracle_o8() -> None:
    mean = Mean()
    for layer in range(2):
        weights = torch.stack([formula(layer, head) for head in range(2)], dim=1)
        mean.update(weights, lengths(4, 3, 2, longest=4), Site(f"layer{layer}", "encoder", layer, 2))
    close(mean.counts("layer0")[0], [[3, 3, 2, 1], [3, 3, 2, 1], [2, 2, 2, 1], [1, 1, 1, 1]])
    close(
        mean.matrix("layer0")[0],
        [
            [0.445450, 0.327056, 0.335223, 0.012038],
            [0.205053, 0.557392, 0.338998, 0.034671],
            [0.460492, 0.129974, 0.353306, 0.112457],
            [0.032059, 0.087144, 0.236883, 0.643914],
        ],
    )
    close(
        mean.matrix("layer1")[1],
        [
            [0.263236, 0.314441, 0.589011, 0.088947],
            [0.239299, 0.413166, 0.393209, 0.256187],
            [0.062835, 0.381385, 0.140304, 0.830953],
            [0.643914, 0.236883, 0.087144, 0.032059],
        ],
    )
    totals = torch.stack([mean.matrix(f"layer{layer}").sum((1, 2)) for layer in range(2)])
    close(totals, [[4.312108, 4.575117], [4.575117, 4.972972]])


def test_oracle_p4_two_batches_of_different_lengths() -> None:
    mean = Mean()
    mean.update(torch.tensor([[[0.6, 0.4], [0.3, 0.7]], [[0.8, 0.2], [0.5, 0.5]]])[:, None])
    third = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.6, 0.3], [0.4, 0.4, 0.2]])
    mean.update(third[None, None])
    close(mean.matrix("plain")[0], [[0.533333, 0.3, 0.5], [0.3, 0.6, 0.3], [0.4, 0.4, 0.2]])
    close(mean.counts("plain")[0], [[3, 3, 1], [3, 3, 1], [1, 1, 1]])


def test_oracle_p4_padded_batch() -> None:
    first = torch.tensor([[0.6, 0.4, 0], [0.3, 0.7, 0], [0.5, 0.5, 0]])
    second = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.6, 0.3], [0.4, 0.4, 0.2]])
    mean = Mean()
    mean.update(torch.stack([first, second])[:, None], lengths(2, 3, longest=3))
    close(mean.matrix("plain")[0], [[0.4, 0.35, 0.5], [0.2, 0.65, 0.3], [0.4, 0.4, 0.2]])


def test_oracle_p4_cells_that_are_not_covered_do_not_decay() -> None:
    mean = Mean()
    for first, second in ((0.3, 0.5), (0.5, 0.7)):
        mean.update(torch.tensor([first, second]).reshape(1, 1, 1, 2))
    mean.update(torch.tensor([0.1]).reshape(1, 1, 1, 1))
    close(mean.matrix("plain")[0], [[0.3, 0.6]])


def test_left_padding_does_not_move_cells() -> None:
    weights = torch.softmax(torch.randn(1, 2, 3, 3), -1)
    alone, padded = Mean(), Mean()
    alone.update(weights)
    wide = torch.zeros(1, 2, 5, 5)
    wide[..., 2:, 2:] = weights
    call = Call.plain(wide, torch.tensor([[False, False, True, True, True]]))
    padded.watch(wide, dataclasses.replace(call, query_lead=torch.tensor([2]), key_lead=torch.tensor([2])))
    assert torch.equal(alone.matrix("plain"), padded.matrix("plain"))


def test_a_generation_step_lands_on_its_own_row() -> None:
    weights = torch.softmax(torch.randn(1, 1, 1, 4), -1)
    mean = Mean()
    mean.watch(weights, dataclasses.replace(Call.plain(weights), position=3))
    assert mean.counts("plain")[0].tolist() == [[0] * 4, [0] * 4, [0] * 4, [1] * 4]


def test_counts_differ_between_heads_only_when_masks_do() -> None:
    weights = torch.full((1, 2, 2, 2), 0.5)
    mean = Mean()
    mean.update(weights)
    assert mean.counts("plain").shape == (1, 2, 2)
    mask = torch.ones(1, 2, 2, 2, dtype=torch.bool)
    mask[0, 1, 0, 1] = False
    mean.update(weights, mask)
    assert mean.counts("plain").tolist() == [[[2, 2], [2, 2]], [[2, 1], [2, 2]]]
    close(mean.matrix("plain")[1], [[0.5, 0.5], [0.5, 0.5]])


def test_offsets_average_the_diagonals() -> None:
    mean = Mean()
    mean.update(torch.tensor([[0.9, 0.1, 0.0], [0.3, 0.7, 0.0], [0.2, 0.3, 0.5]])[None, None])
    offsets, averages = mean.offsets("plain")
    assert offsets.tolist() == [-2, -1, 0, 1, 2]
    close(averages, [[0.2, 0.3, 0.7, 0.05, 0.0]])


def test_heads_that_were_not_watched_are_zero() -> None:
    weights = torch.full((1, 2, 2, 2), 0.5)
    mean = Mean()
    mean.watch(weights[:, 1:], Call.plain(weights).for_heads([1]))
    assert mean.matrix("plain").sum((1, 2)).tolist() == [0, 2]
    with pytest.raises(SelectionError, match="new stat"):
        mean.update(weights)


def test_an_unknown_site_is_named() -> None:
    with pytest.raises(SelectionError, match="elsewhere"):
        Mean().matrix("elsewhere")


def test_overflow_is_refused() -> None:
    weights = torch.full((1, 1, 1, 1), 1.0)
    mean = Mean()
    mean.update(weights)
    mean.records["plain"].tensors["examples"].fill_(MOST_EXAMPLES)
    with pytest.raises(DataError, match="smaller parts"):
        mean.update(weights)


def test_overflow_is_refused_when_parts_are_merged() -> None:
    """Beyond 2^27 examples the sums of a cell whose weight is always 1 would wrap around."""
    parts = []
    for _ in range(2):
        parts.append(Mean())
        parts[-1].update(torch.full((1, 1, 1, 1), 1.0))
        parts[-1].records["plain"].tensors["examples"].fill_(MOST_EXAMPLES)
        parts[-1].records["plain"].tensors["sums"].fill_(MOST_EXAMPLES << 36)
    before = parts[0].sums("plain").clone()
    with pytest.raises(DataError, match="smaller parts"):
        parts[0].merge(parts[1])
    assert torch.equal(parts[0].sums("plain"), before)


@pytest.mark.parametrize("sign", [1, -1])
def test_overflow_by_enlarged_weights_is_refused(sign: int) -> None:
    mean = Mean()
    mean.update(torch.full((1, 1, 1, 1), sign * 2.0**25))
    mean.update(torch.full((1, 1, 1, 1), sign * 2.0**25))
    with pytest.raises(DataError, match="smaller parts"):
        mean.update(torch.full((1, 1, 1, 1), sign * 2.0**25))
    with pytest.raises(DataError, match="smaller parts"):
        Mean().update(torch.full((1, 1, 1, 1), sign * 2.0**60))
    one, other = Mean(), Mean()
    one.update(torch.full((1, 1, 1, 1), sign * 2.0**25))
    other.update(torch.full((1, 1, 1, 1), sign * (2.0**25 + 8)))
    with pytest.raises(DataError, match="smaller parts"):
        one.merge(other)


def test_the_step_of_the_sums_is_documented() -> None:
    """Weights of less than half a step are lost, as the docstring says."""
    mean = Mean()
    mean.update(torch.tensor([2.0**-38, 2.0**-36, 1.0]).view(1, 1, 1, 3))
    assert mean.matrix("plain").flatten().tolist() == [0.0, 2.0**-36, 1.0]
    assert "2^-36" in str(Mean.__doc__)
