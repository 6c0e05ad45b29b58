"""Cut heads out of the tensors of an attention module, in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ..errors import SiteError


class Zeros(nn.Module):
    """A projection that is gone: zeros ``[..., size]`` without computing them from anything.

    A cache counts its tokens by its keys, so a module without any key keeps one head of zeros. The empty weights are
    saved with the model, so that the stock class refuses them instead of making up random ones.
    """

    def __init__(self, projection: nn.Module, size: int) -> None:
        super().__init__()
        take_rows(projection, rows_of([], 1))
        self.weight, self.bias = projection.weight, projection.bias
        self.size = size

    def forward(self, hidden: Tensor) -> Tensor:
        """Zeros in the place of projected states ``[..., D]``."""
        return hidden.new_zeros(()).expand(*hidden.shape[:-1], self.size)


class Padded(nn.Linear):
    """A fused projection whose parts differ in size, for modules that cut their result into equal parts.

    Parameters
    ----------
    sizes : rows of query, key and value; the result has the largest of them three times, with zeros at the ends.
    """

    def __init__(self, linear: nn.Linear, sizes: Sequence[int]) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.sizes = tuple(sizes)

    def forward(self, input: Tensor) -> Tensor:
        """Projected states ``[..., 3 x largest]``."""
        largest = max(self.sizes)
        parts = super().forward(input).split(self.sizes, dim=-1)
        blank = input.new_zeros(()).expand(*input.shape[:-1], largest)
        pieces = []
        for part, size in zip(parts, self.sizes, strict=True):
            pieces += [part, blank[..., size:]]
        return torch.cat(pieces, dim=-1)


def rows_of(heads: Sequence[int], size: int, first: int = 0, step: int | None = None) -> Tensor:
    """The rows of some heads: ``size`` rows each, head 0 at ``first``, the next ``step`` (default size) rows later."""
    # On the CPU explicitly, because models are built in a context whose default is the meta device.
    begins = torch.tensor(heads, dtype=torch.int64, device="cpu") * (size if step is None else step) + first
    return (begins[:, None] + torch.arange(size, device="cpu")).flatten()


def count_rows(weights: nn.Module | Tensor) -> int:
    """How many rows (outputs) a projection or a bias vector has."""
    if isinstance(weights, Tensor):
        return weights.shape[0]
    assert isinstance(weights.weight, Tensor)
    return weights.weight.shape[1 if isinstance(weights, Conv1D) else 0]


def take_rows(projection: nn.Module, rows: Tensor) -> None:
    """Keep some outputs of a projection, in the given order."""
    axis = 1 if isinstance(projection, Conv1D) else 0
    take_entries(projection, "weight", rows, axis)
    if projection.bias is not None:
        take_entries(projection, "bias", rows, 0)
    setattr(projection, "nf" if axis else "out_features", len(rows))


def take_columns(projection: nn.Module, columns: Tensor) -> None:
    """Keep some inputs of a projection, in the given order."""
    axis = 0 if isinstance(projection, Conv1D) else 1
    take_entries(projection, "weight", columns, axis)
    setattr(projection, "in_features" if axis else "nx", len(columns))


def take_entries(module: nn.Module, name: str, entries: Tensor, axis: int) -> None:
    """Keep some entries of a parameter along an axis, in the given order."""
    parameter = getattr(module, name)
    kept = parameter.detach().index_select(axis, entries.to(parameter.device))
    setattr(module, name, nn.Parameter(kept.contiguous(), requires_grad=parameter.requires_grad))


def scale_columns(projection: nn.Module, factors: Tensor) -> None:
    """Multiply the inputs of a projection by factors ``[columns]``."""
    with torch.no_grad():
        weight = projection.weight
        assert isinstance(weight, Tensor)
        factors = factors.to(weight.device, torch.promote_types(weight.dtype, torch.float32))
        weight.copy_(weight * (factors[:, None] if isinstance(projection, Conv1D) else factors))


def as_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A projection with the given weight ``[out, in]`` and bias."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)
    return linear


def checked(projection: object, name: str) -> nn.Module:
    """The projection, if it is a plain one (a quantised or adapted one has other weights than it shows)."""
    if type(projection).__name__ not in ("Linear", "Conv1D", "NonDynamicallyQuantizableLinear"):
        raise SiteError(
            f"{name} is a {type(projection).__name__}, not a plain projection; bake before quantising or adapting."
        )
    assert isinstance(projection, nn.Module)
    return projection
