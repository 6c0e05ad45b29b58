"""attrim: see what a network's attention does, trim what it does not need.

The names below are imported when they are first used, so that ``import attrim`` does not import torch.
Every edit, stat, score and study is here under its class name too (``attrim.Threshold``), without being listed; import
it from its own module (``attrim.edits.threshold``) where a type checker is to know it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attention.context import edit as edit
    from .attention.discover import find_sites as sites  # noqa: F401
    from .baking import bake as bake
    from .core.site import Select as Select
    from .core.site import Site as Site
    from .errors import AttrimError as AttrimError
    from .evaluation import evaluate as evaluate
    from .measurement import measure as measure
    from .models.loading import load as load
    from .models.loading import load_model as load_model
    from .models.loading import load_tokenizer as load_tokenizer
    from .studies.bench import Bench as Bench
    from .studies.bench import TrainingBench as TrainingBench
    from .studies.findings import findings as findings
    from .web.showing import show as show

__version__ = "0.1.0"

_PLACES = {
    "AttrimError": "errors:AttrimError",
    "Bench": "studies.bench:Bench",
    "Select": "core.site:Select",
    "Site": "core.site:Site",
    "TrainingBench": "studies.bench:TrainingBench",
    "bake": "baking:bake",
    "edit": "attention.context:edit",
    "evaluate": "evaluation:evaluate",
    "findings": "studies.findings:findings",
    "load": "models.loading:load",
    "load_model": "models.loading:load_model",
    "load_tokenizer": "models.loading:load_tokenizer",
    "measure": "measurement:measure",
    "show": "web.showing:show",
    "sites": "attention.discover:find_sites",
}
_REGISTRIES = ("core.registry:EDITS", "core.registry:STATS", "core.registry:SCORES", "core.registry:STUDIES")


def _find(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"{__name__}.{module}"), name)


def _members() -> dict[str, Any]:
    """Everything that is registered, by class name."""
    return {name: member for place in _REGISTRIES for name, member in _find(place).by_class_name().items()}


def __getattr__(name: str) -> Any:
    if name == "__all__":  # asked for by ``from attrim import *``
        return sorted({*_PLACES, *_members()})
    if name in _PLACES:
        value = _find(_PLACES[name])
    else:
        # One after the other: who asks for an edit need not wait for all that scores import.
        served = (_find(place).by_class_name() for place in _REGISTRIES if name[:1].isupper())
        value = next((members[name] for members in served if name in members), None)
    if value is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES, *_members()})
