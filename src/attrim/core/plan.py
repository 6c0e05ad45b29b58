"""The moments of one attention call: apply edits in order, guard the structural mask, feed stats."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from .call import Call
from .tracing import is_symbolic

if TYPE_CHECKING:
    from ..edits.base import Edit
    from ..stats.base import Stat

Softmax = Callable[[Tensor], Tensor]
Chosen = tuple[int, ...]


def softmax(scores: Tensor) -> Tensor:
    """Softmax over keys in float32, returned in the dtype of the scores."""
    return torch.softmax(scores, dim=-1, dtype=torch.float32 if scores.dtype.itemsize < 4 else None).to(scores.dtype)


def guarded_softmax(scores: Tensor, function: Softmax = softmax) -> Tensor:
    """Softmax over keys where ``-inf`` removes a cell and a row with nothing left gives zeros, never NaN."""
    empty = torch.isneginf(scores).all(-1, keepdim=True)
    # The empty rows are filled before the softmax, not after it, because NaN would survive in the gradient.
    return function(scores.masked_fill(empty, 0.0)).masked_fill(empty, 0.0)


class WatchingStat(Protocol):
    """What a stat is to those who show it something."""

    @property
    def moment(self) -> str:
        """What it watches."""

    def watch(self, tensor: Tensor, call: Call) -> None:
        """Add one call."""


class Plan:
    """The edits and stats of one site, each with the heads that it is about, in the order they apply.

    Parameters
    ----------
    edits : pairs of an edit and the head numbers it changes.
    stats : pairs of a stat and the head numbers it watches; stats see the tensors after all edits.
    """

    def __init__(self, edits: Sequence[tuple[Edit, Chosen]] = (), stats: Sequence[tuple[Stat, Chosen]] = ()) -> None:
        self.edits = tuple(edits)
        self.stats = tuple(stats)
        self._touched: dict[str, bool] = {}

    def __add__(self, other: Plan) -> Plan:
        return Plan(self.edits + other.edits, self.stats + other.stats)

    def touches(self, moment: str) -> bool:
        """Whether any edit changes, or any stat watches, the given moment (``scores``, ``weights``, ``output``)."""
        if moment not in self._touched:
            self._touched[moment] = any(edit.overrides(f"edit_{moment}") for edit, _ in self.edits) or any(
                stat.moment == moment for stat, _ in self.stats
            )
        return self._touched[moment]

    @functools.cached_property
    def needs_weights(self) -> bool:
        """Whether the weights must be there as a tensor; otherwise a fused kernel may compute the output."""
        return self.touches("scores") or self.touches("weights") or any(e.overrides("normalise") for e, _ in self.edits)

    @functools.cached_property
    def only_drops(self) -> bool:
        """Whether cells are removed before the softmax and nothing else is done."""
        return bool(self.edits) and not self.stats and all(edit.overrides("drops") for edit, _ in self.edits)

    @functools.cached_property
    def compiles(self) -> bool:
        """Whether every edit may be done by the fused kernel."""
        return all(edit.overrides("compiles") for edit, _ in self.edits)

    def weights(self, scores: Tensor, call: Call, function: Softmax = softmax) -> Tensor:
        """Scores ``[B, H, Q, K]`` to the weights that multiply the values, through every moment on the way."""
        normalisers = [(edit, heads) for edit, heads in self.edits if edit.overrides("normalise")]
        if normalisers or self.touches("scores"):
            scores = scores.masked_fill(~call.allowed, float("-inf"))
            for edit, heads in self.edits:
                if edit.overrides("edit_scores"):
                    scores = _on_heads(edit.edit_scores, scores, call, heads)
            self.watch("scores", scores, call)
            weights = guarded_softmax(scores, function)
            for edit, heads in normalisers:
                weights = _on_heads(edit.normalise, scores, call, heads, weights)
        else:
            weights = function(scores)
        return self.edited(weights, call)

    def edited(self, weights: Tensor, call: Call) -> Tensor:
        """Normalised weights ``[B, H, Q, K]`` to the weights that multiply the values."""
        if self.edits:
            for edit, heads in self.edits:
                if edit.overrides("edit_weights"):
                    weights = _on_heads(edit.edit_weights, weights, call, heads)
            # Structural masks always win, whatever an edit did; where there are none, a pass over all is saved.
            whole = not is_symbolic() and bool(call.allowed.all())
            # Contiguous, because models call .view() on what a softmax returns.
            weights = weights.contiguous() if whole else weights.masked_fill(~call.allowed, 0.0)
        self.watch("weights", weights, call)
        return weights

    def output(self, output: Tensor, call: Call) -> Tensor:
        """The outputs ``[B, H, Q, D]`` of the heads, edited and watched."""
        for edit, heads in self.edits:
            if edit.overrides("edit_output"):
                output = _on_heads(edit.edit_output, output, call, heads)
        # The last axis is no longer keys: what counts is whether the query is real.
        self.watch("output", output, replace(call, allowed=call.queries[:, None, :, None]))
        return output

    def layer(self, moment: str, hidden: Tensor, call: Call) -> Tensor:
        """The hidden states ``[B, L, D]`` at ``layer_input`` or ``layer_output``, edited."""
        for edit, _ in self.edits:
            if edit.overrides(f"edit_{moment}"):
                hidden = getattr(edit, f"edit_{moment}")(hidden, call)
        return hidden

    def run_plain(self, tensor: Tensor, call: Call) -> Tensor:
        """Apply the edits to a plain tensor: weights, or scores when an edit works on scores."""
        if self.touches("scores") or any(edit.overrides("normalise") for edit, _ in self.edits):
            return self.weights(tensor, call)
        return self.edited(tensor, call)

    def watch(self, moment: str, tensor: Tensor, call: Call) -> None:
        """Feed the stats that watch this moment with the heads that they chose."""
        for stat, heads in self.stats:
            if stat.moment == moment:
                show(stat, heads, tensor, call)


def show(stat: WatchingStat, heads: Chosen, tensor: Tensor, call: Call) -> None:
    """Let a stat watch the heads ``[B, H, ...]`` of a call that it chose."""
    # A layer has no heads to choose from.
    axis = [0] if stat.moment.startswith("layer") else _axis(call, heads)
    if len(axis) == len(call.heads):
        stat.watch(tensor.detach(), call)
    else:
        stat.watch(tensor.detach()[:, axis], call.for_heads(axis))


def _axis(call: Call, heads: Chosen) -> list[int]:
    """Where the chosen head numbers stand on the head axis."""
    chosen = set(heads)
    return [entry for entry, head in enumerate(call.heads) if head in chosen]


def _on_heads(
    function: Callable[[Tensor, Call], Tensor | None],
    tensor: Tensor,
    call: Call,
    heads: Chosen,
    into: Tensor | None = None,
) -> Tensor:
    """Apply ``function`` to the chosen heads of ``tensor`` and put the result among the others of ``into``."""
    into = tensor if into is None else into
    axis = _axis(call, heads)
    if len(axis) == len(call.heads):
        result = function(tensor, call)
        return into if result is None else result
    part = function(tensor[:, axis], call.for_heads(axis))
    if part is None:
        return into
    return into.index_copy(1, torch.tensor(axis, device=into.device), part.to(into.dtype))
