"""Hidden states of a frozen model, computed once for many probes, epochs and seeds."""

from .extract import BUDGET, extract
from .features import Features, orders
from .store import remove_features

__all__ = ["BUDGET", "Features", "extract", "orders", "remove_features"]
