"""Remove fixed cells of attention before the softmax (Attention Pruning, https://arxiv.org/abs/2012.02030)."""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.call import Call
from ..core.site import Select, Site
from ..core.tracing import is_symbolic
from ..errors import ArtefactError, ParameterError, ShapeError, SiteError, shorten
from ..kernels.rules import KeptSpans
from .base import Edit, register
from .bits import Packed, PackedCells
from .persite import at_heads, at_site, check_matrices, names_of
from .positions import gather, gather_offsets, inside, with_tails

Unseen = Literal["keep", "prune", "offset"]
Empty = Literal["zero", "strongest", "uniform"]
Other = TypeVar("Other", bound=Edit)
TAIL = 8
"""A distance that is nowhere in the stored cells goes by so many nearer ones."""


def load_mask(source: str, *others: type[Other]) -> Mask | Other:
    """The mask in a folder of ``save_edits``, in that of a baked model, or in a ``.npy`` file of cells to keep.

    Parameters
    ----------
    others : kinds of edits that may be in the folder in place of a mask.
    """
    from ..stats.npy import is_npy, read_layers

    if is_npy(source):
        layers = read_layers(source)
        if any(bool(((cells != 0) & (cells != 1)).any()) for cells in layers.values()):
            raise ArtefactError(
                f"{source!r} holds numbers other than 0 and 1, so it is no mask; averages are read with "
                f"pattern:{source},tau=..."
            )
        return Mask({name: cells == 0 for name, cells in layers.items()})
    from .saving import holds_edits, load_edits, read_carried

    if os.path.isfile(source):  # unlike pathlib, False for names that no file can have
        raise ArtefactError(
            f"{source!r} is a file; give the folder of a baked model or of save_edits, or a .npy file of cells to keep."
        )
    edits = read_carried(source)
    if edits is not None and holds_edits(source):
        raise ArtefactError(
            f"The folder {source!r} holds a baked model and edits of save_edits, too, so it does not say which mask is "
            "meant; save the edits to a folder of their own."
        )
    edits = load_edits(source) if edits is None else edits
    wanted: tuple[type[Mask | Other], ...] = (Mask, *others)
    if len(edits) == 1 and isinstance(edits[0], wanted):
        return edits[0]
    held = ", ".join(type(edit).__name__ for edit in edits) or "no edit"
    has_cells = len(edits) == 1 and hasattr(edits[0], "cells")
    way_out = f"give {edits[0].registered_name}:{source}" if has_cells else "save the mask alone with save_edits"
    raise ArtefactError(f"The folder {source!r} holds {held}, not one mask; {way_out}.")


