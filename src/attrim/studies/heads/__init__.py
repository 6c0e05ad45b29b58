"""The heads study: which heads does an explanation say matter, and is it right? (https://arxiv.org/abs/2103.15679)."""

from __future__ import annotations

from .study import Heads

__all__ = ["Heads"]
