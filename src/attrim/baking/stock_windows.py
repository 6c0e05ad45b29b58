"""Windows of whole layers as stock ``layer_types``, which other engines than attrim can load.

Configurations of some families (Qwen2 and Qwen3, Gemma, Ministral, OLMo 3, ...) say for every layer whether it has a
sliding window. Such a window has no first tokens, so the model is not the one that carries a ``Window`` with some and
must be scored by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..attention.discover import find_sites
from ..core.site import Select
from ..core.wording import counted
from ..edits.base import Edit
from ..edits.window import Window
from ..errors import ParameterError, SiteError
from .check import require_same
from .cost import made_up

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class StockWindows:
    """A stock model with windows in some layers.

    Attributes
    ----------
    model : of the class of the original, with a configuration of its own.
    size : of the window.
    layers : those that have it.
    first : first tokens that the edits keep and this model does not.
    partial : layers of which only some heads have a window, which they have not here.
    """

    model: Any
    size: int
    layers: tuple[int, ...]
    first: int
    partial: tuple[int, ...]

    def __str__(self) -> str:
        lost = [f"the first {counted(self.first, 'token')}"] if self.first else []
        lost += [f"the windows of {counted(len(self.partial), 'layer')} with other heads"] if self.partial else []
        without = f", without {' and '.join(lost)}, so score it by itself" if lost else ""
        return f"{counted(len(self.layers), 'layer')} with a stock window of {counted(self.size, 'token')}{without}"


def stock_windows(model: Any, edits: Sequence[Edit]) -> StockWindows:
    """A copy of a model whose stock configuration has the windows of those layers all of whose heads have one.

    Parameters
    ----------
    model : a decoder of transformers that is not baked.
    edits : windows, as they would be baked.
    """
    if not edits or not all(isinstance(edit, Window) for edit in edits):
        raise ParameterError(
            "Stock layer types can say windows and nothing else; bake only Window edits, or leave --layer-types out."
        )
    sites = find_sites(model)
    sizes: dict[int, dict[int, tuple[int, int]]] = {site.layer: {} for site in sites}
    for edit in edits:
        assert isinstance(edit, Window)
        for site, heads in edit.select.resolve(sites).items():
            for head in heads:
                size, first = sizes[site.layer].get(head, (edit.size, edit.first))
                sizes[site.layer][head] = min(size, edit.size), min(first, edit.first)
    whole = tuple(site.layer for site in sites if len(sizes[site.layer]) == site.heads)
    partial = tuple(layer for layer, own in sizes.items() if own and layer not in whole)
    if not whole:
        raise ParameterError(
            "No layer has windows in all of its heads, so there are no stock layer types to write; choose whole "
            "layers, as in --edit window:64,layers=0-3, or leave --layer-types out."
        )
    widths = sorted({size for layer in whole for size, _ in sizes[layer].values()})
    if len(widths) > 1:
        raise ParameterError(
            f"Stock layer types have one size of window for all layers, not {' and '.join(map(str, widths))}; choose "
            "one, or leave --layer-types out."
        )
    first = max(first for layer in whole for _, first in sizes[layer].values())
    stock = _configured(model, widths[0], whole, len(sites))
    _require_same_windows(model, stock, widths[0], whole)
    return StockWindows(stock, widths[0], whole, first, partial)


def _configured(model: Any, size: int, layers: Sequence[int], count: int) -> Any:
    """A copy of the model with another configuration."""
    config = copy.deepcopy(model.config)
    if not hasattr(config, "sliding_window") or not hasattr(config, "layer_types"):
        raise ParameterError(
            f"The configuration of {config.model_type} has no layer types, so its stock code knows no windows; leave "
            "--layer-types out, and load the baked model with attrim."
        )
    config.sliding_window = size
    config.layer_types = [SLIDING if number in layers else FULL for number in range(count)]
    if hasattr(config, "use_sliding_window"):
        config.use_sliding_window = True
    stock = type(model)(config).to(model.device, model.dtype)
    stock.load_state_dict(model.state_dict())
    return stock.train(model.training)


def _require_same_windows(model: Any, stock: Any, size: int, layers: Sequence[int]) -> None:
    """Raise unless the stock code computes what the windows without first tokens do, on a text that is longer."""
    edit = Window(size, select=Select(layers=layers))
    try:
        with torch.inference_mode():
            require_same(model, stock, [edit], made_up(model, 2 * size + 2))
    except SiteError as error:
        raise ParameterError(
            f"The stock code of {type(model).__name__} does not compute these windows from its layer types; leave "
            "--layer-types out, and load the baked model with attrim."
        ) from error
