"""Edits: what changes the attention of a model. One method a file, found by name in :data:`EDITS`.

``attrim.edits.Threshold`` and every other registered edit is found without being listed here.
"""

from typing import Any

from ..core.registry import EDITS
from .base import Edit, register
from .saving import load_edits, save_edits

__all__ = ["EDITS", "Edit", "load_edits", "register", "save_edits"]


def __getattr__(name: str) -> Any:
    return EDITS.attribute(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *EDITS.by_class_name()})
