"""Rank the cells of average attention, and say how sparse what is left is; cells alone or in square tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..core.site import Site

Sides = int | tuple[int, int]
"""Sides of a tile: so many queries and keys, or queries and keys apart."""


@dataclass(frozen=True)
class PatternFacts:
    """How sparse a pattern is.

    Attributes
    ----------
    nominal : the share of cells that was asked for; None where a mass was.
    cells, removed : the cells that some text may have (structural zeros are none), and how many of them are removed.
    lost_mass, mass : the sum of the averages of removed cells, and of all.
    rows, empty_rows : the rows that have such cells, and how many of them lose all.
    tile : side of the tiles that a block-sparse kernel would compute or skip.
    tiles, empty_tiles : the tiles that have such cells, and how many of them lose all.
    tile_keys : the keys of such a tile where it is not square; ``tile`` are its queries then.
    length : the positions of the longest text.
    """

    nominal: float | None
    cells: int
    removed: int
    lost_mass: float
    mass: float
    rows: int
    empty_rows: int
    tile: int
    tiles: int
    empty_tiles: int
    tile_keys: int | None = None
    length: int | None = None

    @property
    def effective(self) -> float:
        """The share of the cells that is removed."""
        return self.removed / max(self.cells, 1)

    @property
    def tile_sparsity(self) -> float:
        """The share of tiles that need not be computed."""
        return self.empty_tiles / max(self.tiles, 1)

    @property
    def kept_mass(self) -> float:
        """The share of the average attention on cells that are kept."""
        return 1 - self.lost_mass / self.mass if self.mass else 1.0

    def __add__(self, other: PatternFacts) -> PatternFacts:
        counts = ("cells", "removed", "lost_mass", "mass", "rows", "empty_rows", "tiles", "empty_tiles")
        total = {name: getattr(self, name) + getattr(other, name) for name in counts}
        length = max(self.length or 0, other.length or 0) or None
        return PatternFacts(nominal=self.nominal, tile=self.tile, tile_keys=self.tile_keys, length=length, **total)

    def __str__(self) -> str:
        nominal = "" if self.nominal is None else f"nominal {self.nominal:.1%}, "
        return (
            f"{nominal}effective {self.effective:.1%} of the cells removed, "
            f"tiles of {self.tile}{'' if self.tile_keys is None else f' x {self.tile_keys}'} "
            f"{self.tile_sparsity:.1%}, kept mass {self.kept_mass:.1%}, empty rows {self.empty_rows} of {self.rows}"
        )


class Grid:
    """The averages of one site, or of its tiles.

    Parameters
    ----------
    values : float32 ``[H, N, M]``, not negative.
    known : bool ``[H, N, M]``, the cells that some text had.
    heads : the head numbers of the site that they belong to (default: all).
    locked : bool ``[H, N, M]``, known cells that must stay.
    """

    def __init__(
        self,
        site: Site,
        values: Tensor,
        known: Tensor,
        heads: tuple[int, ...] | None = None,
        locked: Tensor | None = None,
    ) -> None:
        self.site, self.values, self.known = site, values, known
        self.heads = tuple(range(site.heads)) if heads is None else heads
        self.locked = torch.zeros_like(known) if locked is None else locked

    def in_tiles(self, size: Sides) -> Grid:
        """The grid of the tiles: their sums; a tile with a cell that must stay must stay."""
        sums = functional.avg_pool2d(_padded(self.values * self.known, size), size) * math.prod(_pair(size))
        return Grid(self.site, sums, self.tiled(size, cells=False), self.heads, tiles_of(self.locked, size))

    def tiled(self, size: Sides, cells: bool = True) -> Tensor:
        """The tiles that have known cells, or all cells of those tiles."""
        tiles = tiles_of(self.known, size)
        return blown_up(tiles, size, self.known.shape) if cells else tiles

    def rounded(self, removed: Tensor, size: Sides) -> Tensor:
        """The removed cells ``[H, N, M]`` in whole tiles: a tile stays when any of its known cells does."""
        fine = removed | ~self.known
        return ~blown_up(tiles_of(~fine, size), size, fine.shape) & (removed | self.tiled(size))

    def noise(self, seed: int) -> Tensor:
        """Random numbers of the shape of the values, from the seed and the site's name alone."""
        generator = torch.Generator().manual_seed(self.site.seed(seed))
        shape = (self.site.heads, *self.values.shape[1:])
        return torch.rand(shape, generator=generator, dtype=torch.float64)[list(self.heads)]

    def facts(self, removed: Tensor, nominal: float | None, tile: Sides) -> PatternFacts:
        """How sparse the grid is without the ``removed`` cells ``[H, N, M]``."""
        kept, known = self.known & ~removed, self.known
        values = self.values.double()
        rows, tiles = known.any(-1), tiles_of(known, tile)
        return PatternFacts(
            nominal=nominal,
            cells=int(known.sum()),
            removed=int((known & removed).sum()),
            lost_mass=float((values * (known & removed)).sum()),
            mass=float((values * known).sum()),
            rows=int(rows.sum()),
            empty_rows=int((rows & ~kept.any(-1)).sum()),
            tile=_pair(tile)[0],
            tile_keys=None if isinstance(tile, int) else tile[1],
            tiles=int(tiles.sum()),
            empty_tiles=int((tiles & ~tiles_of(kept, tile)).sum()),
            length=max(int(axis.sum()) for axis in (known.any(0).any(0), known.any(0).any(1))),
        )

    def with_unseen(self, removed: Tensor, unseen: str | Tensor, tile: Sides | None) -> Tensor:
        """The removed cells, with those that no text had; a tile that has known cells goes or stays as a whole.

        Parameters
        ----------
        unseen : ``keep`` or ``prune``, or the share that is removed at each distance, ``[H, 2 R + 1]``.
        """
        open_cells = ~self.known if tile is None else ~self.tiled(tile)
        if isinstance(unseen, str):
            return removed | open_cells if unseen == "prune" else removed & ~open_cells
        queries, keys = removed.shape[1:]
        place = torch.arange(keys)[None, :] - torch.arange(queries)[:, None] + unseen.shape[1] // 2
        return torch.where(open_cells, unseen[:, place] > 0.5, removed)

    def all_heads(self, rows: Tensor) -> Tensor:
        """Rows of the ranked heads among all heads of the site; zero, or kept, for the others."""
        full = rows.new_zeros(self.site.heads, *rows.shape[1:])
        full[list(self.heads)] = rows
        return full


