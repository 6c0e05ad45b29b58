from __future__ import annotations

import dataclasses

import pytest
import torch

from attrim.core.call import Call
from attrim.edits.window import Window
from attrim.errors import ParameterError

SCORES = torch.zeros(1, 1, 6, 6)
CAUSAL = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()


def kept(window: Window, allowed: torch.Tensor | None = None) -> list[str]:
    weights = window.apply(SCORES, allowed)
    return ["".join("1" if cell else "0" for cell in row) for row in weights[0, 0] > 0]


def test_a_causal_window_and_the_first_tokens() -> None:
    assert kept(Window(2), CAUSAL) == ["100000", "110000", "011000", "001100", "000110", "000011"]
    assert kept(Window(2, first=1), CAUSAL) == ["100000", "110000", "111000", "101100", "100110", "100011"]


def test_a_window_to_both_sides() -> None:
    assert kept(Window(2)) == ["110000", "111000", "011100", "001110", "000111", "000011"]
    assert kept(Window(1, first=2)) == ["110000", "110000", "111000", "110100", "110010", "110001"]


def test_the_softmax_shares_the_mass() -> None:
    weights = Window(2, first=1).apply(SCORES, CAUSAL)[0, 0]
    torch.testing.assert_close(weights.sum(-1), torch.ones(6))
    torch.testing.assert_close(weights[5], torch.tensor([1.0, 0, 0, 0, 1, 1]) / 3)


def test_positions_count_not_slots() -> None:
    """A step with a sliding cache that dropped the first keys, and padding on the left."""
    scores = torch.zeros(1, 1, 1, 4)
    call = dataclasses.replace(Call.plain(scores), position=7, key_position=4)
    assert torch.isinf(Window(2, first=1).edit_scores(scores, call))[0, 0, 0].tolist() == [True, True, False, False]
    lead = torch.tensor([2])
    call = dataclasses.replace(Call.plain(SCORES), query_lead=lead, key_lead=lead)
    removed = torch.isinf(Window(2, first=1).edit_scores(SCORES, call))[0, 0]
    assert removed[5].tolist() == [False, False, False, True, False, False]  # slot 2 holds the first token


@pytest.mark.parametrize("window", [Window(2**63 - 1), Window(2**63 - 20, first=3), Window(1, first=2**63 - 1)])
def test_the_rule_of_a_window_as_large_as_numbers_go(window: Window) -> None:
    """Added to a position, such a size is beyond the largest integer."""
    assert kept(window) == ["111111"] * 6
    assert window.kept_spans(Call.plain(SCORES))[0].cells().all()


def test_a_window_as_wide_as_the_text_changes_nothing() -> None:
    scores = torch.randn(2, 3, 6, 6)
    assert torch.equal(Window(6).apply(scores), torch.softmax(scores, -1))


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 4, "first": -1}])
def test_what_does_not_fit_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ParameterError):
        Window(**options)
