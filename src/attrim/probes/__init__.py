"""Probes: small heads on all hidden states of a frozen model (PAPA, https://arxiv.org/abs/2211.03495).

Names are imported when used, because the command line reads :class:`ProbeRecipe` before anything needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import make_lazy

if TYPE_CHECKING:
    from .base import Probe as Probe
    from .make import make_probe as make_probe
    from .masked import MaskedProbe as MaskedProbe
    from .packed import Packed as Packed
    from .probed import Probed as Probed
    from .probed import Trained as Trained
    from .recipe import ProbeRecipe as ProbeRecipe
    from .sequence import SequenceProbe as SequenceProbe
    from .store import load_probe as load_probe
    from .store import save_probe as save_probe
    from .token import TokenProbe as TokenProbe
    from .training import evaluate_probe as evaluate_probe
    from .training import train_probe as train_probe

_PLACES = {
    "MaskedProbe": "masked",
    "Packed": "packed",
    "Probe": "base",
    "ProbeRecipe": "recipe",
    "Probed": "probed",
    "SequenceProbe": "sequence",
    "TokenProbe": "token",
    "Trained": "probed",
    "evaluate_probe": "training",
    "load_probe": "store",
    "make_probe": "make",
    "save_probe": "store",
    "train_probe": "training",
}
__all__ = list(_PLACES)

make_lazy(__name__, _PLACES)
