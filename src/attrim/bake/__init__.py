"""Bake: make edits permanent in the weights and modules, so that compute and memory really go away."""

from .costs import Cost, cost
from .make import bake, load
from .speed import Speed, speed

__all__ = ["Cost", "Speed", "bake", "cost", "load", "speed"]
