"""Bake: make edits permanent in the weights and modules, so that compute and memory really go away."""

from .cost import Cost, Speed, cost, speed
from .make import bake
from .sitewise import SiteHeads, site_heads

__all__ = ["Cost", "SiteHeads", "Speed", "bake", "cost", "site_heads", "speed"]
