"""The demo: what a real model's attention looks like, and how much of it can be zeroed."""

from __future__ import annotations

from .study import Demo, DemoBench

__all__ = ["Demo", "DemoBench"]
