"""Records of sites: when they are made, and for which sites."""

from __future__ import annotations

import pytest
import torch

from attrim.attention.context import attach
from attrim.core.site import Site
from attrim.errors import SelectionError
from attrim.stats.histogram import Histogram
from attrim.stats.mean import Mean
from zoo import ZOO, batch


def test_a_site_that_never_fires_has_no_record() -> None:
    """Memory is taken before the model runs, but what did not run was not watched."""
    animal = next(animal for animal in ZOO if animal.name == "bart")
    model, stats = animal.build(), [Histogram(), Mean()]
    inputs = batch(animal)
    with torch.no_grad(), attach(model, stats=stats, strict=False):
        model.get_encoder()(inputs["input_ids"], attention_mask=inputs["attention_mask"])
    for stat in stats:
        assert {site.role for site in stat.sites} == {"encoder"}


def test_other_heads_than_those_prepared_get_their_own_record() -> None:
    stat, site = Histogram(), Site("plain", "encoder", 0, 4)
    stat.prepare(site, (0, 1, 2))
    assert stat.record(site, (1, 3)).tensors["counts"].shape[0] == 2
    stat.prepare(site, (0,))  # too late: what was counted stays
    with pytest.raises(SelectionError, match="use a new stat"):
        stat.record(site, (0,))
