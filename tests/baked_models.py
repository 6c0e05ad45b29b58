"""Baked models of the zoo, and the edits that they are baked with."""

from __future__ import annotations

from typing import Any

import torch

import attrim
from attrim.edits import Constant, Edit, Gate
from zoo import ZOO

POSITIONS = 40
ANIMALS = {animal.name: animal for animal in ZOO}


def noise(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(3))


def edits_for(name: str) -> list[Edit]:
    gate = Gate(torch.tensor([1.0, 0.0, 0.5, 1.0]))
    return [gate] if name in ("bloom", "xlnet") else [Constant(noise(4, POSITIONS, POSITIONS), heads=[0, 1]), gate]


def baked_of(name: str, *edits: Edit) -> tuple[Any, Any]:
    model = ANIMALS[name].build()
    return model, attrim.bake(model, *(edits or edits_for(name)))
