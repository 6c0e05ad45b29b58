"""Small edits, stats and comparisons that the tests of sites share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attrim.core.call import Call
from attrim.edits.base import Edit
from attrim.stats.base import Stat
from zoo import Animal


class TorchCalls(TorchDispatchMode):
    """Notes what torch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


class Keep(Stat):
    """Remembers the last tensor and call of every site."""

    def __init__(self, moment: str = "weights") -> None:
        self.moment = moment  # type: ignore[misc]
        self.tensors: dict[str, Tensor] = {}
        self.calls: dict[str, Call] = {}

    def watch(self, tensor: Tensor, call: Call) -> None:
        self.tensors[call.site.name] = tensor.clone()
        self.calls[call.site.name] = call

    def of_roles(self, *roles: str) -> list[Tensor]:
        return [self.tensors[name] for role in roles for name, call in self.calls.items() if call.site.role == role]


@dataclass(frozen=True)
class SameScores(Edit):
    """Changes nothing, at the moment of scores."""

    def edit_scores(self, scores: Tensor, call: Call) -> Tensor:
        return scores * 1.0


@dataclass(frozen=True)
class SameWeights(Edit):
    """Changes nothing, at the moment of weights."""

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        return weights * 1.0


@dataclass(frozen=True)
class Scale(Edit):
    """Multiplies weights by a factor and adds to them."""

    factor: float = 1.0
    plus: float = 0.0

    def edit_weights(self, weights: Tensor, call: Call) -> Tensor:
        return weights * self.factor + self.plus


@dataclass(frozen=True)
class ScaleOutput(Edit):
    """Multiplies the outputs of heads by a factor."""

    factor: float = 1.0

    def edit_output(self, output: Tensor, call: Call) -> Tensor:
        return output * self.factor


def eager(model: nn.Module) -> nn.Module:
    """The same model on stock eager attention."""
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("eager")
    return model


def output_of(result: Any) -> Tensor:
    """The main tensor of a model's result."""
    if isinstance(result, Tensor):
        return result
    for name in ("logits", "last_hidden_state", "logits_per_image", "language_output"):
        value = getattr(result, name, None)
        if value is not None:
            return value
    raise AssertionError(f"no tensor in {type(result)}")


def real_part(tensor: Tensor, animal: Animal, lengths: tuple[int, ...], side: str) -> list[Tensor]:
    """The rows of an output that belong to real tokens (all of it for outputs that have no token axis)."""
    longest = max(lengths)
    if animal.eats == "image" or tensor.ndim < 3 or tensor.shape[1] < min(lengths):
        return list(tensor)
    if side == "left":
        return [row[longest - length :] for row, length in zip(tensor, lengths, strict=True)]
    return [row[: min(length, tensor.shape[1])] for row, length in zip(tensor, lengths, strict=True)]


def assert_same(
    ours: Tensor, stock: Tensor, animal: Animal, lengths: tuple[int, ...], side: str, dtype: torch.dtype
) -> None:
    """Equal at every real token; in float32 to rounding, in half precision to its rounding."""
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    pairs = zip(real_part(ours, animal, lengths, side), real_part(stock, animal, lengths, side), strict=True)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=tolerance)


def noted_outputs(monkeypatch: pytest.MonkeyPatch, module: Any) -> list[Tensor]:
    """A list that gets what the function ``attend`` of a module returns, where it answers."""
    found: list[Tensor] = []
    real = module.attend

    def attend(*arguments: Any) -> Tensor | None:
        output: Tensor | None = real(*arguments)
        if output is not None:
            found.append(output)
        return output

    monkeypatch.setattr(module, "attend", attend)
    return found
