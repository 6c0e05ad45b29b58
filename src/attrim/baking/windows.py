"""Which heads of a model have windows, so that a cache may drop the keys outside of them."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..attention.discover import find_sites
from ..attention.interface import is_standard
from ..core.site import Site
from ..edits.saving import CARRIER
from ..edits.window import Window
from .surgery import find

Span = tuple[int, int]
"""Size and first tokens of a window."""


def find_windows(model: Any) -> list[dict[int, Span] | None] | None:
    """The windows of the heads of each layer; None where a model carries anything else, or attends in other ways.

    None stands also for a layer with constant heads, which need all values, for one whose heads do not share their
    keys in equal groups, because some are gone, and for one with a head of several windows, none within the others.
    """
    carrier = getattr(model.base_model, CARRIER, None)
    config = model.config
    if carrier is None or config.is_encoder_decoder or getattr(config, "sliding_window", None) is not None:
        return None
    edits, sites = carrier.edits_for(model), find_sites(model)
    kinds = {*(getattr(config, "layer_types", None) or ()), "full_attention"}
    if len(kinds) > 1 or not all(isinstance(edit, Window) for edit in edits):
        return None
    modules = {site: model.get_submodule(site.path) for site in sites}
    if not all(_plain_decoder(site, module) for site, module in modules.items()):
        return None
    numbers = {site: int(module.layer_idx) for site, module in modules.items()}
    headless = {find(model, layer.path) for layer in carrier.layers} - {*modules.values()}
    rest = [getattr(module, "layer_idx", None) for module in headless]
    if sorted([*numbers.values(), *rest], key=str) != sorted(range(len(sites) + len(rest)), key=str):
        return None
    found: list[dict[int, Span] | None] = [None] * (len(sites) + len(rest))
    for site, module in modules.items():
        if getattr(module, "attrim_baked", None) is None:
            found[numbers[site]] = {}
    for edit in edits:
        for site, heads in edit.select.resolve(sites).items():
            own, window = found[numbers[site]], (edit.size, edit.first)
            if own is None:
                continue
            before = {head: own.get(head, window) for head in heads}
            inner = {head: (min(window[0], size), min(window[1], first)) for head, (size, first) in before.items()}
            fits = all(span in (window, before[head]) for head, span in inner.items())
            found[numbers[site]] = own | inner if fits else None
    return found


def _plain_decoder(site: Site, module: nn.Module) -> bool:
    plain = site.role == "decoder" and site.route == "interface" and is_standard(module, {})
    return plain and isinstance(getattr(module, "layer_idx", None), int)
