"""Baked models are copied and pickled like any other: their classes are in no module, and are made again."""

from __future__ import annotations

import abc
import copy
import io
import json
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch

import attrim
from attrim.baking.classes import mixed
from attrim.baking.model import BakedModel
from attrim.edits import Constant, Edit, Mask, Window
from baked_models import ANIMALS, edits_for, noise
from watching import output_of
from zoo import batch

MIXED: list[Edit] = [Constant(noise(4, 40, 40), heads=[0]), Mask(noise(4, 12, 12) < 0.4), Window(5, first=1)]
EDITS: dict[str, list[Edit]] = {
    "bert": [*edits_for("bert"), Window(3)],
    "deberta": edits_for("deberta"),  # constant heads beside those of the module
    "bloom": edits_for("bloom"),  # a position bias for some of the heads
    "gpt2": MIXED,
    "bart": MIXED,  # parts that carry edits when they are called alone
    "lxmert": edits_for("lxmert"),  # a module of two sites
}


def saved_by_torch(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": saved_by_torch,
    "multiprocessing": lambda model: pickle.loads(ForkingPickler.dumps(model)),
}


@pytest.mark.parametrize("name", EDITS)
def test_copies_are_the_same_model(name: str, tmp_path: Path) -> None:
    animal = ANIMALS[name]
    baked = attrim.bake(animal.build(), *EDITS[name])
    inputs = batch(animal, (7, 4))
    with torch.no_grad():
        expected = output_of(baked(**inputs))
        for way, copied in WAYS.items():
            other = copied(baked)
            assert isinstance(other, BakedModel), way
            assert type(other).__name__ == type(baked).__name__
            assert (other.attrim_stock, other.attrim_layers) == (baked.attrim_stock, baked.attrim_layers)
            assert torch.equal(output_of(other(**inputs)), expected), way
            other.save_pretrained(tmp_path / way)
            assert torch.equal(output_of(attrim.load(tmp_path / way)(**inputs)), expected), way
    sidecars = [json.loads((tmp_path / way / "baked.json").read_text()) for way in WAYS]
    assert all(sidecar["layers"] == sidecars[0]["layers"] for sidecar in sidecars)


def test_a_copy_has_weights_and_masks_of_its_own() -> None:
    baked = attrim.bake(ANIMALS["bert"].build(), Mask(noise(4, 12, 12) < 0.4))
    other = WAYS["pickle"](baked)
    before = {name: tensor.clone() for name, tensor in baked.state_dict().items()}
    with torch.no_grad():
        for tensor in other.state_dict().values():
            tensor.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in baked.state_dict().items())


def test_generation_and_parts_of_a_pickled_model() -> None:
    baked = attrim.bake(ANIMALS["llama"].build(), Window(3, first=1))
    other = WAYS["pickle"](baked)
    words: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    tokens = torch.randint(5, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    assert torch.equal(*(model.generate(tokens, attention_mask=mask, **words) for model in (baked, other)))
    part = WAYS["pickle"](baked.base_model)  # without the head, with the window
    with torch.no_grad():
        assert torch.equal(part(tokens).last_hidden_state, baked.base_model(tokens).last_hidden_state)


class Loud:
    """Something to mix in."""

    def loud(self) -> str:
        return str(self.quiet()).upper()  # type: ignore[attr-defined]


class Quiet(abc.ABC):  # noqa: B024
    """A class whose type is not ``type``."""

    def quiet(self) -> str:
        return "here"


class Named(mixed(Loud, Quiet)):  # type: ignore[misc]
    """A subclass of a made class that pickle can name."""


@pytest.mark.parametrize("kind", [mixed(Loud, Quiet), Named], ids=["made", "named"])
def test_classes_of_other_types(kind: type) -> None:
    assert pickle.loads(pickle.dumps(kind)) is kind
    assert pickle.loads(pickle.dumps(kind())).loud() == "HERE"
