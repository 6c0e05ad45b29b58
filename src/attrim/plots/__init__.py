"""Figures of the constant study, until it makes charts."""

from __future__ import annotations

from .style import save

__all__ = ["save"]
