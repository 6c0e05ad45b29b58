"""``attrim.bake``: from a model and edits to a smaller model."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..attention.discover import find_sites
from ..attention.dropping import whole_call
from ..core.site import Site
from ..edits.base import Edit
from ..edits.mask import Mask
from ..edits.mask_outside_window import MaskOutsideWindow
from ..errors import ParameterError, ShapeError, require_all, require_model
from .carrying import Burden, Carrier
from .check import require_same
from .model import BakedModel, baked_class
from .planning import Layer, crossed_streams, plan_layers, plan_sites
from .surgery import fill, fold, operate


def bake(model: Any, *edits: Edit, example: Any = None) -> Any:
    """A copy of the model with the edits made permanent, so that what they make needless is really gone.

    Heads that ``Gate`` switches off lose all their weights, heads that ``Constant`` fixes lose their queries and keys
    (https://arxiv.org/abs/2211.03495). ``Mask``, ``SparsePattern``, ``Window``, ``Entmax`` and ``Sparsemax`` take no
    weights away: the model carries them, masks as buffers, wherever it is copied, trained and saved. All of them may be
    baked together, and heads always have the numbers of the model that is given. The result is an
    ordinary model of the same class: it trains, saves, and works in pipelines; ``attrim.load`` reads what its
    ``save_pretrained`` wrote.

    Parameters
    ----------
    model : a model of transformers; it is not changed.
    edits : ``Constant``, ``Gate`` and edits that are carried, applied in order.
    example : arguments of one forward pass, for models that attrim cannot make up an input for.

    Examples
    --------
    >>> smaller = attrim.bake(model, attrim.Constant(averages, heads=order[:72]))
    >>> smaller.save_pretrained("smaller")
    """
    from transformers import PreTrainedModel

    if isinstance(model, BakedModel):
        raise ParameterError("The model is baked already; bake the original with all edits at once.")
    require_model(model)
    if not isinstance(model, PreTrainedModel):
        raise ParameterError(
            f"Only models of transformers can be baked, not a {type(model).__name__}; use attrim.edit instead"
            + (", or bake what its merge_and_unload() returns." if hasattr(model, "merge_and_unload") else ".")
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ParameterError(
            f"Some weights of {type(model).__name__} are offloaded or on the meta device, and bake needs them all in "
            "memory; load the model without device_map."
        )
    require_all(edits, Edit, "an edit")
    _require_numbers(model)
    sites = find_sites(model, example)
    for edit in edits:
        edit.check(sites)
        edit.check_architecture(model.config.model_type)
        _check_length(model, edit)
        for site, heads in edit.select.resolve(sites).items() if edit.carried else ():
            edit.drops(whole_call(site, heads, (1, 1)))  # raises where it is for another number of heads
    cutting = [edit for edit in edits if not edit.carried]
    carried = [edit for edit in edits if edit.carried]
    baked, layers = copy.deepcopy(model), []
    if cutting or not carried:
        plans = plan_sites(sites, cutting)
        own = plan_layers(plans, sites)
        layers = [*own, *_feeding_layers(own, sites)]
        fold(baked, own, plans)
        operate(baked, layers)
        fill(baked, own, plans)
    burden = _load(baked, carried, layers) if carried else None
    baked.__class__ = baked_class(type(model), layers, burden=burden)
    if burden is not None:
        find_sites(baked, example)  # now, because later passes know no example
    require_same(model, baked, edits, example)
    return baked


def _require_numbers(model: Any) -> None:
    """Refuse weights that are not finite: what comes out is NaN, so no check could tell what bake did."""
    for name, weights in model.named_parameters():
        if weights.is_floating_point() and weights.element_size() > 1 and not bool(weights.isfinite().all()):
            raise ParameterError(
                f"{name} of this {type(model).__name__} holds NaN or infinity, so the model computes NaN; load "
                "weights of a training that did not diverge."
            )


def _check_length(model: Any, edit: Edit) -> None:
    """Refuse a mask with more positions than the model has: no text reaches them, so it was made for another model."""
    positions = getattr(model.config, "max_position_embeddings", None)
    longest = covered_length(edit)
    if positions and longest is not None and longest > positions >= 0:  # XLNet says -1: it has no end
        raise ShapeError(
            f"The cells of {type(edit).__name__} are for {longest} positions, but the model has {positions}; make them "
            "from averages of this model, or cut them."
        )


def covered_length(edit: Edit) -> int | None:
    """The positions that the cells of a mask are for; None for any other edit."""
    saved = edit.to_save()
    if not isinstance(saved, Mask | MaskOutsideWindow):
        return None
    assert not isinstance(saved.cells, Mask | MaskOutsideWindow)
    cells = saved.cells.values() if isinstance(saved.cells, Mapping) else [saved.cells]
    return max(max(tensor.shape[1:]) for tensor in cells)


def _load(baked: Any, edits: Sequence[Edit], layers: Sequence[Layer]) -> Burden:
    """Let a model carry edits."""
    burden, tensors = Burden.of([_with_architecture(edit.to_save(), baked.config.model_type) for edit in edits])
    carrier = Carrier.put(baked, burden, layers)
    for name, tensor in tensors.items():
        carrier.register_buffer(name, tensor.detach().to(next(baked.parameters()).device, copy=True))
    return burden


def _with_architecture(edit: Edit, kind: str) -> Edit:
    """An edit that says for which models it is, where it is a mask that names no sites."""
    if not isinstance(edit, Mask | MaskOutsideWindow) or isinstance(edit.cells, Mapping) or edit.made_for:
        return edit
    return dataclasses.replace(edit, made_for=kind)


def _feeding_layers(layers: Sequence[Layer], sites: Sequence[Site]) -> list[Layer]:
    """Self-attention that is not baked itself but gives baked cross-attention the positions of its queries."""
    crossed = crossed_streams(layers)
    baked = {layer.path for layer in layers}
    return [
        Layer(site.path, (site,), tuple(range(site.heads)))
        for site in sites
        if site.path not in baked and site.streams[0] == site.streams[1] in crossed and site.route == "interface"
    ]
