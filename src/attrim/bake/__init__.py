"""Bake: make edits permanent in the weights and modules, so that compute and memory really go away."""

from .costs import Cost, cost
from .make import bake, load

__all__ = ["Cost", "bake", "cost", "load"]
