"""Edits of weights in models: the fused kernel that edits rows equals the reference that edits tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attrim
from attrim.attention.context import attach
from attrim.core.call import Call
from attrim.core.site import Select
from attrim.edits.base import Edit
from attrim.kernels import attend as kernel
from attrim.kernels import team
from attrim.stats import Histogram, Mean, Values
from watching import noted_outputs, output_of
from zoo import ZOO, Animal, batch

pytestmark = pytest.mark.skipif(
    not team.available() or team.PATHS[team.path()] == "torch", reason="the fused pass is not used here"
)
NAMES = ("bert", "gpt2", "llama", "bart", "vit")
ANIMALS = [animal for animal in ZOO if animal.name in NAMES]
METHOD = "linear-slog-clamped-midval"


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What the kernel returned, to see that it ran."""
    return noted_outputs(monkeypatch, kernel)


@dataclass(frozen=True, eq=False)
class Margin(Edit):
    """Changes nothing; notes how near the weights come to numbers that decide, relative to these."""

    edges: Tensor
    found: list[float] = field(default_factory=list)

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        cells = weights.detach()[call.allowed.expand_as(weights)].double()
        self.found.append(float(((cells[:, None] - self.edges).abs() / self.edges).min()))
        return weights


def bar(shift: float) -> tuple[Edit, Tensor]:
    return attrim.Threshold(0.05 * shift), torch.tensor([0.05 * shift], dtype=torch.float64)


def codebook(shift: float) -> tuple[Edit, Tensor]:
    edit = attrim.Quantize(METHOD, bits=3, prune=1e-3 * shift)
    assert edit.codebook is not None
    return edit, edit.codebook.edges


def clear_of_weights(make: Any, model: nn.Module, inputs: dict[str, Tensor]) -> Edit:
    """An edit for which no weight is so near to a bar or an edge that rounding decides what becomes of it."""
    for number in range(50):
        edit, edges = make(1 + number / 100)
        margin = Margin(edges)
        with torch.no_grad(), attrim.edit(model, margin, edit):
            model(**inputs)
        if min(margin.found) > 1e-5:
            return edit
    raise AssertionError("the weights are everywhere")


def assert_same(found: Tensor, wanted: Tensor, inputs: dict[str, Tensor]) -> None:
    real = inputs.get("attention_mask")
    if real is not None and found.shape[:2] == real.shape:  # what padding gives is nobody's business
        wanted, found = (tensor * real[:, :, None] for tensor in (wanted, found))
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("make", [bar, codebook])
@pytest.mark.parametrize("animal", ANIMALS, ids=str)
def test_equals_the_reference(animal: Animal, make: Any, used: list[Tensor]) -> None:
    for side in animal.sides:
        model, inputs = animal.build(), batch(animal, (19, 6), side=side)
        edit = clear_of_weights(make, model, inputs)
        assert not used, "the kernel does not know the edit that looks at the weights"
        with attrim.edit(model, edit):
            reference = output_of(model(**inputs)).detach()
            assert not used, "gradients need the reference"
            with torch.no_grad():
                found = output_of(model(**inputs))
        assert used
        used.clear()
        assert_same(found, reference, inputs)
        with torch.no_grad():
            assert not torch.allclose(output_of(model(**inputs)), found, atol=1e-3), "the edit does something"


@pytest.mark.parametrize("animal", ANIMALS, ids=str)
def test_stats_see_what_edits_leave(animal: Animal, used: list[Tensor]) -> None:
    model, inputs = animal.build(), batch(animal, (19, 6))
    edit = clear_of_weights(bar, model, inputs)
    kept: list[dict[str, Tensor]] = []
    for fast in (False, True):
        stats = Histogram(), Mean()
        with torch.no_grad(), attach(model, edits=[edit], stats=stats, fast=fast):
            model(**inputs)
        assert bool(used) is fast
        kept.append(
            {f"{stat.registered_name}/{name}": each for stat in stats for name, each in stat.state()[0].items()}
        )
    for name, reference in kept[0].items():
        found = kept[1][name]
        if name.startswith("mean/") and name.endswith("sums"):
            torch.testing.assert_close(found.double() / 2**36, reference.double() / 2**36, atol=1e-5, rtol=1e-5)
        elif name.endswith("/counts") and name.startswith("histogram"):
            assert torch.equal(found[:, 0], reference[:, 0]), "what became zero"
            assert torch.equal(found.sum(-1), reference.sum(-1))
        elif not name.endswith("below_uniform"):  # rounding may decide which side of 1/n a weight is on
            assert torch.equal(found, reference), name


def test_measuring_inside_of_an_edit_is_as_fast(used: list[Tensor]) -> None:
    model = attrim.load_model("tiny-bert")
    inputs = {"input_ids": torch.arange(5, 25)[None]}
    with attrim.edit(model, attrim.Threshold(0.05)):
        attrim.measure(model, [inputs], Histogram())
    assert used


def test_what_the_kernel_cannot_do_is_left_to_the_reference(used: list[Tensor]) -> None:
    animal = next(animal for animal in ZOO if animal.name == "bert")
    model, inputs, bar = animal.build(), batch(animal), attrim.Threshold(0.1)
    with torch.no_grad():
        with attrim.edit(model, bar):
            assert len(model(**inputs, output_attentions=True).attentions) == 2, "who asks for weights gets them"
        with attrim.edit(model, bar, attrim.Gate(0.5)):
            model(**inputs)
        with attrim.edit(model, attrim.Threshold(top=2)):
            model(**inputs)
        with attach(model, edits=[bar], stats=[Values(moment="scores", low=-100.0)], fast=True):
            model(**inputs)
        with attach(model, edits=[bar], stats=[Histogram()]):
            model(**inputs)
        with attrim.edit(model.train(), bar):
            model(**inputs)
        model.eval().set_attn_implementation("eager")
        with attrim.edit(model, bar):
            model(**inputs)
        assert not used
        model.set_attn_implementation("sdpa")
        with attrim.edit(model, bar, attrim.Quantize(METHOD, bits=3, select=Select(layers=(1,), heads=(0, 2)))):
            model(**inputs)
    assert len(used) == 2
