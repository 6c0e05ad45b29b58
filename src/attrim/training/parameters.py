"""Which parameters are trained, and how: frozen ones by pattern, weight decay for matrices only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise SelectionError(
                f"No parameter fits the pattern {pattern!r} to freeze; the model's are called {names[0]} and so on."
            )
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


def groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser: matrices decay, vectors (biases and norms) do not."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim > 1]
    vectors = [parameter for parameter in trained if parameter.ndim <= 1]
    decayed = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in decayed if group["params"]]
