"""attrim: see what a network's attention does, trim what it does not need.

The names below are found when they are first used, so that ``import attrim`` does not import torch.
Every edit and stat is here under its class name too (``attrim.Threshold``), without being listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._lazy import make_lazy

if TYPE_CHECKING:
    from .bake import bake as bake
    from .bake import load as load
    from .edits import *  # noqa: F403
    from .errors import AttrimError as AttrimError
    from .evaluate import evaluate as evaluate
    from .loading import load_model as load_model
    from .loading import load_tokenizer as load_tokenizer
    from .measure import measure as measure
    from .select import Select as Select
    from .select import Site as Site
    from .sites import edit as edit
    from .sites import sites as sites
    from .stats import *  # noqa: F403

__version__ = "0.1.0"

make_lazy(
    __name__,
    names={
        "AttrimError": "errors",
        "Select": "select",
        "Site": "select",
        "bake": "bake",
        "edit": "sites",
        "evaluate": "evaluate",
        "load": "bake",
        "load_model": "loading",
        "load_tokenizer": "loading",
        "measure": "measure",
        "sites": "sites",
    },
    registries={"EDITS": "edits.base", "STATS": "stats.base"},
)
