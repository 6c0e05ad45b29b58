"""Checkpoints: folders of safetensors and JSON that are wholly there or not at all; nothing is ever unpickled.

The JSON file has digests of itself and of the others, so that training never goes on from what was changed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

from ..core import record
from ..core.modes import memory_of, set_memory
from ..errors import ArtefactError
from ..runs.files import (
    file_digest,
    read_sealed,
    remove_folder,
    replace_folder,
    replace_sealed,
    replace_tensors,
    storage,
)

WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
MEMORY = "memory.safetensors"  # only of models that remember earlier batches
_REMEDY = "remove the run's folder to begin again"


class Checkpoints:
    """The checkpoints in a folder, ``step-000100`` and so on: weights, optimiser state, and the rest as JSON."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def latest(self) -> int | None:
        """The step of the newest checkpoint; None when there is none."""
        return max(self._steps(), default=None)

    def save(
        self, step: int, model: nn.Module, optimizer: Optimizer, state: dict[str, Any], keep: Collection[int] = ()
    ) -> None:
        """Write a checkpoint, then remove all others but those of the steps to ``keep``."""

        def write(part: Path) -> None:
            replace_tensors(part / WEIGHTS, tensors_of(model))
            replace_tensors(part / OPTIMIZER, optimizer_tensors(model, optimizer))
            if memory := memory_tensors(model):
                replace_tensors(part / MEMORY, memory)
            files = {path.name: file_digest(path) for path in sorted(part.iterdir())}
            replace_sealed(part / STATE, {**record.dump(state), "files": files})

        with storage(self.folder):
            replace_folder(self._path(step), write)
            for other in self._steps():
                if other != step and other not in keep:
                    remove_folder(self._path(other))

    def load(self, step: int, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Put the weights, the optimiser and the model's memory back as they were; returns the rest."""
        self.load_weights(step, model)
        self._load_memory(step, model)
        state, saved = self._state(step), self._tensors(step, OPTIMIZER)
        parameters = dict(model.named_parameters())
        for key, tensor in saved.items():
            name, _, field = key.rpartition("/")
            if name not in parameters:
                raise ArtefactError(_misfit(self._path(step), name))
            # Adam counts its steps on the CPU; all else is as large as the parameter and lives beside it.
            place = tensor if tensor.ndim == 0 else tensor.to(parameters[name].device)
            optimizer.state[parameters[name]][field] = place
        return {name: value for name, value in state.items() if name != "files"}

    def load_weights(self, step: int, model: nn.Module) -> None:
        """Put the weights back as they were."""
        path = self._path(step)
        saved = self._tensors(step, WEIGHTS)
        present = tensors_of(model)
        for name in {*saved, *present}:
            if name not in saved or name not in present or saved[name].shape != present[name].shape:
                raise ArtefactError(_misfit(path, name))
        with torch.no_grad():
            for name, tensor in present.items():
                tensor.copy_(saved[name])

    def _load_memory(self, step: int, model: nn.Module) -> None:
        found: dict[str, dict[int, Tensor]] = {}
        if MEMORY in self._files(step):
            device = next(model.parameters()).device
            for key, tensor in self._tensors(step, MEMORY).items():
                name, _, place = key.rpartition("/")
                found.setdefault(name, {})[int(place)] = tensor.to(device)
        set_memory(model, {name: tuple(parts[place] for place in sorted(parts)) for name, parts in found.items()})

    def _files(self, step: int) -> dict[str, str]:
        """The files of a checkpoint with their digests."""
        return record.load(dict[str, str], self._state(step).get("files"), f"checkpoint {self._path(step)}")

    def _steps(self) -> list[int]:
        found = (re.fullmatch(r"step-(\d{6,12})", path.name, re.ASCII) for path in self.folder.glob("step-*"))
        return [int(match[1]) for match in found if match]

    def _state(self, step: int) -> dict[str, Any]:
        return read_sealed(self._path(step) / STATE, _REMEDY)

    def _tensors(self, step: int, name: str) -> dict[str, Tensor]:
        """The tensors of one file, if it is as it was written."""
        path = self._path(step) / name
        files = self._files(step)
        with storage(self.folder):
            if file_digest(path) != files.get(name):
                raise ArtefactError(f"{path} has changed since it was written; {_REMEDY}.")
            return load_file(path)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}"


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer once, also when several modules share it."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def memory_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What the model remembers of earlier batches, as ``MODULE/NUMBER``."""
    return {f"{name}/{place}": tensor for name, parts in memory_of(model).items() for place, tensor in enumerate(parts)}


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as ``PARAMETER/FIELD``; its settings are not state, they come from the recipe."""
    return {
        f"{name}/{field}": tensor
        for name, parameter in model.named_parameters()
        for field, tensor in optimizer.state.get(parameter, {}).items()
    }


def _misfit(path: Path, name: str) -> str:
    return f"The checkpoint {path} does not fit the model ({name} differs); {_REMEDY}."
