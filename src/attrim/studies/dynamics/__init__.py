"""How attention comes to point where it points, while a model trains."""

from __future__ import annotations

from .study import DynamicsCopy, DynamicsMultihead

__all__ = ["DynamicsCopy", "DynamicsMultihead"]
