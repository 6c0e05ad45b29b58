"""Drop attention weights at random: the control that any pruning rule has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.call import Call
from ..errors import ParameterError
from .base import Edit, register
from .rows import allowed_keys, normalise_rows

WORD = 2**32
# The second factor is 0xD35A2D97 modulo 2**32, negative so that products of 32-bit numbers fit into int64.
ROUNDS = ((16, 0x21F0AAAD), (15, 0xD35A2D97 - WORD))


@register("random-drop")
@dataclass(frozen=True)
class RandomDrop(Edit):
    """Zero a random share of the allowed cells.

    Whether a cell falls depends only on the seed, the site, the head, the positions of query and key in their own
    texts, and how many keys the query may see. So a text loses the same cells alone, in any padded batch and when
    generated with a cache, while texts of different lengths lose different ones.

    Parameters
    ----------
    share : the probability that a cell is dropped, from 0 to 1.
    seed : another seed drops other cells.
    renormalize : divide each row by what is left of it.
    """

    share: float
    seed: int = 0
    renormalize: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.share <= 1:
            raise ParameterError(f"share must lie between 0 and 1, not {self.share}.")

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        """Weights ``[B, H, Q, K]`` with a random share of them zero."""
        return random_drop(weights, self.share, self.seed, call, self.renormalize)


def random_drop(
    weights: Tensor, share: float, seed: int = 0, call: Call | None = None, renormalize: bool = False
) -> Tensor:
    """Zero a random share of the weights ``[B, H, Q, K]``; without ``call`` every cell is allowed."""
    call = call or Call.plain(weights)
    drop = noise(seed, call) < round(share * WORD)
    kept = weights.masked_fill(drop | ~call.allowed, 0.0)
    return normalise_rows(kept) if renormalize else kept


def noise(seed: int, call: Call) -> Tensor:
    """A random whole number below 2**32 for every cell, int64 ``[B|1, H, Q, K]``, from what the cell is (no state)."""
    device = call.allowed.device
    head = _mix(torch.tensor(call.heads, device=device) + call.site.seed(seed))[None, :, None, None]
    query = _mix(head + call.query_slots()[:, None, :, None])
    row = _mix(query + allowed_keys(call.allowed))
    key = _mix(call.key_slots())[:, None, None, :]
    return _mix(row ^ key)


def _mix(words: Tensor) -> Tensor:
    """Scramble whole numbers to 32 bits, each to another one (a shift and multiply hash of 32-bit integers)."""
    words = words & (WORD - 1)
    shifted = torch.empty_like(words)  # memory for one more copy, taken once: it is what costs time here
    for shift, factor in ROUNDS:
        torch.bitwise_right_shift(words, shift, out=shifted)
        words.bitwise_xor_(shifted).mul_(factor).bitwise_and_(WORD - 1)
    torch.bitwise_right_shift(words, 15, out=shifted)
    return words.bitwise_xor_(shifted)
