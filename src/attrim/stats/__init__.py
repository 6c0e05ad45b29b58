"""Stats: what attention does over a whole data set, in memory that does not grow with it."""

from ..core.registry import STATS
from .base import Stat
from .histogram import Histogram
from .mean import Mean
from .moments import Moments
from .sample import Sample

__all__ = ["STATS", "Histogram", "Mean", "Moments", "Sample", "Stat"]
