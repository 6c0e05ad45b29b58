"""Windows of whole layers as stock ``layer_types``, which other engines than attrim can load.

Configurations of some families (Qwen2 and Qwen3, Gemma, Ministral, OLMo 3, ...) say for every layer whether it has a
sliding window. Such a window has no first tokens, so the model is not the one that carries a ``Window`` with some and
must be scored by itself.

Llama has no layer types. Ministral computes what Llama does without biases, with weights of the same names, and has
them, so that a Llama model is written as a Ministral one.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
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
from .model import BakedModel

SLIDING, FULL = "sliding_attention", "full_attention"
WITH_LAYER_TYPES = {"llama": "ministral"}
"""Families without layer types, and one that computes the same, has weights of the same names, and has them."""


@dataclass(frozen=True)
class StockWindows:
    """A stock model with windows in some layers.

    Attributes
    ----------
    model : of the class of the original, or of a family with layer types, with a configuration of its own.
    family : the type of the model where it is another one than that of the original; None where it is not.
    size : of the window.
    layers : those that have it.
    first : first tokens that the edits keep and this model does not.
    partial : layers of which only some heads have a window, which they have not here.
    """

    model: Any
    family: str | None
    size: int
    layers: tuple[int, ...]
    first: int
    partial: tuple[int, ...]

    def save_pretrained(self, folder: str | Path) -> None:
        """Save the model, with a configuration that other engines read as transformers does."""
        self.model.save_pretrained(folder)
        path = Path(folder) / "config.json"
        fields = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(_for_engines(fields), indent=2, sort_keys=True) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        lost = [f"the first {counted(self.first, 'token')}"] if self.first else []
        lost += [f"the windows of {counted(len(self.partial), 'layer')} with other heads"] if self.partial else []
        without = f", without {' and '.join(lost)}, so score it by itself" if lost else ""
        kind = "" if self.family is None else f"a {self.family} model with the same weights: "
        return (
            f"{kind}{counted(len(self.layers), 'layer')} with a stock window of {counted(self.size, 'token')}{without}"
        )


def stock_windows(model: Any, edits: Sequence[Edit]) -> StockWindows:
    """A copy of a model whose stock configuration has the windows of those layers all of whose heads have one.

    Parameters
    ----------
    model : a decoder of transformers that is not baked.
    edits : windows, as they would be baked.
    """
    if isinstance(model, BakedModel):
        raise ParameterError(
            "Stock layer types are written from a stock model, and this one is baked already; give the model that it "
            "was made of, or leave --layer-types out."
        )
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
    family = stock.config.model_type
    return StockWindows(stock, None if family == model.config.model_type else family, widths[0], whole, first, partial)


def _configured(model: Any, size: int, layers: Sequence[int], count: int) -> Any:
    """A copy of the model with another configuration."""
    kind, config = _with_layer_types(model)
    config.sliding_window = size
    config.layer_types = [SLIDING if number in layers else FULL for number in range(count)]
    if hasattr(config, "use_sliding_window"):
        config.use_sliding_window = True
    stock = kind(config).to(model.device, model.dtype)
    stock.load_state_dict(model.state_dict())
    if model.can_generate():
        stock.generation_config = copy.deepcopy(model.generation_config)
    return stock.train(model.training)


def _for_engines(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a configuration as transformers 4 wrote them, too; transformers 5 reads the same from both.

    Engines that know no ``rope_parameters`` (mlx-lm, transformers 4) would silently use their default positions. Most
    know Mistral and not Ministral; ``AutoConfig`` makes Ministral of a Mistral with layer types.
    """
    positions = fields.get("rope_parameters") or {}
    if "rope_theta" in positions:
        scaled = {name: value for name, value in positions.items() if name != "rope_theta"}
        fields["rope_theta"] = positions["rope_theta"]
        fields["rope_scaling"] = None if positions.get("rope_type", "default") == "default" else scaled
    if fields["model_type"] == "ministral":
        fields["model_type"] = "mistral"
        fields["architectures"] = [name.replace("Ministral", "Mistral") for name in fields["architectures"] or ()]
    return fields


def _with_layer_types(model: Any) -> tuple[type, Any]:
    """A class of models that has layer types, and a configuration for it: those of the model, or of a like family."""
    from transformers import CONFIG_MAPPING

    config, kind = copy.deepcopy(model.config), type(model)
    if hasattr(config, "sliding_window") and hasattr(config, "layer_types"):
        return kind, config
    family = WITH_LAYER_TYPES.get(config.model_type)
    alike = None if family is None else _class_alike(kind, type(config), CONFIG_MAPPING[family])
    if family is None or alike is None:
        raise ParameterError(
            f"The configuration of {config.model_type} has no layer types, so its stock code knows no windows; leave "
            "--layer-types out, and load the baked model with attrim."
        )
    fields = config.to_dict()
    # Ministral has no biases and no field for them; a field that says nothing more than that is left out.
    biased = [name for name in ("attention_bias", "mlp_bias") if fields.pop(name, False)]
    if biased:
        raise ParameterError(
            f"This {config.model_type} has {' and '.join(biased)}, which {family} with its layer types does not know; "
            "leave --layer-types out, and load the baked model with attrim."
        )
    for name in ("model_type", "architectures", "transformers_version", "pretraining_tp"):
        fields.pop(name, None)
    return alike, CONFIG_MAPPING[family](**fields)


def _class_alike(kind: type, config: type, other: Any) -> Any:
    """The class for the configuration ``other`` that does what ``kind`` does for ``config``, such as causal LM."""
    from transformers.models.auto import modeling_auto

    for automatic in vars(modeling_auto).values():
        known = getattr(automatic, "_model_mapping", None)
        if known is not None and config in known and known[config] is kind and other in known:
            return known[other]
    return None


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
