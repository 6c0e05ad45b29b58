"""Relevance maps: which tokens and regions an answer comes from, and how good such a map is."""

from .explainer import Explainer, MapOptions, Maps, keep_highest
from .quality import Examiner, Quality, QualityOptions

__all__ = ["Examiner", "Explainer", "MapOptions", "Maps", "Quality", "QualityOptions", "keep_highest"]
