"""Heads in a random order: the control that any score has to beat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..attention.discover import find_sites
from ..core.site import Site
from .base import Scores, register


def random_scores(sites: Sequence[Site], seed: int = 0) -> Scores:
    """Numbers from 0 to 1 that depend on nothing but the seed and the name of the site."""
    values = {
        site.name: torch.rand(
            site.heads,
            generator=torch.Generator().manual_seed(site.seed(seed)),
            dtype=torch.float64,
        )
        for site in sites
    }
    return Scores(values, sites, "random")


@register("random")
def random(
    model: nn.Module, batches: Iterable[Mapping[str, Any]] = (), constants: Any = None, *, seed: int = 0
) -> Scores:
    """Random numbers, for comparison."""
    return random_scores(find_sites(model), seed)
