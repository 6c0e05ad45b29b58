"""What an edit is: a dataclass that overrides one moment of an attention call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..core.call import Call
from ..core.registry import EDITS
from ..core.site import Select, Site, require_select
from ..core.text import read_numbers
from ..kernels.operations import RowOperation
from ..kernels.rules import KeptSpans

register = EDITS.register


# No generated equality here: an edit that holds tensors would inherit it and equal any other with the same selection.
@dataclass(frozen=True, kw_only=True, eq=False)
class Edit:
    """Base of all edits: override exactly one of the moments and nothing else.

    The machinery calls the moment with the tensor reduced to the heads that ``select`` chooses, puts the result
    back among the others, and zeroes whatever lands on a forbidden cell.

    Parameters
    ----------
    select : which sites and heads the edit changes (default: all).
    """

    select: Select = field(default_factory=Select)
    registered_name: ClassVar[str]
    carried: ClassVar[bool] = False
    """Whether a baked model keeps the edit as it is, because what the model was trained with may not get lost."""

    def __post_init__(self) -> None:
        """Check the numbers; an edit with checks of its own calls this first."""
        require_select(self.select)
        read_numbers(self)

    def edit_scores(self, scores: Tensor, call: Call) -> Tensor:
        """Change scores ``[B, H, Q, K]`` before they are normalised; ``-inf`` removes a cell."""
        return scores

    def normalise(self, scores: Tensor, call: Call) -> Tensor | None:
        """Turn scores ``[B, H, Q, K]`` (``-inf`` if forbidden) into weights instead of softmax; None keeps softmax."""
        return None

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        """Change weights ``[B, H, Q, K]`` after they are normalised and before they multiply the values."""
        return weights

    def edit_output(self, output: Tensor, call: Call) -> Tensor:
        """Change the output ``[B, H, Q, D]`` of every head before heads are mixed."""
        return output

    def edit_layer_input(self, hidden: Tensor, call: Call) -> Tensor:
        """Change the hidden states ``[B, L, D]`` that enter a layer (a block around self-attention)."""
        return hidden

    def edit_layer_output(self, hidden: Tensor, call: Call) -> Tensor:
        """Change the hidden states ``[B, L, D]`` that leave a layer."""
        return hidden

    def compiles(self, call: Call) -> RowOperation | None:
        """What the fused pass does to each row of weights in place of :meth:`edit_weights`, where that is all.

        It must give what :meth:`edit_weights` gives, up to rounding. None leaves it to :meth:`edit_weights`.
        """
        return None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "edit_weights" in vars(cls) and "compiles" not in vars(cls):
            cls.compiles = Edit.compiles  # type: ignore[method-assign]  # what the parent's operation does is not it

    def drops(self, call: Call) -> Tensor | None:
        """The cells that the edit removes before the softmax, bool ``[B|1, H|1, Q, K]``, where that is all it does.

        A kernel may then leave them out instead of computing and removing them. None where an edit does more.
        """
        return None

    def kept_spans(self, call: Call) -> Sequence[KeptSpans] | None:
        """The cells that :meth:`drops` leaves, by rule: no matrix of cells is formed, so that texts may be long.

        Only asked for calls in which the tokens of all examples stand at their positions (no leads, no ``slots``).

        Returns
        -------
        the spans of keys that the queries of each head of the call keep, or one entry where any heads keep
        the same. None (default) where there is no rule, or where the cells are stored anyway.
        """
        return None

    def for_examples(self, index: NDArray[np.int64]) -> Edit:
        """The edit as a batch needs it that holds the examples ``index [B]`` of a task; most treat all alike.

        What evaluates a task asks for it before each batch.
        """
        return self

    def check(self, sites: Sequence[Site]) -> None:
        """Refuse to be switched on in a model with these sites; called before anything runs."""

    def check_architecture(self, kind: str | None) -> None:
        """Refuse to be switched on in a model whose configuration has this ``model_type``, where it has one."""

    def to_save(self) -> Edit:
        """The edit that is saved in place of this one and does the same; only where that is smaller, another one."""
        return self

    def note(self) -> str:
        """What commands say about the edit beside its results, such as how sparse it is; nothing by default."""
        return ""

    def overrides(self, moment: str) -> bool:
        """Whether this edit changes the given moment."""
        return getattr(type(self), moment, None) is not getattr(Edit, moment, None)

    def apply(self, weights: Tensor, mask: Tensor | None = None) -> Tensor:
        """Edit a plain tensor of weights ``[B, H, Q, K]`` with no model (scores, for an edit of scores).

        Parameters
        ----------
        mask : None, ``[B, K]`` real tokens, or ``[B|1, H|1, Q, K]`` allowed cells.
        """
        from ..core.plan import Plan

        call = Call.plain(weights, mask)
        return Plan([(self, self.select.resolve([call.site])[call.site])]).run_plain(weights, call)
