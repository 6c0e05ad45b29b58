"""How attention comes to point where it points, while a model trains."""

from __future__ import annotations

from .checkpoint_study import DynamicsCheckpoints
from .study import DynamicsCopy, DynamicsMultihead
from .text_studies import DynamicsClassify, DynamicsTranslate

__all__ = ["DynamicsCheckpoints", "DynamicsClassify", "DynamicsCopy", "DynamicsMultihead", "DynamicsTranslate"]
