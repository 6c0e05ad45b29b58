"""Build the :class:`Call` of an attention computation: allowed cells, real tokens, positions."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.call import Call
from ..core.site import Site
from .architectures import Facts
from .softmax import FORBIDDEN

# The positions ``[B, L]`` of the tokens of the forward pass that is running, where they do not follow one another.
token_slots: ContextVar[Tensor | None] = ContextVar("attrim_token_slots", default=None)


@dataclass(frozen=True)
class Stream:
    """What self-attention told about one sequence of a forward pass; cross-attention looks its queries up here."""

    real: Tensor  # bool [B|1, Q]
    position: int
    lead: Tensor | None


def allowed_by(mask: Tensor | None, scores_shape: tuple[int, int], device: torch.device) -> Tensor:
    """The allowed cells ``[B|1, H|1, Q, K]`` of a boolean or additive mask; None allows everything."""
    queries, keys = scores_shape
    if mask is None:
        return torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device)
    mask = mask[..., :keys]
    allowed = mask if mask.dtype == torch.bool else mask > FORBIDDEN
    return allowed.expand(*allowed.shape[:2], queries, keys)


def allowed_in(scores: Tensor) -> Tensor:
    """The allowed cells of scores ``[B, H, Q, K]`` that already contain their mask."""
    allowed = scores.detach() > FORBIDDEN
    first = allowed[:, :1]
    # One pattern for all heads is the rule; keeping it once lets stats share counts among heads.
    return first if bool((allowed == first).all()) else allowed


def make_call(
    site: Site,
    facts: Facts,
    allowed: Tensor,
    streams: dict[str, Stream],
    offsets: tuple[int, int] | None = None,
    **tensors: Tensor | None,
) -> Call:
    """The call at ``site``, and, for self-attention, the entry of its stream in ``streams``.

    Parameters
    ----------
    allowed : bool ``[B|1, H|1, Q, K]``.
    streams : what earlier self-attention of the same forward pass told; updated in place.
    offsets : slots of the first query and of the first key where the mask function knows them.
    tensors : query, key and value where the route sees them.
    """
    queries, keys = allowed.shape[-2:]
    key_real, lead = _real_and_lead(allowed, facts)
    query_stream, key_stream = site.streams
    if query_stream != key_stream:
        known = streams.get(query_stream)
        if known is None or known.real.shape[-1] != queries or known.real.shape[0] not in (1, allowed.shape[0]):
            known = Stream(torch.ones(1, queries, dtype=torch.bool, device=allowed.device), 0, None)
        return Call(
            site,
            allowed,
            known.real,
            key_real,
            tuple(range(site.heads)),
            known.position,
            0,
            known.lead,
            lead,
            **tensors,
        )
    # Without a word from the mask function, fewer queries than keys means that a cache holds the earlier keys.
    position, key_position = offsets if offsets is not None else (max(keys - queries, 0), 0)
    first = position - key_position
    query_real = key_real[:, first : first + queries]
    if query_real.shape[-1] != queries:
        query_real = torch.ones(1, queries, dtype=torch.bool, device=allowed.device)
    before = streams.get(query_stream)
    if position > 0 and before is not None and (before.lead is None or before.lead.shape[0] == allowed.shape[0]):
        lead = before.lead  # a sliding cache may have dropped the padding by now
    streams[query_stream] = Stream(query_real, position, lead)
    heads, slots = tuple(range(site.heads)), token_slots.get()
    return Call(site, allowed, query_real, key_real, heads, position, key_position, lead, lead, slots, **tensors)


def _real_and_lead(allowed: Tensor, facts: Facts) -> tuple[Tensor, Tensor | None]:
    """Real keys and leading padding, worked out once although every layer brings the same allowed cells."""
    known: tuple[Tensor, Tensor | None] | None = getattr(allowed, "attrim_real", None)
    if known is None:
        real = _real(allowed, facts)
        known = real, _lead(real)
        allowed.attrim_real = known  # type: ignore[attr-defined]
    return known


def _real(allowed: Tensor, facts: Facts) -> Tensor:
    """Bool ``[B|1, K]``: the keys that some query may attend to."""
    seen = allowed
    queries, keys = allowed.shape[-2:]
    if facts.padding_sees_itself and queries == keys and keys > 1:
        seen = allowed & ~torch.eye(keys, dtype=torch.bool, device=allowed.device)
    return seen.flatten(1, 2).any(1)


def _lead(real: Tensor) -> Tensor | None:
    """How many keys before the first real one each example has; None when no example has any."""
    lead = real.int().argmax(-1)  # an example without any real key gets 0
    return lead if bool(lead.any()) else None
