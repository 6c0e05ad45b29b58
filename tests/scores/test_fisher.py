from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import attrim
from attrim.core.call import Call
from attrim.core.plan import Plan, guarded_softmax
from attrim.core.site import Select
from attrim.edits.base import Edit
from attrim.errors import DataError, ParameterError
from attrim.scores.fisher import Fisher
from zoo import HEADED, Animal, batch

LENGTHS = (6, 4)
WINDOW = torch.ones(1, 16, 16).tril(-2).bool() | torch.ones(1, 16, 16).triu(2).bool()


def labelled(animal: Animal, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    inputs = batch(animal, LENGTHS, dtype=dtype)
    if animal.causal:
        return {**inputs, "labels": inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)}
    return {**inputs, "labels": torch.tensor([1, 3])}


@dataclass(frozen=True, eq=False)
class Shift(Edit):
    """An edit of outputs."""

    by: float

    def edit_output(self, output: Tensor, call: Call) -> Tensor:
        return output * 0.5 + self.by


@dataclass(frozen=True, eq=False)
class OneRow(Edit):
    """So much of a change, in one row of weights only; independent of the code that is tested."""

    change: Edit | None
    row: int
    share: float

    def normalise(self, scores: Tensor, call: Call) -> Tensor:
        weights = guarded_softmax(scores)
        changed = weights * 0 if self.change is None else Plan([(self.change, call.heads)]).weights(scores, call)
        share = torch.zeros(weights.shape[-2], 1, dtype=weights.dtype)
        share[self.row] = self.share
        return weights + share * (changed - weights)


@pytest.mark.parametrize("animal", [HEADED[0], HEADED[4]], ids=str)
@pytest.mark.parametrize(
    "change",
    [
        None,
        attrim.Constant(torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(0))),
        attrim.Mask(WINDOW),
        attrim.Threshold(0.2),
    ],
    ids=["removed", "constant", "window", "threshold"],
)
def test_it_is_half_the_squared_slopes_of_the_tokens(animal: Animal, change: Edit | None) -> None:
    """Every token of every head, against central differences of the example's own summed loss."""
    model, inputs = animal.build().double(), labelled(animal, torch.float64)
    score = Fisher(change="removed" if change is None else "replaced", scope="example")
    scores = score(model, [inputs], change)
    step = 1e-3
    for number, length in enumerate(LENGTHS):
        one = {name: tensor[number : number + 1] for name, tensor in inputs.items()}
        one = {name: tensor[:, :length] if tensor.ndim == 2 else tensor for name, tensor in one.items()}
        tokens = length - 1 if animal.causal else 1
        for site in scores.sites:
            total = 0.0
            for row in range(length):
                ends = []
                for share in (step, -step):
                    edit = OneRow(change, row, share, select=Select(heads=[(site.name, 1)]))
                    with torch.no_grad(), attrim.edit(model, edit):
                        ends.append(float(model(**one).loss) * tokens)
                total += ((ends[0] - ends[1]) / (2 * step)) ** 2
            expected = total / 2 / tokens
            assert float(scores.values[site.name][number, 1]) == pytest.approx(expected, rel=2e-2, abs=1e-5)


def test_edits_of_outputs_are_changes_too() -> None:
    model, inputs = HEADED[0].build(), labelled(HEADED[0])
    removed = Fisher()(model, [inputs]).table()
    half = Fisher(change="replaced")(model, [inputs], Shift(0.0)).table()
    torch.testing.assert_close(half, removed / 4)
    nothing = Fisher(change="replaced")(model, [inputs], attrim.Gate(1.0)).table()
    assert nothing.abs().max() == 0
    gone = Fisher(change="replaced")(model, [inputs], attrim.Gate(0.0)).table()
    torch.testing.assert_close(gone, removed, rtol=1e-3, atol=1e-8)
    assert Fisher(change="replaced")(model, [inputs], Shift(1.0)).table().min() > 0


@pytest.mark.parametrize("animal", [HEADED[0], HEADED[4], HEADED[5]], ids=str)
def test_the_examples_of_a_batch_are_scored_as_by_themselves(animal: Animal) -> None:
    model, inputs = animal.build(), labelled(animal)
    together = Fisher(scope="example")(model, [inputs]).table()
    for number, length in enumerate(LENGTHS):
        one = {name: tensor[number : number + 1] for name, tensor in inputs.items()}
        one = {name: tensor[:, :length] if tensor.ndim == 2 else tensor for name, tensor in one.items()}
        torch.testing.assert_close(together[number], Fisher()(model, [one]).table(), rtol=1e-3, atol=1e-7)


def test_what_is_refused() -> None:
    model, inputs = HEADED[0].build(), labelled(HEADED[0])

    def run(change: Any, **batch_of: Tensor) -> None:
        Fisher(change="replaced")(model, [batch_of or inputs], change)

    with pytest.raises(ParameterError, match="chooses heads itself"):
        run(attrim.Gate(0.0, select=Select(heads=[1])))
    with pytest.raises(ParameterError, match="HiddenThreshold changes no head"):
        run(attrim.HiddenThreshold(0.1))
    with pytest.raises(ParameterError, match="'fisher' needs constants"):
        run(None)
    unlabelled = {name: tensor for name, tensor in inputs.items() if name != "labels"}
    with pytest.raises(DataError, match="the score 'fisher' needs a model with a trained head"):
        run(attrim.Gate(0.0), **unlabelled)
