"""The attention of stock models as tensors that autograd can be asked about, without anything of attrim."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
