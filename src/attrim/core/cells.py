"""What a notebook shows of an object: a view of the page, in a frame of its own."""

from __future__ import annotations

from importlib import import_module

RENDERER = "attrim.report.page.notebook"
"""The module that draws; found by its name, because it knows everything that can be shown and nothing knows it."""


class Cell:
    """Base of objects that a notebook shows as a view instead of as text."""

    def _repr_html_(self) -> str:
        html: str = import_module(RENDERER).html(self)
        return html
