"""Cut a model: the weights of heads that are gone or constant leave, the rest of the module stays stock code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from ..errors import ArtefactError, SiteError
from ..select import Site
from ..sites import interface
from ..sites.calls import Stream
from ..sites.table import facts
from . import attention
from .cut import scale_columns
from .module import Cut, output_of
from .plan import Layer, SitePlan, matrices_of
from .table import row_of


def operate(model: Any, layers: Iterable[Layer]) -> None:
    """Cut a stock model to the given heads, in place; matrices are left blank and weights are not scaled."""
    layers = list(layers)
    known = facts(getattr(model.config, "model_type", None))
    streams: dict[str, Stream] = {}
    crossed = {
        site.streams[0] for layer in layers if layer.constant for site in layer.sites if len(set(site.streams)) > 1
    }
    special = False
    for layer in layers:
        module = find(model, layer.path)
        row = row_of(module, layer.sites[0])
        if row.route == "interface":
            tells = any(site.streams[0] == site.streams[1] in crossed for site in layer.sites)
            special |= Cut(model, module, row, layer).on_interface(known, streams, tells)
        else:
            Cut(model, module, row, layer).in_private(known, streams)
    if special:
        attention.register()
        for config in interface.switchable(model):
            switch(config, config._attn_implementation_internal)


def switch(config: Any, underneath: str | None) -> None:
    """Let a configuration choose the attention of baked models, with SDPA or eager attention underneath."""
    names: dict[str | None, str] = {None: "eager"} | {ours: base for base, ours in interface.BAKED.items()}
    name = names.get(underneath, underneath)
    if name not in interface.BAKED:
        raise SiteError(
            f"A baked model runs on sdpa or eager attention, not on {underneath!r}; call "
            "model.set_attn_implementation('sdpa') first."
        )
    config._attn_implementation_internal = interface.BAKED[name]


def find(model: Any, path: str) -> nn.Module:
    """The module at a path, which may have been written for the same model with or without a head."""
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    for name in (path, path.removeprefix(prefix), prefix + path):
        try:
            return model.get_submodule(name)
        except AttributeError:
            continue
    raise ArtefactError(
        f"{type(model).__name__} has no attention module {path!r}; the baked model is of another class."
    )


def fill(model: Any, layers: Iterable[Layer], plans: Mapping[Site, SitePlan]) -> None:
    """Put the matrices into a model that was cut."""
    for layer in layers:
        if layer.constant:
            for constants, site in zip(find(model, layer.path).attrim_baked.calls, layer.sites, strict=True):  # type: ignore[arg-type, union-attr]
                device = next(model.parameters()).device
                constants.matrix = matrices_of(plans[site], layer.constant).to(device, model.dtype)


def fold(model: Any, layers: Iterable[Layer], plans: Mapping[Site, SitePlan]) -> None:
    """Put the factors of heads into the output projections of a model that is not cut yet."""
    for layer in layers:
        module = find(model, layer.path)
        factors = {tuple(plans[site].factors.tolist()) for site in layer.sites}
        values = torch.tensor(next(iter(factors)), dtype=torch.float64)
        if len(factors) > 1:
            raise SiteError(f"The sites of {layer.path} are one module, so their heads need the same factors.")
        if bool(((values == 0) | (values == 1)).all()):
            continue
        output = output_of(model, module, row_of(module, layer.sites[0]))
        if isinstance(output, (nn.Linear, Conv1D)):
            columns = output.weight.shape[0 if isinstance(output, Conv1D) else 1]
            scale_columns(output, values.repeat_interleave(columns // layer.heads))
        else:
            output.data.mul_(values.to(output.device, output.dtype)[None, :, None])
