"""The first layers of a forward pass, remembered, for settings that edit only later ones.

A sweep over layers edits one layer at a time. What comes before that layer is the unedited model, the same in every
setting, so it is computed once for each batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..core.site import Site
from ..edits.base import Edit
from .discover import map_of, root_of


class Prefix:
    """The layers of a model in the order they run, and what each gave in the pass that was recorded last.

    Models that call one layer module several times (ALBERT) share nothing: their later calls cannot be distinguished
    from the first ones. The same holds for edits of a site that is in no layer, and several passes in one recording.
    """

    def __init__(self, model: nn.Module, example: Any = None) -> None:
        found = map_of(model, example)
        self.sites: list[Site] = list(found.sites)
        several = any(len(sites) > 1 for sites in found.layers.values())
        self._layers = {
            name: module for name, module in root_of(model).named_modules() if module in found.layers and not several
        }
        self._order: list[str] = []
        self._outputs: dict[str, Any] = {}

    @contextmanager
    def record(self) -> Iterator[None]:
        """Remember what every layer gives in the forward pass that runs inside.

        Record while :func:`attrim.attention.context.attach` is active, as it is for the edited passes: without it a
        model may compute in another way (torch's encoder packs the real tokens) whose outputs do not fit.
        """
        self._order.clear()
        self._outputs.clear()

        def keep(name: str) -> Any:
            def hook(module: nn.Module, inputs: Any, output: Any) -> None:
                self._order.append(name)
                self._outputs[name] = output

            return hook

        handles = [module.register_forward_hook(keep(name)) for name, module in self._layers.items()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if len(self._order) > len(self._outputs):
            self._order.clear()

    def unedited(self, edits: Iterable[Edit]) -> list[str]:
        """The layers that run before the first one that the edits change, by the order of the recorded pass."""
        first = len(self._order)
        for edit in edits:
            for site in edit.select.resolve(self.sites):
                place = [number for number, name in enumerate(self._order) if site.path.startswith(f"{name}.")]
                first = min(first, place[0] if place else 0)
        return self._order[:first]

    @contextmanager
    def replay(self, layers: Iterable[str]) -> Iterator[None]:
        """Let these layers give what they gave in the recorded pass instead of computing."""
        replaced: list[tuple[nn.Module, Any]] = []
        try:
            for name in layers:
                module = self._layers[name]
                replaced.append((module, module.__dict__.get("forward")))
                module.__dict__["forward"] = _constant(self._outputs[name])
            yield
        finally:
            for module, own in reversed(replaced):
                if own is None:
                    del module.__dict__["forward"]
                else:
                    module.__dict__["forward"] = own


def _constant(output: Any) -> Any:
    return lambda *args, **kwargs: output
