"""Heads that follow one fixed matrix each (PAPA, Hassid et al. 2022, https://arxiv.org/abs/2211.03495)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..attention.masks import Factors, version_of
from ..core.call import Call
from ..core.tracing import is_symbolic
from ..edits.constant import Outside, constant, row_mass
from ..edits.positions import gather, require_covered
from ..edits.rows import FLOOR, precise
from ..kernels.blocks import CELLS
from ..kernels.team import differentiates

FEW = 4
"""Up to so many examples go one by one where the matrices stay in cache. It is the faster way (2.4 ms against 3.0 ms
for 8 x 128 tokens of BERT-base), but each example makes all threads wait for each other twice, and on a busy machine
that cost up to five times as much as one product for the whole batch. With one thread there is nobody to wait for.
Large matrices are better read once for all examples (21.2 ms against 22.8 ms for 2 x 1024 tokens)."""


@dataclass(frozen=True)
class Crop:
    """The matrices for texts of one size, ready to multiply.

    Attributes
    ----------
    matrix : ``[C|1, Q, K]``; a view of the stored one where that has nothing outside of the pattern.
    magnitude : the same without signs (the same tensor where there are none).
    scale : ``[1, Q, C|1, 1]``, one over the sum of each row's magnitudes.
    """

    source: Tensor
    version: int
    pattern: Tensor | None
    matrix: Tensor
    magnitude: Tensor
    scale: Tensor


class Constants(nn.Module):
    """Fixed matrices as a buffer, and their product with values.

    The normalised weights are never formed: with real keys m, ``C @ (m * V) / (|C| @ m)`` is the same.

    Parameters
    ----------
    shape : of the matrices, ``[C, N, M]``, or ``[1, N, M]`` when all heads share one.
    outside : what a text longer than the matrices gives.
    """

    matrix: Tensor

    def __init__(self, shape: tuple[int, int, int], outside: Outside) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.zeros(shape))
        self.outside = outside
        self._crop: Crop | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_crop": None}

    def forward(
        self, value: Tensor, call: Call, factors: Factors | None, dropout: float = 0.0, out: Tensor | None = None
    ) -> Tensor:
        """Values ``[B, C, K, D]`` to the outputs ``[B, Q, C, D]`` of the heads, written to ``out`` if it is given.

        Parameters
        ----------
        factors : the call's mask as pattern and real keys, where it is such a product and texts start at position 0.
        """
        queries, keys = call.allowed.shape[-2:]
        inside = queries <= self.matrix.shape[1] and keys <= self.matrix.shape[2]
        if factors is not None and inside and dropout == 0.0:
            output = self._product(value, (queries, keys), factors, out)
        elif dropout > 0.0 or differentiates(value) or is_symbolic():
            output = self._weighted(value, call, dropout)
        else:
            output = self._masked(value, call, _room(value, queries) if out is None else out)
        return output if out is None or output is out else out.copy_(output)

    def _cells(self, call: Call) -> Tensor:
        """The entries ``[B|1, C|1, Q, K]`` that a call is about."""
        if self.outside == "error":
            require_covered((self.matrix.shape[1], self.matrix.shape[2]), call)
        matrix = self.matrix.to(precise(self.matrix.dtype))
        return gather(matrix, call.query_slots(), call.key_slots())

    def _weighted(self, value: Tensor, call: Call, dropout: float) -> Tensor:
        """Any mask, any positions, in training: what the edit does."""
        weights = constant(self._cells(call), call.valid).to(value.dtype).expand(*value.shape[:2], -1, -1)
        return (functional.dropout(weights, dropout, training=True) @ value).transpose(1, 2)

    def _masked(self, value: Tensor, call: Call, out: Tensor) -> Tensor:
        """Any mask, any positions: a few examples at a time, while their entries are in cache."""
        batch, heads, keys, _ = value.shape
        cells = self._cells(call)
        valid = call.valid.to(cells.dtype)
        scale = row_mass(cells, valid).reciprocal().transpose(1, 2)
        many = max(1, CELLS // (heads * cells.shape[2] * keys))
        for first in range(0, batch, many):
            part = slice(first, first + many)
            some = value[part]
            kept = (_examples(cells, part) * _examples(valid, part)).to(value.dtype)
            product = kept.expand(*some.shape[:2], -1, -1) @ some
            torch.mul(product.transpose(1, 2), _examples(scale, part), out=out[part])
        return out

    def _product(self, value: Tensor, shape: tuple[int, int], factors: Factors, out: Tensor | None) -> Tensor:
        """Structure and padding only; ``shape`` is the numbers of queries and keys."""
        shift, keys = factors.shift, factors.keys
        queries = shape[0]
        crop = self._cropped(*shape, factors.pattern, value.dtype)
        scale = crop.scale
        if shift is not None:
            value = value.take_along_dim(shift[:, None, :, None], 2)
        if keys is not None:
            real = keys.to(value.dtype)
            value = value * real[:, None, :, None]
            mass = (crop.magnitude @ real.t()).to(precise(value.dtype))  # [C|1, Q, B|1]
            scale = mass.clamp_min(FLOOR).reciprocal().permute(2, 1, 0)[..., None]
        into = None if differentiates(value) else _room(value, queries) if out is None or shift is not None else out
        few = value.shape[0] <= FEW or torch.get_num_threads() == 1
        if into is not None and few and crop.matrix.numel() <= CELLS:
            output = _one_by_one(crop.matrix, value, scale, into)
        else:
            output = _at_once(crop.matrix, value, scale, into)
        if shift is None:
            return output
        return output.take_along_dim(shift.argsort(-1)[:, :, None, None], 1)

    def _cropped(self, queries: int, keys: int, pattern: Tensor | None, dtype: torch.dtype) -> Crop:
        """The crop for one size and pattern; the last one is kept, for a batch is usually like the one before."""
        crop = self._crop
        if (
            crop is None
            or crop.source is not self.matrix
            or crop.version != version_of(self.matrix)
            or crop.pattern is not pattern
            or crop.matrix.shape[1:] != (queries, keys)
            or crop.matrix.dtype != dtype
        ):
            with torch.inference_mode(False), torch.no_grad():
                crop = self._crop = _crop(self.matrix, queries, keys, pattern, dtype)
        return crop


def _crop(source: Tensor, queries: int, keys: int, pattern: Tensor | None, dtype: torch.dtype) -> Crop:
    matrix = source[:, :queries, :keys]
    if pattern is not None and bool((matrix.ne(0) & ~pattern).any()):
        matrix = matrix.masked_fill(~pattern, 0.0)
    matrix = matrix.to(dtype)
    magnitude = matrix.abs() if bool((matrix < 0).any()) else matrix
    mass = magnitude.sum(-1, dtype=precise(dtype)).clamp_min(FLOOR)
    return Crop(source, version_of(source), pattern, matrix, magnitude, mass.reciprocal().t()[None, :, :, None])


def _room(value: Tensor, queries: int) -> Tensor:
    """An empty ``[B, Q, C, D]`` for the outputs of values ``[B, C, K, D]``."""
    return value.new_empty(value.shape[0], queries, value.shape[1], value.shape[3])


def _at_once(matrix: Tensor, value: Tensor, scale: Tensor, into: Tensor | None) -> Tensor:
    """Matrices ``[C|1, Q, K]`` times values ``[B, C, K, D]`` times ``scale``, as ``[B, Q, C, D]``.

    Parameters
    ----------
    into : where to write the result; None returns a new one, with gradients.
    """
    batch, heads, keys, size = value.shape
    columns = value.permute(1, 2, 0, 3).reshape(heads, keys, batch * size)
    product = torch.bmm(matrix.expand(heads, -1, -1), columns).view(heads, -1, batch, size).permute(2, 1, 0, 3)
    # The scale may be beyond half precision, the result never is.
    return (product * scale).to(value.dtype) if into is None else torch.mul(product, scale, out=into)


def _one_by_one(matrix: Tensor, value: Tensor, scale: Tensor, into: Tensor) -> Tensor:
    """The same, example by example: values are read where they are, without the copy that puts them side by side."""
    matrix = matrix.expand(value.shape[1], -1, -1)
    for example in range(value.shape[0]):
        product = torch.bmm(matrix, value[example]).transpose(0, 1)
        torch.mul(product, scale[example if len(scale) > 1 else 0], out=into[example])
    return into


def _examples(tensor: Tensor, part: slice) -> Tensor:
    """Some examples of a tensor ``[B|1, ...]``."""
    return tensor if tensor.shape[0] == 1 else tensor[part]
