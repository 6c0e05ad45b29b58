"""From edits to what becomes of every head: it attends as before, follows a fixed matrix, or goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core import record
from ..core.call import Call
from ..core.site import Site
from ..edits.base import Edit
from ..edits.constant import Constant, Outside
from ..edits.gate import Gate
from ..errors import ParameterError, SiteError


@dataclass
class SitePlan:
    """The heads of one site after all edits.

    Attributes
    ----------
    factors : float64 ``[H]``, what the output of each head is multiplied with; a head with 0 goes.
    matrices : the fixed matrix ``[N, M]`` of every constant head.
    outside : what a text longer than the matrices gives.
    """

    site: Site
    factors: Tensor
    matrices: dict[int, Tensor] = field(default_factory=dict)
    outside: Outside = "error"

    @property
    def gone(self) -> set[int]:
        """The heads that contribute nothing."""
        return {head for head in range(self.site.heads) if self.factors[head] == 0}

    @property
    def constant(self) -> set[int]:
        """The heads that follow a fixed matrix and contribute something."""
        return self.matrices.keys() - self.gone


@dataclass(frozen=True)
class Layer:
    """How the heads of one attention module are baked: all that is needed to cut a fresh copy of it again.

    Attributes
    ----------
    path : the module's path.
    sites : the sites that the module serves, in the order of its calls.
    kept : heads that attend as before.
    constant : heads that follow fixed matrices.
    shapes : the shape ``[C|1, N, M]`` of the matrices, one for each site.
    outside : what a text longer than the matrices gives.
    """

    path: str
    sites: tuple[Site, ...]
    kept: tuple[int, ...]
    constant: tuple[int, ...] = ()
    shapes: tuple[tuple[int, int, int], ...] = ()
    outside: Outside = "error"

    @property
    def heads(self) -> int:
        """How many heads the module had."""
        return self.sites[0].heads

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Layer:
        """The inverse of :meth:`to_json`; raises ArtefactError or ValueError on anything else."""
        layer: Layer = record.load(cls, fields, "layer of a baked model")
        named = {*layer.kept, *layer.constant}
        if not layer.sites or not named <= set(range(layer.heads)) or len(layer.shapes) not in (0, len(layer.sites)):
            raise ValueError(f"the heads of {layer.path} do not fit together")
        return layer


def plan_sites(sites: Sequence[Site], edits: Iterable[Edit]) -> dict[Site, SitePlan]:
    """What the edits, applied in order, make of the heads; sites that no edit touches are left out."""
    plans: dict[Site, SitePlan] = {}
    everything = list(edits)
    if not everything:
        raise ParameterError("There is nothing to bake: give at least one edit, such as Constant(...) or Gate(0, ...).")
    for edit in everything:
        if type(edit) not in (Constant, Gate):
            raise ParameterError(
                f"{type(edit).__name__} cannot be baked, only Constant, Gate, masks, windows and entmax can; use it as "
                "attrim.edit(model, ...)."
            )
        for site, heads in edit.select.resolve(sites).items():
            plan = plans.setdefault(site, SitePlan(site, torch.ones(site.heads, dtype=torch.float64)))
            call = Call.plain(torch.empty(1, site.heads, 1, 1), site=site).for_heads(heads)
            if isinstance(edit, Constant):
                _make_constant(plan, edit, call)
            else:
                ones = torch.ones(1, len(heads), 1, 1, dtype=torch.float64)
                plan.factors[list(heads)] *= edit.edit_weights(ones, call)[0, :, 0, 0].detach().cpu()
    return plans


def _make_constant(plan: SitePlan, edit: Constant, call: Call) -> None:
    """A constant replaces whatever earlier edits made of the head's weights."""
    matrix = edit.matrices(call).detach().cpu()
    for place, head in enumerate(call.heads):
        plan.matrices[head] = matrix[place if len(matrix) > 1 else 0]
        plan.factors[head] = 1.0
    plan.outside = edit.outside


def plan_layers(plans: dict[Site, SitePlan], sites: Sequence[Site]) -> list[Layer]:
    """The plans of sites, joined to one for each attention module (a module may serve several sites)."""
    layers = []
    for path in dict.fromkeys(site.path for site in plans):
        served = tuple(site for site in sites if site.path == path)
        first = plans.get(served[0])
        if first is None or any(site not in plans or not _same_heads(plans[site], first) for site in served):
            raise SiteError(
                f"{' and '.join(other.name for other in served[:2])} are one module, so the same heads must be "
                "constant or removed at all of its sites; choose them alike."
            )
        constant = tuple(sorted(first.constant))
        kept = tuple(head for head in range(first.site.heads) if head not in first.gone and head not in constant)
        shapes = tuple((*matrices_of(plans[site], constant).shape,) for site in served) if constant else ()
        layers.append(Layer(path, served, kept, constant, shapes, first.outside))
    return layers


def _same_heads(plan: SitePlan, other: SitePlan) -> bool:
    return plan.gone == other.gone and plan.constant == other.constant


def crossed_streams(layers: Iterable[Layer]) -> set[str]:
    """The streams whose queries ask in cross-attention with constant heads."""
    return {site.streams[0] for layer in layers if layer.constant for site in layer.sites if len(set(site.streams)) > 1}


def matrices_of(plan: SitePlan, heads: Sequence[int]) -> Tensor:
    """The matrices ``[C, N, M]`` of some heads in float32, or ``[1, N, M]`` when they are all the same."""
    matrices = [plan.matrices[head] for head in heads]
    if len({matrix.shape for matrix in matrices}) > 1:
        raise ParameterError(
            f"The constants of {plan.site.name} have different sizes; give all of a site's heads matrices of one size."
        )
    if all(matrix is matrices[0] or torch.equal(matrix, matrices[0]) for matrix in matrices):
        matrices = matrices[:1]
    return torch.stack(matrices).float()
