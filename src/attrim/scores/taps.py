"""Gradients of what a model answers, by what its heads compute: one pass forward and one back for a batch.

Taps are edits that change nothing. They keep the tensor of their moment, so that autograd can be asked for its
gradient. A tap of outputs leaves the model on its fused attention kernel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..attention.context import attach
from ..attention.discover import find_sites
from ..core.call import Call
from ..core.modes import device_of, frozen, in_mode
from ..core.site import Select, Site
from ..edits.base import Edit
from ..errors import DataError
from .target import explained, places_of, unlabelled

Cells = Literal["sum", "mean"]
"""Whether the cells of an attention matrix are added or averaged, over those of real tokens."""


@dataclass(frozen=True, eq=False)
class Tap(Edit):
    """Keeps the tensors of a moment; one of the classes below says of which.

    Parameters
    ----------
    tensors : filled while the model runs, by site name: ``[B, H, Q, D]`` outputs or ``[B, H, Q, K]`` weights.
    cells : filled too: ``[B]``, how many cells of real queries and keys each example has.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    cells: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, tensor: Tensor, call: Call) -> Tensor:
        """The tensor, kept; where nothing before it asks for a gradient, a leaf that does."""
        tensor = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        self.tensors[call.site.name] = tensor
        real = (call.queries.sum(-1) * call.keys.sum(-1)).clamp(min=1)
        self.cells[call.site.name] = real.expand(len(tensor)) if len(real) == 1 else real
        return tensor

    def sums(self, values: Mapping[str, Tensor], cells: Cells = "sum") -> dict[str, Tensor]:
        """Values of the shape of the tensors, added or averaged to ``[B, H]``, by site name."""
        sums = {name: each.sum((-2, -1)) for name, each in values.items()}
        return sums if cells == "sum" else {name: each / self.cells[name][:, None] for name, each in sums.items()}

    def clear(self) -> None:
        """Forget the last pass, and with it its memory."""
        self.tensors.clear()
        self.cells.clear()


@dataclass(frozen=True, eq=False)
class OutputTap(Tap):
    """Keeps the outputs of heads."""

    def edit_output(self, output: Tensor, call: Call) -> Tensor:
        """The same outputs ``[B, H, Q, D]``."""
        return self.keep(output, call)

    def changes(self, slopes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What removing each head does to first order, ``[B, H]`` by site name, from the gradients of the outputs."""
        return self.sums({name: -slope * self.tensors[name].detach() for name, slope in slopes.items()})


@dataclass(frozen=True, eq=False)
class WeightTap(Tap):
    """Keeps the attention weights."""

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        """The same weights ``[B, H, Q, K]``."""
        return self.keep(weights, call)


class Tapped:
    """A model with taps, and batches to run through it.

    Parameters
    ----------
    batches : dicts of tensors.
    select : the heads to tap.
    """

    def __init__(self, model: nn.Module, batches: Iterable[Mapping[str, Any]], select: Select | None = None) -> None:
        self.model = model
        self.device = device_of(model)
        stream = iter(batches)
        first = next(stream, None)
        if first is None:
            raise DataError("There is nothing to score heads on: the batches are empty.")
        self._batches = chain([first], stream)
        example = {name: tensor[:1].to(self.device) for name, tensor in unlabelled(first).items()}
        self.select = select or Select()
        self.sites: dict[Site, tuple[int, ...]] = self.select.resolve(find_sites(model, example))

    @contextlib.contextmanager
    def attached(self, *edits: Edit) -> Iterator[None]:
        """The model in evaluation mode with the edits, and gradients for what they keep alone."""
        quiet = in_mode(self.model, training=False), frozen(self.model), torch.enable_grad()
        with contextlib.ExitStack() as stack:
            for context in (*quiet, attach(self.model, edits, select=self.select)):
                stack.enter_context(context)
            yield

    def batches(self) -> Iterator[dict[str, Tensor]]:
        """The batches, where the model is."""
        for batch in self._batches:
            yield {name: tensor.to(self.device) for name, tensor in batch.items()}

    def filled(self, values: Mapping[str, Tensor], examples: int) -> dict[str, Tensor]:
        """The values of one batch for every site, ``[B, H]`` in float64; 0 at sites without influence."""
        return {
            site.name: by_example(values[site.name], examples).double().cpu()
            if site.name in values
            else torch.zeros(examples, len(heads), dtype=torch.float64)
            for site, heads in self.sites.items()
        }


def gradients(number: Tensor, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of a number by each tensor, by the same names; without those that have no influence on it."""
    if not number.requires_grad:
        return {}
    found = torch.autograd.grad(number, list(tensors.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(tensors, found, strict=True) if gradient is not None}


def by_example(values: Tensor, examples: int) -> Tensor:
    """Values ``[B, H]``; where a text or image is cut into windows, each a row of its own, their sum."""
    return values.unflatten(0, (examples, -1)).sum(1) if len(values) != examples else values


def influential_sites(model: nn.Module, batch: Mapping[str, Any]) -> list[Site]:
    """The sites that the model's answers depend on; what the last layer computes for nothing is not among them.

    LXMERT answers from a token of its text, so the image side of its last cross layer has no influence.
    """
    tapped, tap = Tapped(model, [batch]), OutputTap()
    with tapped.attached(tap):
        (inputs,) = tapped.batches()
        places = places_of(model, model(**unlabelled(inputs)), inputs)
        reached = gradients(explained(places, None).sum(), tap.tensors)
    return [site for site in tapped.sites if site.name in reached]
