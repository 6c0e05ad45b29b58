"""Heads in a random order: the control that any score has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..attention.discover import find_sites
from ..core.site import Site
from .base import Score, ScoreInputs, Scores, register


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
@dataclass(frozen=True, kw_only=True)
class RandomOrder(Score):
    """Random numbers, for comparison.

    Parameters
    ----------
    seed : another seed gives other numbers.
    """

    needs = frozenset()
    units = ("head", "site", "block")
    seed: int = 0

    def compute(self, given: ScoreInputs) -> Scores:
        """See :meth:`Score.compute`."""
        sites = find_sites(given.model)
        return self.scores(random_scores(sites, self.seed).values, sites)
