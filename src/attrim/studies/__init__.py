"""Studies: whole experiments, from task to report."""

from __future__ import annotations

from ..core.registry import STUDIES

__all__ = ["STUDIES"]
