"""What became of the heads of every site of a baked model, and in which way they are computed on this machine."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..attention.discover import find_sites
from ..attention.dropping import plan_costs
from ..core.modes import in_mode
from ..core.site import Site
from ..edits.base import Edit
from ..edits.saving import CARRIER
from ..kernels.sparse import PlanCost
from ..kernels.ways import Noted, noting
from .cost import made_up


@dataclass(frozen=True)
class SiteHeads:
    """The heads of one site, as many as it had before.

    Attributes
    ----------
    site : its name.
    dense : heads that attend as before.
    sparse : heads from which a kernel leaves out what their pattern removes.
    masked : heads whose pattern is a mask on every score, because that is faster.
    edited : heads of which every score is computed and then edited, because no kernel does what their edits do.
    constant, removed : heads with a fixed matrix, and those that are gone.
    dense_by_kernel : of the dense ones, those that the kernel computes, too.
    density : the share of the allowed cells that the patterned heads keep; None without any.
    union_density : the share of them that is computed, 16 queries with their common keys at a time.
    flops, bytes : of the plan of all heads that attend there, for one text.
    seconds, dense_seconds : of these heads, expected from what was measured on this machine: as they are, and by SDPA
        as in the model before; None where nothing is left out.
    """

    site: str
    dense: int
    sparse: int = 0
    masked: int = 0
    edited: int = 0
    constant: int = 0
    removed: int = 0
    dense_by_kernel: int = 0
    density: float | None = None
    union_density: float | None = None
    flops: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    dense_seconds: float | None = None

    @property
    def gain(self) -> float | None:
        """How many times as fast the attention operation should be."""
        return None if not self.seconds or self.dense_seconds is None else self.dense_seconds / self.seconds

    def __str__(self) -> str:
        words = {
            "dense": " by the kernel" if self.dense and self.dense_by_kernel == self.dense else "",
            "sparse": "" if self.density is None else f" (density {self.density:.2f})",
            "masked": "" if self.density is None or self.sparse else f" (density {self.density:.2f})",
            **dict.fromkeys(("edited", "constant", "removed"), ""),
        }
        return ", ".join(f"{count} {name}{more}" for name, more in words.items() if (count := getattr(self, name)))


def site_heads(model: Any, baked: Any, length: int = 128, batch: int = 8, example: Any = None) -> list[SiteHeads]:
    """What became of the heads of each site, from one pass of the baked model.

    Parameters
    ----------
    model : before it was baked.
    length, batch : size of the input that is made up (for text).
    example : keyword arguments of a forward pass to look at instead.
    """
    inputs = made_up(model, length, batch) if example is None else example
    with torch.inference_mode(), in_mode(baked, training=False), noting() as notes:
        baked(**inputs)
    carrier = getattr(baked.base_model, CARRIER, None)
    edits: Sequence[Edit] = () if carrier is None else carrier.edits_for(baked)
    sites = {site.name: site for site in find_sites(baked)}
    noted = {note.site.name: note for note in notes if isinstance(note.site, Site)}
    costs = _costs(sites, noted, edits, length)
    touched = _touched(sites.values(), edits)
    layers = {site.name: layer for layer in baked.attrim_layers for site in layer.sites}
    found = []
    for site in find_sites(model):
        layer, note, count = layers.get(site.name), noted.get(site.name), touched.get(site.name, 0)
        kept = site.heads if layer is None else len(layer.kept)
        constant = 0 if layer is None else len(layer.constant)
        rest = {"constant": constant, "removed": site.heads - kept - constant}
        if note is None:
            found.append(SiteHeads(site.name, kept - count, edited=count, **rest))
        else:
            found.append(_planned(site.name, kept, note, costs[site.name], rest))
    return found


def _costs(
    sites: Mapping[str, Site], noted: Mapping[str, Noted], edits: Sequence[Edit], length: int
) -> dict[str, tuple[PlanCost, ...]]:
    """What the plans of the sites cost that have one."""
    if not noted:
        return {}
    sizes = {site: noted[name].size if name in noted else 0 for name, site in sites.items()}
    removing = [edit for edit in edits if edit.overrides("drops")]
    return {site.name: costs for site, costs in plan_costs(sizes, removing, length).items()}


def _touched(sites: Any, edits: Sequence[Edit]) -> dict[str, int]:
    """How many heads of each site the edits are about."""
    heads: dict[str, set[int]] = {}
    for edit in edits:
        for site, own in edit.select.resolve(sites).items():
            heads.setdefault(site.name, set()).update(own)
    return {name: len(own) for name, own in heads.items()}


def _planned(name: str, kept: int, note: Noted, costs: Sequence[PlanCost], rest: Mapping[str, int]) -> SiteHeads:
    """The heads of a site that has a plan."""
    total = functools.reduce(operator.add, costs)
    partial = [cost for cost in costs if cost.kept < cost.allowed]
    whole = {head for cost in costs if cost.kept == cost.allowed for head in cost.heads}
    by_kernel = set(note.choice.heads["sparse"])
    share = functools.reduce(operator.add, partial) if partial else None
    return SiteHeads(
        name,
        dense=len(whole),
        sparse=len(by_kernel - whole),
        masked=kept - len(whole | by_kernel),
        dense_by_kernel=len(by_kernel & whole),
        density=None if share is None else share.density,
        union_density=None if share is None else share.union_density,
        flops=total.flops,
        bytes=total.bytes,
        seconds=note.choice.seconds,
        dense_seconds=note.choice.dense,
        **rest,
    )
