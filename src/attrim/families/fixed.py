"""Constant families that know nothing of the model: even, own, previous and next token, and random rows.

Fixed patterns of this kind were tried in place of learned attention by Raganato et al. 2020,
https://arxiv.org/abs/2002.10260.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from ..select import Site
from ..stats.mean import Mean
from .base import FAMILIES, Family

ITSELF = 2.0**-24
"""Too small to change a row that has another key, and all that is left of a row that has none."""


def uniform(site: Site, length: int, mean: Mean | None, seed: int) -> Tensor:
    """Every token the same."""
    return torch.full((site.heads, length, length), 1 / length)


def identity(site: Site, length: int, mean: Mean | None, seed: int) -> Tensor:
    """Every token itself."""
    return torch.eye(length).repeat(site.heads, 1, 1)


def previous(site: Site, length: int, mean: Mean | None, seed: int) -> Tensor:
    """The token before; itself, where that slot is padding or there is none."""
    return _neighbour(site, length, -1)


def following(site: Site, length: int, mean: Mean | None, seed: int) -> Tensor:
    """The token after; itself, where that slot is padding, is forbidden, or there is none."""
    return _neighbour(site, length, 1)


def random(site: Site, length: int, mean: Mean | None, seed: int) -> Tensor:
    """Rows drawn evenly from all rows that sum to 1 (Dirichlet with all parameters 1), fixed by seed and site name."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {site.name}".encode()))
    # Exponential numbers, normalised, are Dirichlet; the cells of a text are too, after its mask is applied.
    waits = torch.empty(site.heads, length, length, dtype=torch.float64).exponential_(generator=generator)
    return waits / waits.sum(-1, keepdim=True)


def _neighbour(site: Site, length: int, offset: int) -> Tensor:
    matrix = torch.diag_embed(torch.ones(max(length - 1, 0)), offset) if length > 1 else torch.zeros(1, 1)
    return (matrix + ITSELF * torch.eye(length)).repeat(site.heads, 1, 1)


FAMILIES.register("uniform")(Family(uniform))
FAMILIES.register("identity")(Family(identity))
FAMILIES.register("previous")(Family(previous))
FAMILIES.register("next")(Family(following))
FAMILIES.register("random")(Family(random, drawn=True))
