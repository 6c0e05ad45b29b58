"""Edits: what changes the attention of a model. One method a file, found by name in :data:`EDITS`."""

from ..core.registry import EDITS
from .base import Edit, register
from .constant import Constant
from .gate import Gate
from .hidden_quantize import HiddenQuantize
from .hidden_threshold import HiddenThreshold
from .mask import Mask
from .mix import Mix
from .offset import Offset
from .parse import describe, parse_edit
from .quantize import Quantize
from .randomdrop import RandomDrop
from .saving import load_edits, save_edits
from .threshold import Threshold
from .uniform import Uniform

__all__ = [
    "EDITS",
    "Constant",
    "Edit",
    "Gate",
    "HiddenQuantize",
    "HiddenThreshold",
    "Mask",
    "Mix",
    "Offset",
    "Quantize",
    "RandomDrop",
    "Threshold",
    "Uniform",
    "describe",
    "load_edits",
    "parse_edit",
    "register",
    "save_edits",
]
