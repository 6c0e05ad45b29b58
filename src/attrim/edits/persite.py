"""What an edit holds for every site: find the part that one attention call needs, or say what is missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.call import Call
from ..core.site import Site
from ..errors import ParameterError, SelectionError, ShapeError, SiteError
from .base import Edit


def at_site(values: Any, site: Site, what: str) -> Any:
    """What ``values`` hold for ``site``: the entry under its name if they are a mapping, else themselves.

    What was measured on the same backbone with another head, or with none, has the entry under the other name; what
    comes from a file that knows no names has it under ``ROLE/LAYER``.
    """
    if not isinstance(values, Mapping):
        return values
    for name in names_of(site):
        if name in values:
            return values[name]
    known = ", ".join(list(values)[:4]) + (", ..." if len(values) > 4 else "")
    raise SiteError(
        f"There is no {what} for site {site.name!r}, only for {known or 'no site at all'}; add it, or leave the site "
        "out with select=Select(names=...)."
    )


def names_of(site: Site) -> tuple[str, ...]:
    """The names under which a mapping may hold what belongs to a site."""
    return (*site.aliases, f"{site.role}/{site.layer}")


def at_heads(tensor: Tensor, call: Call, axis: int, what: str) -> Tensor:
    """The entries of ``tensor`` along ``axis`` for the heads of the call; an axis of one serves all heads."""
    size = tensor.shape[axis]
    if size == 1:
        return tensor
    if size != call.site.heads:
        raise ShapeError(
            f"The {what} for site {call.site.name!r} is for {size} heads but the site has {call.site.heads}; "
            "give one entry for each head, or a single one for all."
        )
    if len(call.heads) == size:
        return tensor
    return tensor.index_select(axis, torch.tensor(call.heads, device=tensor.device))


def choose_heads(edit: Edit, heads: Sequence[Any] | int | None) -> None:
    """Put ``heads=...``, which some edits take for short, into the selection of an edit that is being made."""
    if heads is None:
        return
    if edit.select.heads is not None:
        raise SelectionError(f"{type(edit).__name__} got heads both as heads=... and in select=...; give them once.")
    object.__setattr__(edit, "select", dataclasses.replace(edit.select, heads=heads))


def check_matrices(values: object, what: str, boolean: bool) -> None:
    """Refuse anything but tensors ``[H|1, N, M]`` of the right kind, alone or by site name."""
    tensors = values if isinstance(values, Mapping) else {"all sites": values}
    if not tensors:
        raise ParameterError(
            f"There is nothing in {what}; give one tensor [H, N, M] for all sites, or one for each site by its name."
        )
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise ParameterError(f"The {what} for {name} must be a tensor [H, N, M], not {type(tensor).__name__}.")
        if tensor.ndim != 3 or 0 in tensor.shape:
            raise ShapeError(
                f"The {what} for {name} must have the shape [H, N, M] or [1, N, M] with no axis of 0, not "
                f"{list(tensor.shape)}."
            )
        if boolean and tensor.dtype is not torch.bool:
            raise ParameterError(
                f"The {what} for {name} must be boolean, not {tensor.dtype}; write cells > 0 or the like."
            )
        if not boolean and not tensor.is_floating_point():
            raise ParameterError(f"The {what} for {name} must be floating point, not {tensor.dtype}; use .float().")
        if tensor.is_meta:
            raise ParameterError(
                f"What was given as {what} for {name} is on the meta device, without numbers; load or make them."
            )
        if not boolean and not bool(torch.isfinite(tensor).all()):
            raise ParameterError(f"The {what} for {name} contains NaN or infinity; replace those cells with 0.")
