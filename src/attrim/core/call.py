"""One attention call, as edits and stats see it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError, ShapeError
from .site import Site


@dataclass(frozen=True)
class Call:
    """What is known about the attention weights ``[B, H, Q, K]`` that are being computed.

    Attributes
    ----------
    site : where it happens.
    allowed : bool ``[B|1, H|1, Q, K]``, the cells that padding, causality and window permit.
    queries : bool ``[B|1, Q]``, which queries are real tokens.
    keys : bool ``[B|1, K]``, which keys are real tokens.
    heads : the head number of each entry on the head axis (an edit of some heads sees only those).
    position : slot of the first query (larger than 0 when generating with a cache).
    key_position : slot of the first key (larger than 0 when a sliding cache dropped old keys).
    query_lead, key_lead : int ``[B|1]``, how many padding slots stand before the first real query and key slot
        of each example; ``slot - lead`` is the token's own position whether the batch is padded left or right.
    slots : int64 ``[B|1, L]``, the position of every token of self-attention where they do not follow one another, as
        when the empty slots inside of a text are left out.
    query, key, value : the projected tensors ``[B, H, Q|K, D]`` where the route can see them.
    scaling : what products of queries and keys are multiplied by, where the weights are the softmax of these products
        and the mask and of nothing else; None where they are not, or where the route cannot see it.
    first, batch : where the call is about a part of a batch only, the number of its first example in the batch, and how
        many examples the batch has (None: the call is about all of it).
    """

    site: Site
    allowed: Tensor
    queries: Tensor
    keys: Tensor
    heads: tuple[int, ...]
    position: int = 0
    key_position: int = 0
    query_lead: Tensor | None = None
    key_lead: Tensor | None = None
    slots: Tensor | None = None
    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    scaling: float | None = None
    first: int = 0
    batch: int | None = None

    @property
    def valid(self) -> Tensor:
        """Bool ``[B|1, H|1, Q, K]``: allowed cells of real queries, the ones that statistics count."""
        return self.allowed & self.queries[:, None, :, None]

    def for_heads(self, axis: Sequence[int]) -> Call:
        """The same call reduced to some entries of the head axis."""
        index = list(axis)
        narrow = {
            field: tensor
            if tensor is None or tensor.shape[1] != len(self.heads) or len(self.heads) == 1
            else tensor[:, index]
            for field in ("allowed", "query", "key", "value")
            for tensor in (getattr(self, field),)
        }
        return dataclasses.replace(self, heads=tuple(self.heads[entry] for entry in index), **narrow)

    def for_example(self, example: int) -> Call:
        """The same call reduced to one example of the batch (a batch axis of one stays)."""
        return dataclasses.replace(self, **self._of_examples(slice(example, example + 1)))

    def for_part(self, examples: slice, batch: int) -> Call:
        """The same call reduced to some neighbouring examples of the batch, of which there are ``batch``."""
        return dataclasses.replace(self, first=examples.start, batch=batch, **self._of_examples(examples))

    def _of_examples(self, examples: slice) -> dict[str, Any]:
        fields = ("allowed", "queries", "keys", "query_lead", "key_lead", "slots", "query", "key", "value")
        return {
            field: tensor if tensor is None or tensor.shape[0] == 1 else tensor[examples]
            for field in fields
            for tensor in (getattr(self, field),)
        }

    def query_slots(self) -> Tensor:
        """Int64 ``[B|1, Q]``: the position of every query in its own text; negative on leading padding."""
        if self.slots is not None:
            return self.slots
        return _slots(self.allowed.shape[-2], self.position, self.query_lead, self.allowed.device)

    def key_slots(self) -> Tensor:
        """Int64 ``[B|1, K]``: the position of every key in its own text; negative on leading padding."""
        if self.slots is not None:
            return self.slots
        return _slots(self.allowed.shape[-1], self.key_position, self.key_lead, self.allowed.device)

    @classmethod
    def plain(cls, weights: Tensor, mask: Tensor | None = None, site: Site | None = None) -> Call:
        """A call for a tensor ``[B, H, Q, K]`` that comes from no model.

        Parameters
        ----------
        weights : the tensor that is about to be edited or watched; only its shape is used.
        mask : None (everything allowed), ``[B, K]`` real tokens, or ``[B|1, H|1, Q, K]`` allowed cells.
        """
        if weights.ndim != 4:
            raise ShapeError(
                f"Attention weights must have the shape [B, H, Q, K], not {tuple(weights.shape)}; add the missing axes."
            )
        batch, heads, queries, keys = weights.shape
        query_real = torch.ones(1, queries, dtype=torch.bool, device=weights.device)
        if mask is None:
            mask = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=weights.device)
        mask = mask.to(weights.device, torch.bool)
        if mask.shape == (batch, keys):
            if queries == keys:
                query_real = mask
            mask = mask[:, None, None, :].expand(batch, 1, queries, keys)
        if mask.ndim != 4 or any(m not in (1, w) for m, w in zip(mask.shape, weights.shape, strict=True)):
            raise ShapeError(
                f"A mask of shape {tuple(mask.shape)} does not fit weights of shape {tuple(weights.shape)}; "
                "give [B, K] or [B|1, H|1, Q, K]."
            )
        mask = mask.expand(-1, -1, queries, keys)
        return cls(
            site=site or Site("plain", "encoder", 0, heads),
            allowed=mask,
            queries=query_real,
            keys=mask.flatten(1, 2).any(1),
            heads=tuple(range(heads)),
        )


def _slots(length: int, first: int, lead: Tensor | None, device: torch.device) -> Tensor:
    slots = torch.arange(first, first + length, device=device)[None]
    return slots if lead is None else slots - lead.to(device)[:, None]


def not_finite(site: Site) -> DataError:
    """The error for attention weights that are not numbers."""
    return DataError(
        f"The attention weights at {site.name!r} hold NaN or infinity; check the model's dtype and inputs."
    )
