"""How far a head's attention is from its constant: a score that needs no training and no labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from ..edits.base import Edit
from ..edits.constant import Constant
from ..measurement import measure
from ..stats.distance import Divergence
from .base import Scores, register


@register("divergence")
def divergence(model: nn.Module, batches: Iterable[Mapping[str, Any]], constants: Any, *, seed: int = 0) -> Scores:
    """Mean Jensen-Shannon divergence between the rows of a head's attention and its constant; needs no labels."""
    edit = constants if isinstance(constants, Edit) else Constant(constants)
    stat = Divergence(edit)
    measure(model, batches, stat, progress=False)
    return Scores(stat.values(), stat.sites, "divergence")
