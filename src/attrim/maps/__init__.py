"""Relevance maps: which tokens and regions an answer comes from, and how good such a map is."""

from .explainer import Explainer, MapOptions, Maps, keep_highest

__all__ = ["Explainer", "MapOptions", "Maps", "keep_highest"]
