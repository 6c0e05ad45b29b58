"""Constant families: which fixed matrix takes the place of a head's attention, and how sure an average is.

The average is that of PAPA (Hassid et al. 2022, https://arxiv.org/abs/2211.03495); the others say what it is worth.
"""

from .base import FAMILIES, Family, constant_edits, make_constants
from .sampling import Counts, count_summary, split_half

__all__ = ["FAMILIES", "Counts", "Family", "constant_edits", "count_summary", "make_constants", "split_half"]
