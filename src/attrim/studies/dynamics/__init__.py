"""How attention comes to point where it points, while a model trains."""

from __future__ import annotations

from .study import DynamicsCopy, DynamicsMultihead
from .text_studies import DynamicsClassify, DynamicsTranslate

__all__ = ["DynamicsClassify", "DynamicsCopy", "DynamicsMultihead", "DynamicsTranslate"]
