"""What an attention mask says, worked out once although every layer gets the same one."""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention.architectures import Facts
from ..attention.masks import Stream, allowed_by, make_call
from ..core.call import Call
from ..core.site import Site

_patterns: deque[Tensor] = deque(maxlen=8)  # patterns that were seen, so that layers know them again by identity


@dataclass(frozen=True)
class Reading:
    """One attention call, and whether its mask is plain.

    Attributes
    ----------
    call : the call, as edits see it.
    plain : every text starts at position 0, and its cells are those of ``pattern`` whose key is in ``keys``.
    pattern : bool ``[Q, K]``, the same tensor whenever the pattern is the same; None when every cell is allowed.
    keys : bool ``[B, K]``, the real keys; None when all are.
    shift : int64 ``[B, K]``, with padding on the left: where each position of the text stands, the padding last.
        Pattern and keys are about the shifted text.
    """

    call: Call
    plain: bool
    pattern: Tensor | None
    keys: Tensor | None
    shift: Tensor | None


def read(
    mask: Tensor | None,
    shape: tuple[int, int],
    device: torch.device,
    site: Site,
    facts: Facts,
    streams: dict[str, Stream],
    causal: bool = False,
) -> Reading:
    """Read the mask of one call.

    Parameters
    ----------
    mask : boolean or additive ``[B|1, H|1, Q|1, K]``; None allows everything, or what ``causal`` says.
    shape : numbers of queries and keys.
    streams : what earlier calls told about the sequences; updated in place.
    causal : without a mask, query i may attend to keys up to i.
    """
    offsets = getattr(mask, "attrim_offsets", None)
    allowed: Tensor | None
    if mask is None:
        allowed = _blank(*shape, causal, device)
        if causal:
            offsets = 0, 0
    else:
        allowed = getattr(mask, "attrim_allowed", None)
        if allowed is None or allowed.shape[-2:] != shape:
            allowed = mask.attrim_allowed = allowed_by(mask, shape, device)  # type: ignore[attr-defined]
    assert allowed is not None
    call = make_call(site, facts, allowed, streams, offsets)
    if call.position or call.key_position or call.query_lead is not call.key_lead:
        return Reading(call, False, None, None, None)
    factors = getattr(allowed, "attrim_factors", None)
    if factors is None:
        factors = allowed.attrim_factors = _factors(allowed, call.key_lead)  # type: ignore[union-attr]
    return Reading(call, *factors)


@functools.lru_cache(maxsize=8)
def _blank(queries: int, keys: int, causal: bool, device: torch.device) -> Tensor:
    """The allowed cells without a mask, one tensor for all calls of a size."""
    with torch.inference_mode(False):  # it may meet gradients later
        cells = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device)
        return cells.tril() if causal else cells


def _factors(allowed: Tensor, lead: Tensor | None) -> tuple[bool, Tensor | None, Tensor | None, Tensor | None]:
    """Whether allowed cells ``[B|1, H|1, Q, K]`` are a pattern times real keys, these two, and the shift."""
    cells = allowed[:, 0]
    shift = None
    if allowed.shape[1] > 1 or (lead is not None and cells.shape[-2] != cells.shape[-1]):
        return False, None, None, None
    if lead is not None:
        size = cells.shape[-1]
        shift = (torch.arange(size, device=cells.device) + lead[:, None]) % size
        cells = cells.take_along_dim(shift[:, :, None], 1).take_along_dim(shift[:, None, :], 2)
    queries, keys = cells.shape[-2:]
    real = cells.any(-2)
    # A query that may attend to nothing is padding: whatever it gets is as good.
    idle = ~cells.any(-1, keepdim=True)
    everything = None if bool(real.all()) else real
    tail = torch.ones(queries, keys, dtype=torch.bool, device=cells.device)
    for pattern in (None, tail.tril(), cells.any(0)):
        expected = real[:, None, :] if pattern is None else pattern & real[:, None, :]
        if bool(((cells == expected) | idle).all()):
            return True, pattern if pattern is None else _known(pattern), everything, shift
    return False, None, None, None


def _known(pattern: Tensor) -> Tensor:
    """The tensor that stood for the same pattern before, if there is one."""
    for known in list(_patterns):
        if known.device == pattern.device and torch.equal(known, pattern):
            return known
    _patterns.append(pattern)
    return pattern
