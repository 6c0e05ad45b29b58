"""Run a model once and keep its attention and answer, as a page shows them; the last few of these are remembered."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..attention.context import attach
from ..core.call import Call
from ..core.modes import evaluation_mode
from ..core.site import Site
from ..edits.base import Edit
from ..maps.shown import Reader
from ..scores.target import unlabelled
from ..stats.base import Stat
from .answers import Reply, read_answer
from .tiles import Weights
from .worker import Cancelled

BESIDE = 64 * 2**10
"""Bytes of a look beside its tensors."""
FACTS = ("zeros", "confidence", "entropy", "change")
"""Numbers about each head: the share of its weights that is zero, the mean of each row's largest weight, the mean
entropy of its rows in nats, and how much of each row's weight edits moved elsewhere (0 to 1)."""


@dataclass(frozen=True, eq=False)
class SiteView:
    """The attention of one site to one input.

    Attributes
    ----------
    weights : float16 ``[H, Q, K]``; a weight below 0 is kept as 0.
    facts : by name (:data:`FACTS`) one number for each head, float64 ``[H]``.
    zeros, cells : weights that are zero, and all that may be anything else.
    """

    site: Site
    weights: Weights
    facts: Mapping[str, Sequence[float]]
    zeros: int
    cells: int


class Watching(Stat):
    """Keeps the attention of the one example of a batch, and ends the pass when nobody needs it any more.

    Parameters
    ----------
    cancelled : asked at every site.
    before : the attention of the unedited model, by site name, to compare with.
    """

    def __init__(self, cancelled: Cancelled, before: Mapping[str, SiteView] | None = None) -> None:
        self.cancelled, self.before = cancelled, before or {}
        self.seen: dict[str, SiteView] = {}

    def watch(self, tensor: Tensor, call: Call) -> None:
        """See :meth:`Stat.watch`: weights ``[1, H, Q, K]``."""
        self.cancelled.check()
        weights = tensor[0].float()
        valid = call.valid[0].expand_as(weights)
        zero = (weights == 0) & valid
        cells, rows = valid.sum((-2, -1)), valid.any(-1).sum(-1).clamp(min=1)
        facts = {
            "zeros": zero.sum((-2, -1)) / cells.clamp(min=1),
            "confidence": weights.amax(-1).sum(-1) / rows,
            "entropy": torch.special.entr(weights.clamp(min=0)).sum((-2, -1)) / rows,
        }
        known = self.before.get(call.site.name)
        kept = weights.clamp(min=0).half().cpu().numpy()
        if known is not None and known.weights.shape == kept.shape:
            before = torch.from_numpy(known.weights).to(weights.device, torch.float32)
            facts["change"] = (weights.clamp(min=0) - before).abs().sum((-2, -1)) / 2 / rows
        self.seen[call.site.name] = SiteView(
            call.site,
            kept,
            {name: values.double().tolist() for name, values in facts.items()},
            int(zero.sum()),
            int(cells.sum()),
        )


@dataclass(frozen=True, eq=False)
class Look:
    """What one pass through the model showed.

    Attributes
    ----------
    key : names it in addresses.
    views : the attention of every site that fired, in the order of the model.
    """

    key: str
    views: tuple[SiteView, ...]
    reply: Reply
    batch: Mapping[str, Tensor]
    edits: tuple[Edit, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that it takes, more or less: attention, and what stands beside it as Python objects."""
        numbers = sum(view.weights.nbytes for view in self.views) + 8 * self.reply.numbers.numel()
        return numbers + BESIDE + 2**10 * len(self.reply.shown.get("places", ()))

    @property
    def sparsity(self) -> float:
        """The share of all weights that is zero."""
        return sum(view.zeros for view in self.views) / max(1, sum(view.cells for view in self.views))


def look(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    reader: Reader,
    key: str,
    cancelled: Cancelled,
    edits: Sequence[Edit] = (),
    before: Look | None = None,
) -> Look:
    """Run the model on one example.

    Parameters
    ----------
    batch : what the model takes, of one example.
    before : what the unedited model showed.
    """
    known = {view.site.name: view for view in before.views} if before is not None else None
    watching = Watching(cancelled, known)
    with evaluation_mode(model), attach(model, edits, [watching], strict=False):
        output = model(**unlabelled(batch))
        reply = read_answer(model, output, batch, reader)
    return Look(key, tuple(watching.seen.values()), reply, batch, tuple(edits))


@dataclass
class Remembered:
    """The last looks, as many as fit; several threads may ask.

    Parameters
    ----------
    most : bytes; the newest is kept, whatever its size.
    """

    most: int
    _kept: OrderedDict[str, Look] = field(default_factory=OrderedDict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def get(self, key: str) -> Look | None:
        """One of them; None where it is not, or no longer, there."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def add(self, new: Look) -> Look:
        """Remember one more, and forget those that were not asked for the longest, where they are too many."""
        with self._lock:
            self._kept[new.key] = new
            self._kept.move_to_end(new.key)
            while len(self._kept) > 1 and self.size > self.most:
                self._kept.popitem(last=False)
        return new

    @property
    def size(self) -> int:
        """Bytes of all."""
        return sum(each.size for each in self._kept.values())


def along_token(views: Sequence[SiteView], stream: str, position: int) -> tuple[list[Weights], list[Weights]]:
    """Where one token looks, ``[H, K]`` for each site whose queries it is one of; and who looks at it, ``[H, Q]``."""
    looks = [np.ascontiguousarray(view.weights[:, position]) for view in views if view.site.streams[0] == stream]
    seen = [np.ascontiguousarray(view.weights[:, :, position]) for view in views if view.site.streams[1] == stream]
    return looks, seen


def lengths_of(views: Sequence[SiteView]) -> dict[str, int]:
    """How many tokens each sequence of the model has."""
    found: dict[str, int] = {}
    for view in views:
        for stream, size in zip(view.site.streams, view.weights.shape[1:], strict=True):
            found[stream] = max(size, found.get(stream, 0))
    return found


def tokens_of(reader: Reader, model: nn.Module, batch: Mapping[str, Tensor], lengths: Mapping[str, int]) -> Any:
    """What stands at every position of each sequence: ``{stream: [text, ...]}``."""
    from ..errors import SiteError
    from ..maps.parts import parts_of

    named: dict[str, list[str]] = {stream: [str(place) for place in range(size)] for stream, size in lengths.items()}
    try:
        parts = parts_of(model, batch, lengths)
    except SiteError:
        return named
    for part in parts.values():
        size = part.last - part.first
        if part.kind == "text":
            source = "decoder_input_ids" if part.stream == "decoder" and "decoder_input_ids" in batch else "input_ids"
            if source not in batch or batch[source].shape[1] != size:
                continue
            words = [reader.word(number) for number in batch[source][0].tolist()]
        elif part.kind == "regions":
            words = [f"region {place}" for place in range(size)]
        else:
            words = [f"patch {place // part.grid[1]},{place % part.grid[1]}" for place in range(size)]
            named[part.stream][: part.first] = ["whole image"] * part.first
        named[part.stream][part.first : part.last] = words
    return named
