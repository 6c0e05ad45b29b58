"""The average attention of all heads as thumbnails, and of those that fit at full size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.charts import file_name
from ...core.site import Site
from ...stats.display import site_label
from ...stats.mean import Mean
from .packing import Curve, PackedType, pack, packed_size, pool

SIDE = 64
"""Cells that a side of a thumbnail has at most."""
CELLS = 600_000
"""Cells of all thumbnails together: larger models have smaller ones."""
FULL = 2_000_000
"""Characters that matrices at full size take by default."""
FEW = 8
"""Heads at full size, where not all fit."""


@dataclass(frozen=True)
class HeadPatterns:
    """Matrices of some sites of one shape: ``[sites * heads, queries, keys]``.

    Attributes
    ----------
    rows : one label for each site.
    present : whether the site of a row has the head of a column, ``[sites * heads]``.
    """

    name: str
    title: str
    label: str
    rows: Sequence[str]
    heads: int
    present: Sequence[bool]
    matrices: NDArray[Any]

    def payload(self, room: int, everything: bool = False) -> dict[str, Any]:
        """JSON values for the page (static/README.md).

        Parameters
        ----------
        room : characters for matrices at full size.
        everything : all matrices at full size, whatever room they take.
        """
        count, queries, keys = self.matrices.shape
        side = max(8, min(SIDE, int((CELLS / max(1, count)) ** 0.5)))
        step = -(-max(queries, keys) // side)
        chosen, type = self._chosen(room, everything)
        curve: Curve = "root" if type == "uint8" else "linear"
        full = {f"{at // self.heads},{at % self.heads}": pack(self.matrices[at], type, curve) for at in chosen}
        return {
            "name": self.name,
            "title": self.title,
            "label": self.label,
            "rows": list(self.rows),
            "columns": [str(head) for head in range(self.heads)],
            "present": list(self.present),
            "pooled": step,
            "thumbnails": pack(pool(self.matrices, step), "uint8", "root"),
            "full": full,
            "queries": [],
            "keys": [],
        }

    def _chosen(self, room: int, everything: bool) -> tuple[list[int], PackedType]:
        """Which matrices are embedded at full size, and how: all of them if they fit, else the most telling."""
        there = [at for at, present in enumerate(self.present) if present]
        cells = self.matrices.shape[1] * self.matrices.shape[2]
        types: tuple[PackedType, ...] = ("float16", "uint8")
        for type in types:
            if len(there) * packed_size(cells, type) <= room:
                return there, type
        if everything:
            return there, "uint8"
        fit = min(FEW, room // packed_size(cells, "uint8"))
        return sorted(self._telling(there, fit)), "uint8"

    def _telling(self, there: Sequence[int], count: int) -> list[int]:
        """The heads that look most sharply at something, and a few that look everywhere."""
        sharpness = {at: float(np.nanmean(self.matrices[at].max(-1))) for at in there}
        ranked = sorted(there, key=lambda at: -sharpness[at])
        spread = count // 4
        return ranked[: count - spread] + (ranked[-spread:] if spread else [])


def patterns_of(mean: Mean, title: str = "Average attention") -> list[HeadPatterns]:
    """The average patterns of a stat, for each role and shape of its sites."""
    groups: dict[tuple[str, tuple[int, int]], list[Site]] = {}
    for site in mean.sites:
        shape = mean.matrix(site).shape
        groups.setdefault((site.role, (shape[1], shape[2])), []).append(site)
    roles = [role for role, _ in groups]
    found = []
    for (role, size), sites in groups.items():
        heads = max(site.heads for site in sites)
        matrices = np.zeros((len(sites) * heads, *size))
        present = [False] * (len(sites) * heads)
        for row, site in enumerate(sites):
            values = mean.matrix(site).numpy()
            for head in mean.of(site).heads:
                matrices[row * heads + head] = values[head]
                present[row * heads + head] = True
        named = f", {size[0]} x {size[1]}" if roles.count(role) > 1 else ""
        found.append(
            HeadPatterns(
                name=file_name("average-patterns", role, named.replace(" ", "").lstrip(",")),
                title=f"{title}, {role}{named}: all heads" if len(groups) > 1 else f"{title}: all heads",
                label="average attention weight",
                rows=[site_label(site) for site in sites],
                heads=heads,
                present=present,
                matrices=matrices,
            )
        )
    return found
