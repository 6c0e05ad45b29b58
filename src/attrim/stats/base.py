"""What a stat is: an accumulator that watches attention calls and can be merged and saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from torch import Tensor

from ..call import Call
from ..registry import Registry
from ..select import Site

STATS: Registry[type[Stat]] = Registry("stat", "attrim.stats")
register = STATS.register


class Stat:
    """Base of all stats: ``watch`` adds one call up, ``merge`` adds another stat of the same kind.

    A stat keeps what it counts for each site by the site's name. It sees every call after all edits, and must
    give the same integers for any split of the examples into batches and any order of them.
    """

    registered_name: ClassVar[str]
    moment: str = "weights"  # or query, key, value, scores, output, layer_input, layer_output

    def begin(self, batch: Mapping[str, Any]) -> None:
        """A batch is about to go through the model (:func:`attrim.measure` says so); most stats need not know it."""

    def prepare(self, site: Site, heads: tuple[int, ...]) -> None:
        """These heads of a site will be watched when it fires: take the memory now that its record needs.

        What lasts is best taken before the model runs. Among the short-lived activations of a forward pass it would
        keep freed memory around it from being used again: 5 % more peak memory for BERT-base.
        """

    def watch(self, tensor: Tensor, call: Call) -> None:
        """Add one call: ``tensor`` is ``[B, H, Q, K]``, or ``[B, H, L, D]`` at moments other than scores and weights.

        Hidden states have one head; ``call.valid`` then has a last axis of one, the real tokens.
        """
        raise NotImplementedError

    def update(self, weights: Tensor, mask: Tensor | None = None, site: Site | None = None) -> None:
        """Add a plain tensor ``[B, H, Q, K]`` from no model; ``mask`` as in :meth:`attrim.call.Call.plain`."""
        self.watch(weights, Call.plain(weights, mask, site))

    def merge(self, other: Self) -> Self:
        """Add what ``other`` counted to this stat and return it; refuses what does not fit."""
        raise NotImplementedError

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything counted so far, as named tensors (for safetensors) and JSON values."""
        raise NotImplementedError

    @classmethod
    def load(cls, tensors: dict[str, Tensor], fields: dict[str, Any]) -> Self:
        """The inverse of :meth:`state`."""
        raise NotImplementedError
