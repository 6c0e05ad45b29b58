"""Timing two models in turns."""

from __future__ import annotations

import time

import pytest
import torch

import attrim
from attrim.baking.cost import in_turns, judge_speed, made_up
from attrim.models.loading import load_model


class Waiting(torch.nn.Module):
    """A model that takes its time."""

    def __init__(self, model: torch.nn.Module, seconds: float) -> None:
        super().__init__()
        self.model, self.seconds = model, seconds

    def forward(self, **inputs: torch.Tensor) -> None:
        time.sleep(self.seconds)


def test_the_slower_model_is_told_from_the_faster_one() -> None:
    model = load_model("tiny-bert")
    example = made_up(model, 8)
    quick, slow = Waiting(model, 0.0), Waiting(model, 0.02)
    assert attrim.baking.speed(quick, slow, rounds=4, example=example).slower
    found = attrim.baking.speed(slow, quick, rounds=4, example=example)
    assert found.ratio > 1
    assert not found.slower


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        ([1.3] * 7, "slower"),
        ([1.0] * 7, ""),
        ([0.7] * 4 + [1.5] * 3, ""),
        ([1.01] * 7, ""),  # not noticeable
        ([1.085] * 4 + [0.8] * 3, "uncertain"),  # was accepted without a word
        ([1.085] * 24 + [0.8] * 11, "slower"),
        ([2.0], "uncertain"),  # one round says nothing
    ],
)
def test_slower_is_said_where_chance_does_not_explain_it(after: list[float], verdict: str) -> None:
    found = judge_speed([1.0] * len(after), after)
    assert (found.slower, found.uncertain) == (verdict == "slower", verdict == "uncertain")


def test_more_rounds_are_timed_where_the_first_do_not_tell() -> None:
    model = load_model("tiny-bert")
    found = attrim.baking.speed(Waiting(model, 0.0), Waiting(model, 0.02), rounds=1, example=made_up(model, 8))
    assert found.slower
    assert found.rounds == 5


def test_rounds_go_there_and_back() -> None:
    calls: list[str] = []
    seconds = in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert [len(taken) for taken in seconds.values()] == [3, 3]


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2"])
def test_made_up_inputs_have_the_size_that_was_asked_for(name: str) -> None:
    inputs = made_up(load_model(name), 11, 3)
    assert inputs["input_ids"].shape == inputs["attention_mask"].shape == (3, 11)
