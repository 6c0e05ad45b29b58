"""One sparse pattern for every input, from average attention (Attention Pruning, https://arxiv.org/abs/2012.02030)."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..core.call import Call
from ..core.site import Site
from ..core.text import describe
from ..errors import ArtefactError, DataError, ParameterError, ShapeError, shorten
from ..kernels.rules import KeptSpans
from ..stats.mean import Mean
from ..stats.npy import is_npy, read_averages
from .base import Edit, register
from .constant import load_averages
from .mask import Empty, Mask, Unseen, removed_by_distance
from .persite import check_matrices
from .ranking import (
    Grid,
    PatternFacts,
    Sides,
    blown_up,
    bounding_block,
    first_of_mass,
    lowest,
    nearest_percentile,
    surplus,
    tiles_of,
)
from .window import Window, outside_window

Scope = Literal["model", "layer", "head", "row"]
Choose = Literal["weakest", "random", "random-mass"]
Tiles = Literal["round", "rank"]
AsCoded = Literal["no", "transformer-xl", "fairseq", "bert", "llama"]
TILE = 32
"""The tile that is reported on where none is chosen: the block of the released sparse kernel."""


def load_pattern_averages(source: str) -> Mean:
    """Averages from a folder of stats, or from a ``.npy`` file of the released code (:mod:`attrim.stats.npy`)."""
    if is_npy(source):
        return read_averages(source)
    averages = load_averages(source)
    if not isinstance(averages, Mean):
        raise ArtefactError(f"The averages in {source!r} have no counts; measure them with the stat 'mean'.")
    return averages


@register("pattern")
@dataclass(frozen=True, eq=False)
class SparsePattern(Edit):
    """Remove the cells that get the least attention on average, the same for every input (arXiv 2012.02030).

    It does what its ``mask``, a :class:`~attrim.edits.mask.Mask`, does, and is saved as that; ``facts`` says how sparse
    it is. Only cells that some text had are ranked: neither future nor padding counts. Give ``tau`` or ``mass``.

    Parameters
    ----------
    averages : a ``Mean`` stat, of which the selected heads are ranked; or ``[H|1, N, M]`` for all sites, or a dict from
        site name to such, of which all are, with a negative number where no text had the cell.
    tau : the share of cells to remove: ``floor(tau * cells)`` of each group, 0 removes none. Of equal averages the
        one with the later head, query and key goes first.
    scope : which cells are ranked together: those of the whole ``model``, of a ``layer`` (default), a ``head`` or
        a ``row``.
    mass : instead of ``tau``: keep the fewest cells that have this share of a group's average attention.
    choose : ``weakest``; or, as a baseline, as many cells of each group at ``random``, or random ones that together
        have as much average attention as the weakest (``random-mass``).
    seed : for the random ones, which depend on nothing but the seed and the names of the sites.
    keep_row : never remove the so many strongest cells of a row.
    keep_diagonal : never remove a token's attention to itself.
    keep_keys : key positions that are never removed, such as ``[0]`` for a token that begins every text.
    tile : side of the tiles in which cells are removed (default: single cells, and tiles of 32 are reported).
    tile_keys : how many keys a tile has where it is not square; ``tile`` is then the number of its queries. The kernel
        that leaves cells out computes tiles of 16 queries and 1 key.
    tiles : ``round`` keeps a tile when any of its cells is kept; ``rank`` ranks the tiles by their average attention.
        Random baselines draw whole tiles either way, as many as the weakest cells leave empty.
    unseen : what becomes of cells that no text had, and of longer texts: ``keep``, ``prune``, or ``offset``, which goes
        by the distance of query and key (see :class:`~attrim.edits.mask.Mask`).
    empty : what a row with nothing left gives, as for :class:`~attrim.edits.mask.Mask`.
    as_coded : the rule of the released code: nearest-rank percentile of a layer's cells, structural zeros among them,
        and everything up to it removed, within a bounding block that is one short (``fairseq``, ``bert``) or not
        (``transformer-xl``); or a linear percentile of each head (``llama``).
    others : averages of other texts, which choose nothing: :meth:`note` says how much of their attention is kept, too.
    """

    carried = True

    averages: Mean | Tensor | Mapping[str, Tensor] = field(metadata={"parse": load_pattern_averages})
    tau: float | None = None
    scope: Scope | None = None
    mass: float | None = field(default=None, kw_only=True)
    choose: Choose = field(default="weakest", kw_only=True)
    seed: int = field(default=0, kw_only=True)
    keep_row: int = field(default=0, kw_only=True)
    keep_diagonal: bool = field(default=False, kw_only=True)
    keep_keys: tuple[int, ...] = field(default=(), kw_only=True)
    tile: int | None = field(default=None, kw_only=True)
    tile_keys: int | None = field(default=None, kw_only=True)
    tiles: Tiles = field(default="round", kw_only=True)
    unseen: Unseen = field(default="keep", kw_only=True)
    empty: Empty = field(default="zero", kw_only=True)
    as_coded: AsCoded = field(default="no", kw_only=True)
    others: Mean | None = field(default=None, kw_only=True, metadata={"parse": load_pattern_averages, "label": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        keys: object = self.keep_keys
        if not isinstance(keys, (list, tuple, range)) or not all(type(key) is int for key in keys):
            raise ParameterError(f"keep_keys must be the numbers of keys, such as (0, 1), not {shorten(keys)}.")
        object.__setattr__(self, "keep_keys", tuple(keys))
        self._check_numbers()
        for name, kind in (
            ("scope", Scope), ("choose", Choose), ("tiles", Tiles), ("unseen", Unseen), ("empty", Empty),
            ("as_coded", AsCoded),
        ):  # fmt: skip
            value = getattr(self, name)
            known = isinstance(value, str) and value in get_args(kind)
            if not known and not (name == "scope" and value is None):
                raise ParameterError(f"{name} must be one of {', '.join(get_args(kind))}, not {shorten(value)}.")
        if self.tile is None and self.tiles == "rank":
            raise ParameterError("tiles='rank' needs the side of the tiles; give tile=32 or another number.")
        if self.choose == "weakest" and self.seed:
            raise ParameterError("seed is for choose='random' and 'random-mass'; leave it out.")
        if self.as_coded != "no":
            self._check_as_coded()
        if not isinstance(self.averages, Mean):
            check_matrices(self.averages, "averages", boolean=False)
        if self.others is not None and not isinstance(self.others, Mean):
            raise ParameterError(f"others must be a Mean stat of other texts, not {shorten(self.others)}.")
        if any(isinstance(given, Mean) and not given.records for given in (self.averages, self.others)):
            raise DataError("The averages are empty: nothing was measured; measure texts with the stat 'mean' first.")

    def edit_scores(self, scores: Tensor, call: Call) -> Tensor:
        """Scores ``[B, H, Q, K]`` with ``-inf`` on removed cells."""
        return self.mask.edit_scores(scores, call)

    def drops(self, call: Call) -> Tensor | None:
        """See :meth:`Edit.drops`."""
        return self.mask.drops(call)

    def kept_spans(self, call: Call) -> Sequence[KeptSpans] | None:
        """See :meth:`Edit.kept_spans`."""
        return self.mask.kept_spans(call)

    def check(self, sites: Sequence[Site]) -> None:
        """See :meth:`Edit.check`."""
        self.mask.check(sites)

    def note(self) -> str:
        """How sparse all sites are together, and what is kept of the attention of other texts and of longer ones."""
        held_out = "" if self.others is None else f", of other texts {self.kept_mass(self.others):.1%}"
        longest, cells = self.total.length, self.mask.cells
        assert not isinstance(cells, Mask)
        size = max(max(tensor.shape[1:]) for tensor in (cells.values() if isinstance(cells, Mapping) else [cells]))
        beyond = (
            ""
            if self.unseen != "keep" or longest is None or longest >= size
            else f"; the averages are of texts up to {longest} tokens, and every cell beyond these is kept"
        )
        return f"{self.total}{held_out}{beyond}"

    def kept_mass(self, averages: Mean) -> float:
        """The share of average attention, such as that of other texts, on cells that are kept."""
        kept = mass = 0.0
        for site, heads in self.select.resolve(averages.sites).items():
            # A cell with no text has no average.
            cells = torch.where(averages.counts(site) > 0, averages.matrix(site), 0.0)[list(heads)].double()
            seen = torch.ones(1, 1, 1, 1, dtype=torch.bool).expand(1, 1, *cells.shape[1:])
            removed = self.mask.removed(Call(site, seen, seen[0, :, :, 0], seen[0, :, 0], heads))[0]
            mass += float(cells.sum())
            kept += float((cells * ~removed).sum())
        return kept / mass if mass else 1.0

    def to_save(self) -> Edit:
        """The mask, which says all that the pattern does and is far smaller than averages."""
        return self.mask

    @property
    def mask(self) -> Mask:
        """What is removed."""
        return self._made[0]

    @property
    def facts(self) -> dict[str, PatternFacts]:
        """How sparse each site is, by its name."""
        return self._made[1]

    @property
    def total(self) -> PatternFacts:
        """How sparse all sites are together."""
        return functools.reduce(PatternFacts.__add__, self.facts.values())

    @functools.cached_property
    def _made(self) -> tuple[Mask, dict[str, PatternFacts]]:
        tile = self._sides
        grids = {name: self._locked(grid) for name, grid in self._grids().items()}
        keys = max(grid.known.shape[2] for grid in grids.values())
        if max(self.keep_keys, default=0) >= keys:
            raise ParameterError(
                f"keep_keys has {max(self.keep_keys)}, but the averages have only the keys 0 to {keys - 1}; leave it "
                "out."
            )
        if self.as_coded != "no":
            removed = {name: self._by_released_rule(grid) for name, grid in grids.items()}
        elif tile is not None and (self.tiles == "rank" or self.choose != "weakest"):
            tiled = {name: grid.in_tiles(tile) for name, grid in grids.items()}
            weakest = None
            if self.tiles == "round":
                # Cells drawn one by one leave hardly any tile empty, so as many tiles as AP has empty are drawn.
                ranked = replace(self, choose="weakest", seed=0)._ranked(grids)
                weakest = {
                    name: tiled[name].known & ~tiles_of(grid.known & ~grid.rounded(ranked[name], tile), tile)
                    for name, grid in grids.items()
                }
            removed = {
                name: blown_up(tiles, tile, grids[name].values.shape)
                for name, tiles in self._ranked(tiled, weakest).items()
            }
        else:
            removed = self._ranked(grids)
        cells, facts, shares = {}, {}, {}
        for name, grid in grids.items():
            gone = removed[name] if tile is None else grid.rounded(removed[name], tile)
            facts[name] = grid.facts(gone, self.tau, tile or TILE)
            share = removed_by_distance(gone, grid.known) if self.unseen == "offset" else None
            if self.as_coded == "no":
                gone = grid.with_unseen(gone, share if share is not None else self.unseen, tile)
            cells[name] = grid.all_heads(gone)
            if share is not None:
                shares[name] = grid.all_heads(share)
        one = not isinstance(self.averages, (Mean, Mapping))
        mask = Mask(
            cells[""] if one else cells,
            self.unseen,
            self.empty,
            distances=(shares[""] if one else shares) if shares else None,
            about=self._about(facts),
            select=self.select,
        )
        return mask, facts

    @property
    def _sides(self) -> Sides | None:
        """The sides of the tiles, if any."""
        return self.tile if self.tile is None or self.tile_keys is None else (self.tile, self.tile_keys)

    def _about(self, facts: Mapping[str, PatternFacts]) -> str:
        """How the mask is made: the parameters that were given, and how sparse it is."""
        return f"{describe(self)}: {functools.reduce(PatternFacts.__add__, facts.values())}"

    def _grids(self) -> dict[str, Grid]:
        """The averages of the heads that are ranked."""
        given = self.averages
        if isinstance(given, Mean):
            found = {}
            for site, heads in self.select.resolve(given.sites).items():
                unwatched = set(heads) - set(given.of(site).heads)
                if unwatched:
                    raise DataError(
                        f"Head {min(unwatched)} of site {site.name!r} was not measured; leave it out with heads=..., "
                        "or measure it."
                    )
                known = (given.counts(site) > 0).expand(site.heads, -1, -1)
                found[site.name] = Grid(site, given.matrix(site).float()[list(heads)], known[list(heads)], heads)
        else:
            named = given if isinstance(given, Mapping) else {"": given}
            found = {
                name: Grid(Site(name, "plain", 0, len(cells)), cells.float().cpu().clamp_min(0), cells.cpu() >= 0)
                for name, cells in named.items()
            }
        for name, grid in found.items():
            if not bool(grid.known.any()):
                raise DataError(
                    f"The averages of {name or 'all sites'} are empty: no text had any cell; measure first."
                )
        return found

    def _locked(self, grid: Grid) -> Grid:
        """The grid with the cells that must stay."""
        locked = torch.zeros_like(grid.known)
        if self.keep_diagonal:
            locked |= torch.eye(*grid.known.shape[1:], dtype=torch.bool)
        for key in self.keep_keys:
            locked[:, :, key : key + 1] = True
        if self.keep_row:
            weaker = (grid.known.sum(-1, keepdim=True) - self.keep_row).clamp_min(0)
            locked |= ~lowest(grid.values, grid.known, weaker)
        return Grid(grid.site, grid.values, grid.known, grid.heads, locked & grid.known)

    def _ranked(self, grids: Mapping[str, Grid], weakest: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """The removed entries of each grid; ``weakest`` are those that random ones take the place of, if known."""
        given = {name: None if weakest is None else weakest[name] for name in grids}
        if self.scope != "model":
            return {name: self._removed([grid], [given[name]])[0] for name, grid in grids.items()}
        return dict(zip(grids, self._removed(list(grids.values()), list(given.values())), strict=True))

    def _removed(self, grids: list[Grid], weakest: list[Tensor | None]) -> list[Tensor]:
        """The removed entries of grids whose cells are ranked together (or in the groups that the scope says)."""

        def grouped(tensors: Iterable[Tensor]) -> Tensor:
            if self.scope == "model":
                return torch.cat([tensor.flatten() for tensor in tensors])[None]
            (tensor,) = tensors
            axis = {None: 0, "layer": 0, "head": 1, "row": 2}[self.scope]
            return tensor.reshape(math.prod(tensor.shape[:axis]), -1)

        values, known = grouped(grid.values for grid in grids), grouped(grid.known for grid in grids)
        free = known & ~grouped(grid.locked for grid in grids)
        known_weakest = [each for each in weakest if each is not None]
        removed = grouped(known_weakest) & free if known_weakest else lowest(values, free, self._counts(values, known))
        if self.choose != "weakest":
            noise = grouped(grid.noise(self.seed) for grid in grids)
            if self.choose == "random":
                removed = lowest(noise, free, removed.sum(-1, keepdim=True))
            else:
                removed = first_of_mass(noise, values, free, (values.double() * removed).sum(-1, keepdim=True))
        parts = removed.flatten().split([grid.values.numel() for grid in grids])
        return [part.view(grid.values.shape) for part, grid in zip(parts, grids, strict=True)]

    def _counts(self, values: Tensor, known: Tensor) -> Tensor:
        """Int64 ``[G, 1]``: how many of the known values ``[G, n]`` of each group go."""
        if self.tau is not None:
            # 0.29 * 100 is 28.999999999999996: without the small step up it would be one cell less.
            return torch.floor(known.sum(-1, keepdim=True).double() * self.tau + 1e-9).long()
        assert self.mass is not None
        return surplus(values, known, self.mass)

    def _by_released_rule(self, grid: Grid) -> Tensor:
        """What the released code removes of the averages of a layer, ``[H, N, M]``."""
        assert self.tau is not None
        values = grid.values * grid.known
        if self.as_coded == "llama":
            bars = np.percentile(values.double().flatten(1).numpy(), 100 * self.tau, axis=1)
            return values <= torch.from_numpy(bars).float()[:, None, None]
        if self.as_coded == "transformer-xl":
            # The memory asks nothing, and the released array has no rows for it.
            first = int(grid.known.any(0).any(-1).int().argmax())
            return values <= nearest_percentile(values[:, first:], self.tau)
        rows, columns = bounding_block(values, as_coded=True)
        block = values[:, :rows, :columns]
        if not block.numel():
            raise DataError(f"The averages of {grid.site.name!r} are all zero, so the released code has no block.")
        if self.choose == "random":
            # Outside of the block nothing is removed, in contrast to the other rule.
            removed = torch.zeros_like(grid.known)
            drawn = grid.noise(self.seed)[:, :rows, :columns].flatten()[None]
            count = torch.tensor([[int(block.numel() * self.tau)]])
            chosen = lowest(drawn, torch.ones_like(drawn, dtype=torch.bool), count)
            removed[:, :rows, :columns] = chosen.view(block.shape)
            return removed
        return values <= nearest_percentile(block, self.tau)

    def _check_numbers(self) -> None:
        if (self.tau is None) == (self.mass is None):
            raise ParameterError("A pattern needs tau, the share of cells to remove, or mass, the share to keep: one.")
        if self.tau is not None and not 0 <= self.tau <= 1:
            raise ParameterError(f"tau must lie between 0 and 1 (it is a share, not a percentage), not {self.tau}.")
        if self.mass is not None and not 0 < self.mass <= 1:
            raise ParameterError(f"mass must lie above 0 and not above 1, not {self.mass}.")
        if self.keep_row < 0 or any(key < 0 for key in self.keep_keys):
            raise ParameterError("keep_row and keep_keys are numbers and positions from 0 on, never negative.")
        for name in ("tile", "tile_keys"):
            side = getattr(self, name)
            if side is not None and side < 1:
                raise ParameterError(f"{name} must be at least 1, not {side}.")
        if self.tile is None and self.tile_keys is not None:
            raise ParameterError("tile_keys needs tile, the number of queries of a tile; give tile=16, for example.")

    def _check_as_coded(self) -> None:
        """Refuse what the released rule has no place for."""
        given = {
            "scope": self.scope is not None,
            "mass": self.mass is not None,
            "keep_row": self.keep_row > 0,
            "keep_diagonal": self.keep_diagonal,
            "keep_keys": bool(self.keep_keys),
            "tiles='rank'": self.tiles == "rank",
            "choose='random-mass'": self.choose == "random-mass",
            "choose='random'": self.choose == "random" and self.as_coded != "fairseq",
        }
        for name, wrong in given.items():
            if wrong:
                raise ParameterError(f"{name} does not go with as_coded={self.as_coded!r}; leave one of them out.")


def matching_window(pattern: SparsePattern, first: int = 0, by_use: bool = False) -> int:
    """The ``size`` of the :class:`~attrim.edits.window.Window` that removes as many cells as a pattern, most nearly.

    Parameters
    ----------
    first : how many first keys the window keeps.
    by_use : count a cell once for each text that had it, not once.
    """
    kept: list[Tensor] = []
    wanted = 0.0
    for weights, gone in _weighted(pattern, by_use):
        distance = (torch.arange(weights.shape[2])[None, :] - torch.arange(weights.shape[1])[:, None]).abs()
        distance[:, :first] = 0
        kept.append(torch.bincount(distance.flatten(), weights=weights.sum(0).flatten()))
        wanted += float(weights[~gone].sum())
    reach = max(map(len, kept))
    sums = torch.stack([functional.pad(each, (0, reach - len(each))) for each in kept]).sum(0).cumsum(0)
    return int((sums - wanted).abs().argmin()) + 1


def use_share(pattern: SparsePattern) -> float:
    """The share of the measured texts' attention weights that a pattern removes.

    It is smaller than that of the cells where the cells that few texts are long enough for are removed first.
    """
    parts = [(float(weights[gone].sum()), float(weights.sum())) for weights, gone in _weighted(pattern, by_use=True)]
    return sum(removed for removed, _ in parts) / sum(total for _, total in parts)


def _weighted(pattern: SparsePattern, by_use: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each site what its cells count, float64 ``[H, N, M]``, and those that are removed."""
    if not isinstance(pattern.averages, Mean):
        raise ShapeError("Only a pattern of a Mean stat says which cells texts have; make it from one.")
    removed = pattern.mask.cells
    assert isinstance(removed, Mapping)
    for site, heads in pattern.select.resolve(pattern.averages.sites).items():
        counts = pattern.averages.counts(site).expand(site.heads, -1, -1)[list(heads)]
        yield (counts if by_use else counts > 0).double(), removed[site.name][list(heads)]


def window_facts(pattern: SparsePattern, window: Window) -> PatternFacts:
    """How sparse a window is on the cells that the averages of a pattern have."""
    return functools.reduce(
        PatternFacts.__add__,
        (grid.facts(_outside(grid.known, window), None, pattern._sides or TILE) for grid in pattern._grids().values()),
    )


def window_share(pattern: SparsePattern, window: Window, by_use: bool = False) -> float:
    """The share of the cells of a pattern's averages that a window removes; ``by_use`` as in the matching window."""
    parts = [(weights[_outside(weights, window)].sum(), weights.sum()) for weights, _ in _weighted(pattern, by_use)]
    return float(sum(removed for removed, _ in parts) / sum(total for _, total in parts))


def _outside(known: Tensor, window: Window) -> Tensor:
    """Bool ``[H, N, M]``: the cells of averages that a window removes."""
    queries, keys = (torch.arange(size)[None] for size in known.shape[1:])
    return outside_window(queries, keys, window.size, window.first)[0].expand(known.shape)
