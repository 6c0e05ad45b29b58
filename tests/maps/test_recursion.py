"""The rules by which relevance is carried, against numbers that were computed by hand."""

from __future__ import annotations

import pytest
import torch

from attrim.maps.recursion import Crossing, CrossRule, Propagation, after_self, average_heads, normalized

DOUBLE = torch.float64


def matrix(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=DOUBLE)


ATTENTION = torch.stack([matrix([0.6, 0.4], [0.5, 0.5]), matrix([0.2, 0.8], [0.9, 0.1])])
GRADIENT = torch.stack([matrix([1, -2], [0.4, 0.2]), matrix([-1, 0.5], [1, 2])])
TEXT = matrix([1.2, 0.2], [0.1, 1.3])
REGIONS = matrix([1.1, 0.1, 0.2], [0, 1.5, 0.5], [0.3, 0.3, 1.4])
REGIONS_TEXT = matrix([0.1, 0], [0.2, 0.1], [0, 0.3])
CROSS = matrix([0.5, 0.2, 0.1], [0.3, 0, 0.6])


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_heads_are_averaged_after_each_cell_lost_its_negative_part() -> None:
    average = average_heads(ATTENTION * GRADIENT)
    same(average, matrix([0.3, 0.2], [0.55, 0.15]))
    relevance = after_self(torch.eye(2, dtype=DOUBLE), average)
    same(relevance, matrix([1.3, 0.2], [0.55, 1.15]))
    same(after_self(relevance, average), matrix([1.8, 0.49], [1.3475, 1.4325]))


def test_the_average_is_over_all_heads_where_some_are_left_out() -> None:
    same(average_heads(ATTENTION * GRADIENT, torch.tensor([1, 0])), matrix([0.3, 0], [0.1, 0.05]))


def test_rows_are_normalized_without_the_identity() -> None:
    same(normalized(TEXT), matrix([1.5, 0.5], [0.25, 1.75]))
    same(normalized(REGIONS), matrix([1.25, 0.25, 0.5], [0, 1.5, 0.5], [0.3, 0.3, 1.4]))


def test_cross_attention_adds_to_both_sequences() -> None:
    added = CrossRule().between(TEXT, REGIONS, CROSS)
    same(added, matrix([1.12125, 0.74625, 0.9825], [1.29875, 0.67375, 1.9775]))
    state = Propagation({"text": 2, "image": 3})
    state.relevance = {
        ("text", "text"): TEXT,
        ("image", "image"): REGIONS,
        ("text", "image"): torch.zeros(2, 3, dtype=DOUBLE),
        ("image", "text"): REGIONS_TEXT,
    }
    state.attend_across([Crossing("text", "image", CROSS)])
    same(state.relevance["text", "image"], added)
    same(state.relevance["text", "text"] - TEXT, matrix([0.09, 0.05], [0.03, 0.18]))


def test_both_directions_start_from_the_same_relevance() -> None:
    def start() -> Propagation:
        state = Propagation({"text": 2, "image": 3})
        state.relevance |= {("text", "text"): TEXT, ("image", "image"): REGIONS, ("image", "text"): REGIONS_TEXT}
        return state

    there, back = Crossing("text", "image", CROSS), Crossing("image", "text", CROSS.mT.contiguous())
    one, other, apart = start(), start(), start()
    one.attend_across([there, back])
    other.attend_across([back, there])
    apart.attend_across([there])
    apart.attend_across([back])
    for pair, relevance in one.relevance.items():
        same(relevance, other.relevance[pair])
    assert not torch.allclose(one.relevance["image", "image"], apart.relevance["image", "image"])


ZERO_ROW = matrix([1, 0], [0.1, 1.3])


def test_a_row_of_zeros_stays_zeros() -> None:
    added = CrossRule().between(ZERO_ROW, REGIONS, CROSS)
    same(added, matrix([0.79375, 0.51875, 0.7375], [0.97125, 0.44625, 1.7325]))


def test_as_coded_a_row_of_zeros_empties_the_whole_increment() -> None:
    assert bool(normalized(ZERO_ROW, as_coded=True)[0].isnan().all())
    assert bool((CrossRule(as_coded=True).between(ZERO_ROW, REGIONS, CROSS) == 0).all())
    same(CrossRule(as_coded=True).between(TEXT, REGIONS, CROSS), CrossRule().between(TEXT, REGIONS, CROSS))


def test_as_coded_a_row_of_padding_empties_nothing() -> None:
    real = torch.tensor([False, True])
    same(normalized(ZERO_ROW, real, as_coded=True), normalized(ZERO_ROW))


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (CrossRule(normalize=False), TEXT.mT @ CROSS @ REGIONS),
        (CrossRule(self_in_cross_rule=False), CROSS),
    ],
    ids=["plain", "without self-attention"],
)
def test_the_switches_of_the_cross_rule(rule: CrossRule, wanted: torch.Tensor) -> None:
    same(rule.between(TEXT, REGIONS, CROSS), wanted)
