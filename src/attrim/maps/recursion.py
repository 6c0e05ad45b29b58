"""How relevance is carried through attention, layer by layer (https://arxiv.org/abs/2103.15679).

``relevance[s, q]`` is what tokens of the sequence ``q`` contributed to those of the sequence ``s``: the identity at the
input, and every attention adds to it. Each function takes any leading axes (examples, levels of removed heads).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor


def average_heads(products: Tensor, kept: Tensor | None = None) -> Tensor:
    """Gradient x attention ``[..., H, Q, K]`` to its positive cells averaged over heads, ``[..., Q, K]``.

    Parameters
    ----------
    kept : ``[..., H]``, 0 for heads that are left out; the sum is divided by the number of all heads nevertheless.
    """
    positive = products.clamp(min=0)
    if kept is not None:
        positive = positive * kept[..., None, None].to(positive.dtype)
    return positive.mean(-3)


def after_self(relevance: Tensor, average: Tensor) -> Tensor:
    """Relevance ``[..., S, Q]`` after self-attention with the average ``[..., S, S]``."""
    return relevance + average @ relevance


def normalized(relevance: Tensor, real: Tensor | None = None, as_coded: bool = False) -> Tensor:
    """Relevance ``[..., S, S]`` whose rows, without the identity, add up to 1; a row of zeros stays zeros.

    Parameters
    ----------
    real : bool ``[..., S]``, tokens that are not padding.
    as_coded : divide rows of zeros too, which gives NaN, as the original does; only rows of padding stay zeros.
    """
    identity = torch.eye(relevance.shape[-1], dtype=relevance.dtype, device=relevance.device)
    rest = relevance - identity
    totals = rest.sum(-1, keepdim=True)
    if as_coded:
        empty = torch.zeros_like(totals, dtype=torch.bool) if real is None else ~real[..., None]
    else:
        empty = totals == 0
    return torch.where(empty, 0, rest / totals.masked_fill(empty, 1)) + identity


@dataclass(frozen=True)
class CrossRule:
    """The rule for attention from one sequence to another.

    Parameters
    ----------
    normalize : scale the rows of what self-attention mixed before to 1.
    self_in_cross_rule : take into account what self-attention mixed before at all.
    as_coded : rows of zeros become NaN, and then every cell of the increment 0, as in the original.
    """

    normalize: bool = True
    self_in_cross_rule: bool = True
    as_coded: bool = False

    def between(
        self, own: Tensor, other: Tensor, average: Tensor, reals: tuple[Tensor | None, Tensor | None] = (None, None)
    ) -> Tensor:
        """What is added to the relevance ``[..., S, Q]`` of the other sequence.

        Parameters
        ----------
        own, other : relevance ``[..., S, S]`` and ``[..., Q, Q]`` within each sequence.
        average : ``[..., S, Q]``, see :func:`average_heads`.
        reals : see :func:`normalized`, of both sequences.
        """
        if not self.self_in_cross_rule:
            return average
        if self.normalize:
            own, other = (normalized(one, real, self.as_coded) for one, real in zip((own, other), reals, strict=True))
        added = own.mT @ (average @ other)
        return added.nan_to_num(nan=0.0) if self.as_coded else added


class Crossing(NamedTuple):
    """Attention of the tokens of one sequence to those of another, with its average ``[..., S, Q]``."""

    query: str
    key: str
    average: Tensor


@dataclass
class Propagation:
    """Relevance of one or more sequences, from the input upwards.

    Parameters
    ----------
    lengths : number of tokens of each sequence.
    leading : sizes of the leading axes.
    real : bool ``[..., L]`` of each sequence, tokens that are not padding.
    """

    lengths: Mapping[str, int]
    leading: tuple[int, ...] = ()
    rule: CrossRule = CrossRule()
    real: Mapping[str, Tensor] = field(default_factory=dict)
    device: torch.device | None = None

    def __post_init__(self) -> None:
        self.relevance: dict[tuple[str, str], Tensor] = {}
        for query, rows in self.lengths.items():
            for key, columns in self.lengths.items():
                start = torch.eye(rows, columns) if query == key else torch.zeros(rows, columns)
                whole = start.to(self.device, torch.float64).expand(*self.leading, rows, columns)
                self.relevance[query, key] = whole.clone()

    def attend_self(self, stream: str, average: Tensor) -> None:
        """Self-attention within a sequence: also what it holds of the others is mixed."""
        for key in self.lengths:
            self.relevance[stream, key] = after_self(self.relevance[stream, key], average)

    def attend_across(self, crossings: Sequence[Crossing]) -> None:
        """Attention between sequences; those given together start from the same relevance."""
        added: list[tuple[tuple[str, str], Tensor]] = []
        for query, key, average in crossings:
            reals = self.real.get(query), self.real.get(key)
            own, other = self.relevance[query, query], self.relevance[key, key]
            added.append(((query, key), self.rule.between(own, other, average, reals)))
            added.append(((query, query), average @ self.relevance[key, query]))
        for pair, increment in added:
            self.relevance[pair] = self.relevance[pair] + increment