def lowest(values: Tensor, eligible: Tensor, counts: Tensor) -> Tensor:
    """Bool ``[..., n]``: the ``counts`` ``[..., 1]`` smallest of the eligible values; the last of equal ones first."""
    order = values.masked_fill(~eligible, float("inf")).flip(-1).argsort(dim=-1, stable=True)
    first = (torch.arange(values.shape[-1]) < counts).expand(order.shape)
    return torch.zeros_like(eligible).scatter(-1, order, first).flip(-1) & eligible


def surplus(values: Tensor, known: Tensor, mass: float) -> Tensor:
    """Int64 ``[G, 1]``: how many of the known values ``[G, n]`` can go when the largest keep a share of their sum."""
    ranked = (values.double() * known).sort(-1, descending=True).values
    before = ranked.cumsum(-1) - ranked
    total = ranked.sum(-1, keepdim=True)
    kept = (before < mass * total * (1 - 1e-12)).sum(-1, keepdim=True)
    return known.sum(-1, keepdim=True) - kept


def first_of_mass(noise: Tensor, values: Tensor, eligible: Tensor, budget: Tensor) -> Tensor:
    """Bool ``[G, n]``: eligible cells in the order of ``noise``, as many as have at most the ``budget`` together."""
    order = noise.masked_fill(~eligible, float("inf")).argsort(dim=-1, stable=True)
    spent = (values.double() * eligible).gather(-1, order).cumsum(-1)
    return torch.zeros_like(eligible).scatter(-1, order, spent <= budget * (1 + 1e-12)) & eligible


def nearest_percentile(values: Tensor, tau: float) -> float:
    """The value at index ``round((q - 1) * tau)`` of the q sorted values, exact halves to the even index."""
    return float(np.percentile(values.double().numpy(), 100 * tau, method="nearest"))


def bounding_block(values: Tensor, as_coded: bool = False) -> tuple[int, int]:
    """How many rows and columns of ``[H, N, M]`` hold everything that is not zero.

    Parameters
    ----------
    as_coded : the search of the released code ends one short when the last row (or column) is not zero.
    """
    total = values.sum(0)
    sizes = []
    for axis in (1, 0):
        filled = total.ne(0).any(axis).nonzero()
        end = int(filled[-1]) + 1 if len(filled) else 0
        sizes.append(min(end, total.shape[1 - axis] - 1) if as_coded else end)
    return sizes[0], sizes[1]


def _pair(size: Sides) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _padded(values: Tensor, size: Sides) -> Tensor:
    """Values ``[H, N, M]`` filled up with zeros to whole tiles."""
    rows, columns = (-length % side for length, side in zip(values.shape[1:], _pair(size), strict=True))
    return functional.pad(values, (0, columns, 0, rows))


def tiles_of(flags: Tensor, size: Sides) -> Tensor:
    """Bool ``[H, ceil(N / size), ceil(M / size)]``: the tiles with any true cell of ``flags`` ``[H, N, M]``."""
    return functional.max_pool2d(_padded(flags.float(), size), size) > 0


def blown_up(tiles: Tensor, size: Sides, shape: tuple[int, ...]) -> Tensor:
    """Tiles back to cells ``[H, N, M]`` of the given shape."""
    queries, keys = _pair(size)
    return tiles.repeat_interleave(queries, 1).repeat_interleave(keys, 2)[:, : shape[1], : shape[2]]


def tile_arrays(removed: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The keep-masks of the block-sparse prototype (fine, block and coarse) from removed cells ``[H, N, M]``.

    Returns
    -------
    fine ``[H, N, M]``, block ``[H, ceil(N / size), ceil(M / size)]`` and coarse ``[H, N, M]``, all True where kept; a
    tile is kept when any of its cells is. :func:`attrim.stats.npy.write_layers` writes them as files.
    """
    fine = ~removed
    block = tiles_of(fine, size)
    return fine, block, blown_up(block, size, fine.shape)
