"""Heads in a random order: the control that any score has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..attention.discover import find_sites
from ..core.site import Site
from .base import Score, ScoreInputs, Scores, register


def random_scores(sites: Sequence[Site], seed: int = 0, examples: int | None = None) -> Scores:
    """Numbers from 0 to 1 that depend on nothing but the seed and the name of the site; others for each example."""
    leading = () if examples is None else (examples,)
    values = {
        site.name: torch.rand(
            (*leading, site.heads),
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
    scopes = ("dataset", "example")
    units = ("head", "site", "block")
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scope == "example":
            object.__setattr__(self, "needs", frozenset({"batches"}))

    def compute(self, given: ScoreInputs) -> Scores:
        """See :meth:`Score.compute`."""
        sites = find_sites(given.model)
        examples = None
        if self.scope == "example":
            examples = sum(len(next(iter(batch.values()))) for batch in given.batches)
        return self.scores(random_scores(sites, self.seed, examples).values, sites)
