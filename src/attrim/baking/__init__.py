"""Bake: make edits permanent in the weights and modules, so that compute and memory really go away."""

from .cost import Cost, Speed, cost, speed
from .make import bake

__all__ = ["Cost", "Speed", "bake", "cost", "speed"]
