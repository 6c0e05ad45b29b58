"""Heads that follow one fixed matrix each (PAPA, Hassid et al. 2022, https://arxiv.org/abs/2211.03495)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..edits.constant import Outside, constant
from ..edits.rows import FLOOR, precise
from ..grid import gather, require_covered
from .reading import Reading


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

    def forward(self, value: Tensor, reading: Reading, dropout: float = 0.0) -> Tensor:
        """Values ``[B, C, K, D]`` to the outputs ``[B, Q, C, D]`` of the heads."""
        queries, keys = reading.call.allowed.shape[-2:]
        inside = queries <= self.matrix.shape[1] and keys <= self.matrix.shape[2]
        if reading.plain and inside and dropout == 0.0:
            return self._product(value, reading, queries, keys)
        return self._gathered(value, reading, dropout)

    def _gathered(self, value: Tensor, reading: Reading, dropout: float) -> Tensor:
        """Any mask, any positions: what the edit does."""
        call = reading.call
        matrix = self.matrix.to(precise(self.matrix.dtype))
        if self.outside == "error":
            require_covered((matrix.shape[1], matrix.shape[2]), call)
        weights = constant(gather(matrix, call.query_slots(), call.key_slots()), call.valid).to(value.dtype)
        weights = weights.expand(*value.shape[:2], -1, -1)
        return (functional.dropout(weights, dropout, training=True) @ value).transpose(1, 2)

    def _product(self, value: Tensor, reading: Reading, queries: int, keys: int) -> Tensor:
        crop = self._cropped(queries, keys, reading.pattern, value.dtype)
        batch, heads, _, size = value.shape
        columns = value.permute(1, 2, 0, 3)  # one product for the whole batch: the matrix is read once
        scale = crop.scale
        if reading.keys is not None:
            real = reading.keys.to(value.dtype)
            columns = columns * real.t()[None, :, :, None]
            mass = (crop.magnitude @ real.t()).to(precise(value.dtype))  # [C|1, Q, B|1]
            scale = mass.clamp_min(FLOOR).reciprocal().permute(2, 1, 0)[..., None]
        columns = columns.reshape(heads, keys, batch * size)
        product = torch.bmm(crop.matrix.expand(heads, -1, -1), columns)
        # The scale may be beyond half precision, the result never is.
        return (product.view(heads, queries, batch, size).permute(2, 1, 0, 3) * scale).to(value.dtype)

    def _cropped(self, queries: int, keys: int, pattern: Tensor | None, dtype: torch.dtype) -> Crop:
        """The crop for one size and pattern; the last one is kept, for a batch is usually like the one before."""
        crop = self._crop
        if (
            crop is None
            or crop.source is not self.matrix
            or crop.version != _version(self.matrix)
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
    return Crop(source, _version(source), pattern, matrix, magnitude, mass.reciprocal().t()[None, :, :, None])


def _version(tensor: Tensor) -> int:
    """How often a tensor was changed in place (loading weights does that)."""
    return 0 if tensor.is_inference() else tensor._version
