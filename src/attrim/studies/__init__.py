"""Studies: whole experiments, from task to report."""

from __future__ import annotations

from .base import STUDIES

__all__ = ["STUDIES"]
