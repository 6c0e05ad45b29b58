"""Stats: what attention does over a whole data set, in memory that does not grow with it.

``attrim.stats.Histogram`` and every other registered stat is found without being listed here.
"""

from typing import Any

from ..core.registry import STATS
from .base import Stat, register

__all__ = ["STATS", "Stat", "register"]


def __getattr__(name: str) -> Any:
    return STATS.attribute(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *STATS.by_class_name()})