@register("mask")
@dataclass(frozen=True, eq=False)
class Mask(Edit):
    """Remove cells, the same for every input, and let the softmax share their mass among the rest.

    Padding, causality and windows always win (https://arxiv.org/abs/2012.02030 leaves to the implementation what a row
    with nothing left gives).

    Parameters
    ----------
    cells : bool ``[H|1, N, M]`` for all sites, or a dict from site name to such; True is removed. Row and column are
        the positions of query and key in their own texts, whatever the padding and the cache. A mask that was saved
        serves as well, with its selection, ``unseen`` and ``empty`` unless others are given.
    unseen : what becomes of cells outside of the stored size: ``keep`` (default), ``prune``, or ``offset``, which
        removes a cell when more than half of the stored cells with the same distance of query and key are removed.
    empty : what a row with nothing left gives: ``zero`` (default), all weight on the ``strongest`` allowed cell, or
        ``uniform`` over the allowed cells, as in the released code for fairseq and BERT.
    distances : float ``[H|1, 2 R + 1]``, or a dict from site name to such, for ``unseen="offset"``: the share of cells
        that is removed where the key is ``d`` positions after its query (entry ``R + d``). Default: that of ``cells``.
    about : how the mask was made, seed included, which travels with it.
    made_for : the ``model_type`` of the models that the mask is for; any where it is empty. A model that is baked with
        cells for all sites writes its own, because nothing else in the folder would say it of them.
    """

    carried = True

    cells: Tensor | Mapping[str, Tensor] | Mask = field(metadata={"parse": load_mask, "stats": False})
    unseen: Unseen | None = None
    empty: Empty | None = None
    distances: Tensor | Mapping[str, Tensor] | None = field(default=None, kw_only=True)
    about: str = field(default="", kw_only=True, metadata={"label": False})
    made_for: str = field(default="", kw_only=True, metadata={"label": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.cells
        if isinstance(given, Mask):
            adopt(self, given, "unseen", "empty")
            if self.distances is None and self.unseen == "offset":
                object.__setattr__(self, "distances", given.distances)
            given = given.cells
        assert not isinstance(given, Mask)
        check_matrices(given, "cells", boolean=True)
        for name in ("about", "made_for"):
            if not isinstance(getattr(self, name), str):
                raise ParameterError(f"{name} must be a text, not {shorten(getattr(self, name))}.")
        for name, kind in (("unseen", Unseen), ("empty", Empty)):
            choices = get_args(kind)
            if getattr(self, name) not in (None, *choices):
                listed = ", ".join(map(repr, choices[:-1]))
                raise ParameterError(f"{name} must be {listed} or {choices[-1]!r}, not {getattr(self, name)!r}.")
        if self.distances is None and self.unseen == "offset":
            named = given if isinstance(given, Mapping) else {"": given}
            shares = {name: removed_by_distance(cells) for name, cells in named.items()}
            object.__setattr__(self, "distances", shares if isinstance(given, Mapping) else shares[""])
        if self.distances is not None:
            _check_distances(self.distances, self.unseen)

    def edit_scores(self, scores: Tensor, call: Call) -> Tensor:
        """Scores ``[B, H, Q, K]`` with ``-inf`` on removed cells."""
        return mask(scores, self.removed(call), self.empty or "zero")

    def drops(self, call: Call) -> Tensor | None:
        """See :meth:`Edit.drops`."""
        return self.removed(call) if self.empty in (None, "zero") else None

    def kept_spans(self, call: Call) -> Sequence[KeptSpans] | None:
        """See :meth:`Edit.kept_spans`: where a text is longer than the stored cells."""
        size = queries, keys = call.allowed.shape[-2], call.allowed.shape[-1]
        rows, columns = (
            max(0, min(stored - first, asked))
            for stored, first, asked in zip(
                self._of_site(call).shape[1:], (call.position, call.key_position), size, strict=True
            )
        )
        if self.empty not in (None, "zero") or (rows == queries and columns == keys):
            return None
        own = self._rows(call, call.position, call.position + rows).cpu().numpy()
        stored = ~own[:, :, call.key_position :][:, :, :columns]
        number = np.arange(queries)
        place = number + call.position - call.key_position
        found = []
        distances = self._kept_distances(call, far=int(abs(place).max()) + keys)
        for head in range(max(len(stored), len(distances))):
            near = KeptSpans.of_cells(stored[min(head, len(stored) - 1)])
            after, until = distances[min(head, len(distances) - 1)]
            # Within the stored rows distances count only behind the last stored column.
            start = np.maximum(place[:, None] + after, np.where(number < rows, columns, 0)[:, None])
            parts = (
                (np.repeat(np.arange(rows), np.diff(near.begin)), np.repeat(number, len(after))),
                (near.start, start.ravel()),
                (near.stop, (place[:, None] + until).ravel()),
            )
            found.append(KeptSpans.union(size, *map(np.concatenate, parts)))
        return found

    def _kept_distances(self, call: Call, far: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """For each head, or for all, the distances of a key after its query at which unseen cells are kept.

        As spans from the first distance to the one after the last; ``far`` stands for any that is larger.
        """
        if self.unseen != "offset":
            ends = ([-far], [far]) if self.unseen != "prune" else ([], [])
            return [(np.array(ends[0], np.int64), np.array(ends[1], np.int64))]
        shares = at_heads(at_site(self.distances, call.site, "mask"), call, 0, "distances")
        kept = (with_tails(shares, TAIL) <= 0.5).cpu().numpy()
        spans, middle = KeptSpans.of_cells(kept), kept.shape[1] // 2
        # The outermost entries stand for all distances beyond.
        start = np.where(spans.start == 0, -far, spans.start - middle)
        stop = np.where(spans.stop == kept.shape[1], far, spans.stop - middle)
        return list(zip(np.split(start, spans.begin[1:-1]), np.split(stop, spans.begin[1:-1]), strict=True))

    def check(self, sites: Sequence[Site]) -> None:
        """See :meth:`Edit.check`: a mask with cells for sites that are not there was made for another model."""
        if not isinstance(self.cells, Mapping):
            return
        known = {name for site in sites for name in names_of(site)}
        for name in self.cells:
            if name not in known:
                raise SiteError(
                    f"The mask has cells for site {name!r}, which this model does not have, so it was made for another "
                    "model; make one from averages of this model."
                )

    def check_architecture(self, kind: str | None) -> None:
        """See :meth:`Edit.check_architecture`."""
        if self.made_for and kind and kind != self.made_for:
            raise SiteError(
                f"The mask was made for a {self.made_for} model, not for a {kind} one; make one from averages of this "
                "model."
            )

    def note(self) -> str:
        """How the mask was made."""
        return self.about

    def removed(self, call: Call) -> Tensor:
        """Bool ``[B|1, H|1, Q, K]``: the cells of a call that are removed."""
        query_slots, key_slots = call.query_slots(), call.key_slots()
        size = (self._of_site(call).shape[1], self._of_site(call).shape[2])
        symbolic = is_symbolic()
        first, last = 0, size[0]
        if not symbolic:
            # Of the rows of a matrix that may have a thousand, a step of a generation needs one.
            first, last = (min(max(int(slot), 0), size[0]) for slot in (query_slots.min(), query_slots.max() + 1))
        cells = self._rows(call, first, last).to(call.allowed.device)
        found = gather(cells, query_slots - first, key_slots, fill=self.unseen == "prune")
        if self.unseen != "offset":
            return found
        if not symbolic and int(query_slots.max()) < size[0] and int(key_slots.max()) < size[1]:
            return found
        shares = at_heads(at_site(self.distances, call.site, "mask"), call, 0, "distances").to(found.device)
        beyond = gather_offsets(shares, query_slots, key_slots, TAIL) > 0.5
        return torch.where(inside(size, query_slots, key_slots), found, beyond)

    def _of_site(self, call: Call) -> Tensor | Packed:
        """The cells ``[H|1, N, M]`` of a site, as they are stored."""
        named = self.cells.packed if isinstance(self.cells, PackedCells) else self.cells
        cells: Tensor | Packed = at_site(named, call.site, "mask")
        return cells

    def _rows(self, call: Call, first: int, last: int) -> Tensor:
        """The cells ``[h|1, last - first, M]`` of some queries and the heads of a call."""
        cells = self._of_site(call)
        if isinstance(cells, Packed):
            return Packed(at_heads(cells.bits, call, 0, "mask")[:, first:last], cells.columns).unpack()
        return at_heads(cells, call, 0, "mask")[:, first:last]


def adopt(edit: Any, given: Any, *options: str) -> None:
    """Give an edit that is being made of another one the cells of that.

    What it lacks itself it takes over, too: the selection, how the cells were made and for which model, and options.
    """
    for name in ("about", "made_for", *options):
        if getattr(edit, name) in (None, ""):
            object.__setattr__(edit, name, getattr(given, name))
    if edit.select == Select():
        object.__setattr__(edit, "select", given.select)
    object.__setattr__(edit, "cells", given.cells)


def mask(scores: Tensor, cells: Tensor, empty: Empty = "zero") -> Tensor:
    """Scores ``[B, H, Q, K]`` with ``-inf`` where the bool tensor ``cells`` ``[B|1, H|1, Q, K]`` is True.

    Parameters
    ----------
    empty : of a row that would lose everything, ``strongest`` keeps the largest score (the first of equal ones), and
        ``uniform`` makes all scores that are not ``-inf`` equal.
    """
    masked = scores.masked_fill(cells, float("-inf"))
    if empty == "zero":
        return masked
    lost = torch.isneginf(masked).all(-1, keepdim=True)
    if empty == "uniform":
        return torch.where(lost, torch.zeros_like(scores).masked_fill(torch.isneginf(scores), float("-inf")), masked)
    best = scores.detach().argmax(-1, keepdim=True)
    return torch.where(lost & torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True), scores, masked)


def removed_by_distance(cells: Tensor, known: Tensor | None = None) -> Tensor:
    """The share of cells that is removed for each distance of query and key, float32 ``[H, 2 R + 1]``.

    Parameters
    ----------
    cells : bool ``[H, N, M]``, True is removed.
    known : bool ``[H|1, N, M]``, the cells that count (default: all). Going outwards from the query, a distance
        without any takes the mean of the last 8 that have some, on its side; 0 if there is none.
    """
    heads, queries, keys = cells.shape
    known = torch.ones_like(cells[:1]) if known is None else known
    reach = max(queries, keys) - 1
    place = (torch.arange(keys)[None, :] - torch.arange(queries)[:, None] + reach).flatten()

    def add_up(flags: Tensor) -> Tensor:
        total = torch.zeros(len(flags), 2 * reach + 1)
        return total.index_add_(1, place, flags.cpu().float().flatten(1))

    counts = add_up(known).expand(heads, -1)
    shares = add_up(cells & known) / counts.clamp_min(1)
    for side in (-1, 1):
        seen: list[Tensor] = []
        for distance in range(1, reach + 1):
            entry = reach + side * distance
            if bool((counts[:, entry] > 0).all()):
                seen.append(shares[:, entry])
            elif seen:
                shares[:, entry] = torch.stack(seen[-TAIL:]).mean(0)
    return shares


def _check_distances(values: Tensor | Mapping[str, Tensor], unseen: Any) -> None:
    if unseen != "offset":
        raise ParameterError("distances go with unseen='offset'; leave them out.")
    if isinstance(values, Mapping) and not values:
        raise ParameterError("There is nothing in distances; leave them out, or give one tensor for each site.")
    for name, shares in (values if isinstance(values, Mapping) else {"all sites": values}).items():
        if not isinstance(shares, Tensor) or not shares.is_floating_point() or shares.ndim != 2:
            raise ParameterError(f"The distances for {name} must be a floating point tensor [H, 2 R + 1].")
        if shares.shape[1] % 2 == 0 or 0 in shares.shape:
            raise ShapeError(
                f"The distances for {name} must have the shape [H, 2 R + 1], not {list(shares.shape)}; the middle "
                "entry is the query's own position."
            )
        if not shares.is_meta and not is_symbolic() and not bool(torch.isfinite(shares).all()):
            raise ParameterError(f"The distances for {name} contain NaN or infinity; give the share that is removed.")
