"""Which parameters are trained, and how: frozen ones and own learning rates by pattern, decay for matrices only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from ..errors import ParameterError, SelectionError


def matches(name: str, pattern: str) -> bool:
    """Whether a dotted parameter name fits: ``layer.1`` is in ``encoder.layer.1.bias``, not in ``layer.11.bias``."""
    return fnmatchcase(name, pattern) or f".{pattern}." in f".{name}."


@contextmanager
def frozen(model: nn.Module, patterns: Sequence[str]) -> Iterator[None]:
    """Keep the parameters that fit a pattern from being trained; afterwards all are as before."""
    _require_fits(model, patterns, "to freeze")
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    for name, parameter in model.named_parameters():
        if any(matches(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
    try:
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ParameterError("Every parameter is frozen, so there is nothing to train; freeze fewer of them.")
        yield
    finally:
        for parameter, trained in before.items():
            parameter.requires_grad_(trained)


def groups(model: nn.Module, weight_decay: float, factors: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser: matrices decay, vectors (biases and norms) do not.

    Parameters
    ----------
    factors : what to multiply the learning rate with, by name or pattern; the first that fits counts. Each group has
        its own under ``factor``.
    """
    factors = factors or {}
    _require_fits(model, factors, "for a learning rate of its own")
    found: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            factor = next((factor for pattern, factor in factors.items() if matches(name, pattern)), 1.0)
            found.setdefault((factor, parameter.ndim > 1), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": weight_decay if matrices else 0.0, "factor": factor}
        for (factor, matrices), parameters in sorted(found.items(), key=lambda item: (item[0][0], not item[0][1]))
    ]


def _require_fits(model: nn.Module, patterns: Iterable[str], purpose: str) -> None:
    """Refuse a pattern that no parameter fits."""
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise SelectionError(
                f"No parameter fits the pattern {pattern!r} {purpose}; the model's are called {names[0]} and so on."
            )
