"""Remembered first layers: the same outputs in every architecture, and the model as it was afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from attrim.attention.context import attach
from attrim.attention.prefix import Prefix
from attrim.core.site import Select
from attrim.edits import Threshold
from watching import eager, output_of
from zoo import ZOO, Animal, batch

UNSHARED = {"albert"}  # one layer module is called for all layers


def edited(model: nn.Module, edits: list[Any], inputs: dict[str, Any]) -> torch.Tensor:
    with torch.inference_mode(), attach(model, edits=edits, strict=False):
        return output_of(model(**inputs)).clone()


@pytest.mark.parametrize("animal", ZOO, ids=str)
def test_replayed_layers_change_nothing(animal: Animal) -> None:
    model = eager(animal.build())
    inputs = batch(animal, (7, 4))
    if animal.eats == "pair":
        inputs["use_cache"] = False
    before = {name: dict(module.__dict__) for name, module in model.named_modules()}
    prefix = Prefix(model, inputs)
    with torch.inference_mode(), attach(model, strict=False), prefix.record():
        unedited = output_of(model(**inputs)).clone()
    shared = 0
    for site in prefix.sites:
        edits = [Threshold(0.2, select=Select(names=[site.name.replace("[", "[[]")]))]
        layers = prefix.unedited(edits)
        with prefix.replay(layers):
            replayed = edited(model, edits, inputs)
        torch.testing.assert_close(replayed, edited(model, edits, inputs), rtol=0, atol=0)
        shared += len(layers)
    assert torch.equal(edited(model, [], inputs), unedited)
    assert {name: dict(module.__dict__) for name, module in model.named_modules()} == before
    assert (shared == 0) == (animal.name in UNSHARED)


def test_replayed_layers_do_not_run() -> None:
    animal = next(animal for animal in ZOO if animal.name == "bert")
    model, inputs = eager(animal.build()), batch(animal, (5,))
    prefix = Prefix(model, inputs)
    with torch.inference_mode(), prefix.record():
        model(**inputs)
    layers = prefix.unedited([Threshold(0.2, select=Select(layers=[1]))])
    assert [layer.split(".")[-1] for layer in layers] == ["0"]
    calls = []
    model.get_submodule(layers[0]).attention.register_forward_hook(lambda *_: calls.append(1))
    with torch.inference_mode(), prefix.replay(layers):
        model(**inputs)
    assert not calls
    with pytest.raises(ZeroDivisionError), prefix.replay(layers):
        raise ZeroDivisionError
    model(**inputs)
    assert calls


def test_several_passes_in_one_recording_share_nothing() -> None:
    animal = next(animal for animal in ZOO if animal.name == "bert")
    model, inputs = eager(animal.build()), batch(animal, (5,))
    prefix = Prefix(model, inputs)
    with torch.inference_mode(), prefix.record():
        model(**inputs)
        model(**inputs)
    assert prefix.unedited([Threshold(0.2, select=Select(layers=[1]))]) == []
