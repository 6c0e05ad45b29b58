"""Baked equals edited, on every architecture that can be baked and with every kind of input."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attrim
from attrim.core.site import Select
from attrim.edits import Constant, Edit, Gate, Window
from attrim.errors import ParameterError, SiteError
from watching import assert_same, eager, output_of
from zoo import ZOO, Animal, batch

POSITIONS = 32
NO_GATE = {"fsmt": "as wide as the hidden states", "torch_encoder": "models of transformers"}
NO_CONSTANT = NO_GATE | dict.fromkeys(("xlnet", "mpt", "bloom"), "one piece of code")
SDPA = {"bert", "distilbert", "modernbert", "gpt2", "llama", "mistral", "bart", "t5", "vit", "clip"}


def noise(heads: int, seed: int = 0, low: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(heads, POSITIONS, POSITIONS, generator=generator) * (1 - low) + low


def constants(model: Any, heads: Any = None, **options: Any) -> Constant:
    """Other matrices at every site."""
    sites = attrim.sites(model)
    matrices = {site.name: noise(site.heads, seed) for seed, site in enumerate(sites)}
    return Constant(matrices, select=Select(heads=heads), **options)


EDITS = {
    "constant-all": lambda model: [constants(model)],
    "constant-some": lambda model: [constants(model, [0, 2, 3])],
    "gate-group": lambda model: [Gate(0, select=Select(heads=[2, 3]))],
    "gate-one": lambda model: [Gate(0, select=Select(heads=[1]))],
    "gate-all": lambda model: [Gate(0)],
    "gate-layer": lambda model: [Gate(0, select=Select(layers=[1]))],
    "gate-half": lambda model: [Gate(torch.tensor([0.5, 0.0, 2.0, 1.0]))],
    "both": lambda model: [constants(model, [0, 3]), Gate(torch.tensor([1.0, 0.0, 1.0, 0.5]))],
}  # fmt: skip


def compare(animal: Animal, model: Any, edits: list[Edit], baked: Any, lengths: tuple[int, ...], side: str) -> None:
    inputs: dict[str, Any] = batch(animal, lengths, side=side)
    if animal.eats == "pair":
        inputs["use_cache"] = False
    with torch.no_grad():
        with attrim.edit(model, *edits):
            expected = output_of(model(**inputs))
        assert_same(output_of(baked(**inputs)), expected, animal, lengths, side, torch.float32)


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("animal", ZOO, ids=str)
def test_baked_equals_edited(animal: Animal, name: str) -> None:
    model = eager(animal.build())
    if name == "gate-layer" and animal.name == "albert":
        with pytest.raises(SiteError, match="one module"):
            attrim.bake(model, *EDITS[name](model))
        return
    refusals = NO_CONSTANT if name in ("constant-all", "constant-some", "both") else NO_GATE
    if animal.name in refusals:
        with pytest.raises(attrim.AttrimError, match=refusals[animal.name]):
            attrim.bake(
                model, *([Gate(0, select=Select(heads=[1]))] if animal.name == "torch_encoder" else EDITS[name](model))
            )
        return
    edits = EDITS[name](model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    baked = attrim.bake(model, *edits)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    for side in animal.sides:
        for lengths in ((7, 7), (7, 4), (5,)):
            compare(animal, model, edits, baked, lengths, side)
    if name != "gate-half":
        assert sum(p.numel() for p in baked.parameters()) < sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["constant-some", "both"])
@pytest.mark.parametrize("animal", [animal for animal in ZOO if animal.name in SDPA], ids=str)
def test_baked_on_fused_attention(animal: Animal, name: str) -> None:
    model = animal.build()
    assert model.config._attn_implementation == "sdpa"
    edits = EDITS[name](model)
    baked = attrim.bake(model, *edits)
    for side in animal.sides:
        for lengths in ((7, 7), (7, 4), (5,)):
            compare(animal, model, edits, baked, lengths, side)


@pytest.mark.parametrize("number", [torch.nan, -torch.inf])
@pytest.mark.parametrize("edit", [Window(3), Gate(0, select=Select(heads=[1]))], ids=["carried", "cut"])
def test_weights_that_are_not_finite_are_refused(edit: Edit, number: float) -> None:
    model = next(animal for animal in ZOO if animal.name == "bert").build()
    name, weights = list(model.named_parameters())[5]
    with torch.no_grad():
        weights.view(-1)[0] = number
    with pytest.raises(ParameterError, match=f"{name}.*holds NaN or infinity"):
        attrim.bake(model, edit)
