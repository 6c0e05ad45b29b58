"""Find the attention of a model: ``attrim.sites(model)`` lists it, this package reaches it."""

from __future__ import annotations

import sys
import types
from typing import Any

from ..select import Select, Site

__all__ = ["Select", "Site", "attach", "edit", "find_sites"]


def __getattr__(name: str) -> Any:
    if name == "find_sites":
        from .discover import find_sites

        return find_sites
    if name in ("attach", "edit"):
        from . import context

        return getattr(context, name)
    raise AttributeError(name)


class _CallableModule(types.ModuleType):
    """Lets ``attrim.sites(model)`` work although importing this package binds its module to that name."""

    def __call__(self, model: Any, example: Any = None) -> list[Site]:
        from .discover import find_sites

        return find_sites(model, example)


sys.modules[__name__].__class__ = _CallableModule
