"""The attention of stock models as tensors that autograd can be asked about, without anything of attrim."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def private_maps(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Attention of LXMERT and VisualBERT as it passes their dropout modules, by site name."""
    maps: dict[str, Tensor] = {}

    def keep(path: str) -> Any:
        def hook(module: nn.Module, args: Any, weights: Tensor) -> None:
            calls = sum(name.rsplit("#")[0] == path for name in maps)
            maps[path + (f"#{calls}" if calls else "")] = weights

        return hook

    attention = {"LxmertAttention", "VisualBertSelfAttention"}
    found = [(path, module) for path, module in model.named_modules() if type(module).__name__ in attention]
    handles = [module.dropout.register_forward_hook(keep(path)) for path, module in found]
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()


def dense(query: Tensor, key: Tensor, value: Tensor, kept: Tensor, start: Tensor, stop: Tensor) -> Tensor:
    """Attention ``[B, Q, H, D]`` in float64; 0 for a query that sees nothing."""
    group = query.shape[1] // key.shape[1]
    key, value = (tensor.double().repeat_interleave(group, 1) for tensor in (key, value))
    scores = query.double() @ key.mT * query.shape[-1] ** -0.5
    columns = torch.arange(key.shape[2])
    seen = kept[None] & ((columns >= start[:, :, None]) & (columns < stop[:, :, None]))[:, None]
    weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1).nan_to_num(0.0)
    return (weights @ value).transpose(1, 2)
