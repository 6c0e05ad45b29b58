"""Integers to add up in: fixed point, so that the order of what is added does not matter, and memory that lasts."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

FRACTION_BITS = 36
"""Steps of 2^-36 (1.5e-11): far below what float32 weights resolve, and 2^27 ones still fit into 63 bits."""

ONE = 1 << FRACTION_BITS

_LOW_BITS = 32
_LOW_MASK = (1 << _LOW_BITS) - 1


def to_fixed(values: Tensor) -> Tensor:
    """Values as int64 multiples of 2^-36, rounded half to even."""
    return torch.round(values.double() * ONE).to(torch.int64)


def from_fixed(totals: Tensor) -> Tensor:
    """The inverse of :func:`to_fixed`, in float64."""
    return totals.double() / ONE


def add_wide(wide: Tensor, increments: Tensor) -> None:
    """Add int64 ``[...]`` (not negative) to the wide integers ``[..., 2]`` (high and low 32-bit words) in place.

    Wide integers hold sums over every cell of a large data set, which int64 fixed point could overflow.
    """
    wide[..., 1] += increments
    normalise_wide(wide)


def normalise_wide(wide: Tensor) -> None:
    """Carry what does not fit into the low words, so that equal sums have equal words."""
    wide[..., 0] += wide[..., 1] >> _LOW_BITS
    wide[..., 1] &= _LOW_MASK


def from_wide(wide: Tensor) -> Tensor:
    """Wide fixed-point integers ``[..., 2]`` as float64 ``[...]``."""
    return (wide[..., 0].double() * (1 << _LOW_BITS) + wide[..., 1].double()) / ONE


def add_words(wide: Tensor, increments: Tensor) -> None:
    """Add the sums over the last axis of int64 ``[..., N]``, of any sign, to the wide integers ``[..., 2]`` in place.

    The two words are summed apart, so that large numbers do not overflow on the way.
    """
    wide[..., 0] += (increments >> _LOW_BITS).sum(-1)
    wide[..., 1] += (increments & _LOW_MASK).sum(-1)
    normalise_wide(wide)


_SMALL = 1 << 16


def lasting_zeros(*shape: int) -> Tensor:
    """Int64 zeros on the CPU that can be changed inside and outside of ``torch.inference_mode``.

    Large ones get pages of their own. Among the short-lived activations of a model, on malloc's heap, they would keep
    the freed memory around them from being given back: a quarter more memory for BERT-base.
    """
    with torch.inference_mode(False):
        size = 8 * math.prod(shape)
        if size < _SMALL:
            return torch.zeros(shape, dtype=torch.int64)
        return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.int64).view(shape)


def grown(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """An int64 tensor in the corner of a larger one of zeros; a first axis of one (shared by heads) is repeated."""
    if list(tensor.shape) == list(shape):
        return tensor
    if tensor.ndim and tensor.shape[0] == 1:
        tensor = tensor.expand(shape[0], *tensor.shape[1:])
    larger = lasting_zeros(*shape)
    larger[tuple(slice(size) for size in tensor.shape)] = tensor
    return larger
