"""A window, the first tokens, and any other cells that a mask keeps, for texts of any length.

Fixed patterns of this kind are those of Longformer (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150) and BigBird
(Zaheer et al. 2020, https://arxiv.org/abs/2007.14062).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from ..core.call import Call
from ..core.site import Site
from ..errors import ParameterError
from ..kernels.rules import KeptSpans
from .base import Edit, register
from .mask import Mask, Unseen, adopt, load_mask, mask
from .window import Window


def load_masking(source: str) -> Mask | MaskOutsideWindow:
    """What :func:`~attrim.edits.mask.load_mask` reads, or a :class:`MaskOutsideWindow` that was saved."""
    return load_mask(source, MaskOutsideWindow)


@register("mask-outside-window")
@dataclass(frozen=True, eq=False)
class MaskOutsideWindow(Edit):
    """Remove the cells of a mask that lie outside of a window; beyond the mask's size, all that do.

    So a window and the first keys are kept everywhere, and other cells (of global tokens, say) where the mask keeps
    them.

    Parameters
    ----------
    cells : bool ``[H|1, N, M]`` for all sites, or a dict from site name to such, as in :class:`Mask`: True is removed,
        unless it is in the window. A mask that was saved serves as well, with its selection; so does another
        ``MaskOutsideWindow``, with its ``size`` and ``first`` unless others are given.
    size, first : see :class:`Window`.
    about, made_for : see :class:`Mask`.
    """

    carried = True
    unseen: ClassVar[Unseen] = "prune"

    cells: Tensor | Mapping[str, Tensor] | Mask | MaskOutsideWindow = field(
        metadata={"parse": load_masking, "stats": False}
    )
    size: int | None = None
    first: int | None = None
    about: str = field(default="", kw_only=True, metadata={"label": False})
    made_for: str = field(default="", kw_only=True, metadata={"label": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.cells
        if isinstance(given, Mask):
            if given.empty not in (None, "zero"):
                raise ParameterError(
                    f"A mask with empty={given.empty!r} cannot be joined with a window, which says itself what is left "
                    "of a row; give a mask with empty='zero'."
                )
            adopt(self, given)
        elif isinstance(given, MaskOutsideWindow):
            adopt(self, given, "size", "first")
        _ = self._mask, self._window  # which check what they are made of

    @functools.cached_property
    def _mask(self) -> Mask:
        assert not isinstance(self.cells, MaskOutsideWindow)
        return Mask(self.cells, self.unseen, about=self.about, made_for=self.made_for, select=self.select)

    @functools.cached_property
    def _window(self) -> Window:
        if self.size is None:
            raise ParameterError(
                "MaskOutsideWindow needs a size, how many keys on a side of the query are kept; give size=256, for "
                "example."
            )
        return Window(self.size, self.first or 0, select=self.select)

    def edit_scores(self, scores: Tensor, call: Call) -> Tensor:
        """Scores ``[B, H, Q, K]`` with ``-inf`` on removed cells."""
        return mask(scores, self.drops(call))

    def drops(self, call: Call) -> Tensor:
        """See :meth:`Edit.drops`."""
        return self._mask.removed(call) & self._window.drops(call)

    def kept_spans(self, call: Call) -> Sequence[KeptSpans] | None:
        """See :meth:`Edit.kept_spans`: where a text is longer than the stored cells."""
        stored = self._mask.kept_spans(call)
        if stored is None:
            return None
        (window,) = self._window.kept_spans(call)
        return [KeptSpans.any_of([window, own]) for own in stored]

    def check(self, sites: Sequence[Site]) -> None:
        """See :meth:`Edit.check`."""
        self._mask.check(sites)

    def check_architecture(self, kind: str | None) -> None:
        """See :meth:`Edit.check_architecture`."""
        self._mask.check_architecture(kind)

    def note(self) -> str:
        """How the mask was made."""
        return self.about
