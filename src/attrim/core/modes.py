"""Where a model is, training or evaluation mode for a while, and what a model remembers between batches.

A module that remembers (Transformer-XL) has ``remembers = True`` and keeps tensors, or None, in ``memory``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Memory = dict[str, tuple[Tensor, ...]]
"""What the modules of a model remember of earlier batches, by their names, without those that remember nothing."""


def device_of(model: nn.Module) -> torch.device:
    """Where the model computes; a model without parameters is on the CPU.

    Weights that accelerate has offloaded (``cpu_offload``, ``device_map``) are on the meta device except while their
    module runs, and its hooks say where that is.
    """
    devices = {parameter.device: None for parameter in model.parameters()} or {torch.device("cpu"): None}
    real = [device for device in devices if device.type != "meta"]
    return real[0] if real else _execution_device(model) or torch.device("meta")


def weights_missing(model: nn.Module) -> bool:
    """Whether weights are on the meta device, which holds no numbers, and nothing brings them when they are needed."""
    offloaded = any(parameter.device.type == "meta" for parameter in model.parameters())
    return offloaded and _execution_device(model) is None


def _execution_device(model: nn.Module) -> torch.device | None:
    """Where the hooks of accelerate let a model compute; None when it has none."""
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)
        for one in getattr(hook, "hooks", (hook,)):
            device = getattr(one, "execution_device", None)
            if device is not None:
                return torch.device(device)
    return None


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """The whole model in training or evaluation mode; afterwards every module is in the mode it had."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, with an empty memory; afterwards mode and memory are as before."""
    with in_mode(model, training=False), own_memory(model), torch.inference_mode():
        yield


def remembers(model: nn.Module) -> bool:
    """Whether a model carries something from one batch to the next."""
    return any(True for _ in _remembering(model))


def memory_of(model: nn.Module) -> Memory:
    """What the model remembers now."""
    return {name: tuple(module.memory) for name, module in _remembering(model) if module.memory is not None}


def set_memory(model: nn.Module, memory: Memory) -> None:
    """Let the model remember something, and nothing else."""
    for name, module in _remembering(model):
        module.memory = memory.get(name)


@contextmanager
def own_memory(model: nn.Module) -> Iterator[None]:
    """The model begins with an empty memory; afterwards it remembers what it did before."""
    before = memory_of(model)
    set_memory(model, {})
    try:
        yield
    finally:
        set_memory(model, before)


def _remembering(model: nn.Module) -> Iterator[tuple[str, Any]]:
    return ((name, module) for name, module in model.named_modules() if getattr(module, "remembers", False))


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No parameter asks for a gradient, so that no pass computes or saves anything for one; afterwards as before."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


@contextmanager
def on_device(model: nn.Module, device: torch.device | str | None) -> Iterator[torch.device]:
    """The model on a device (None: where it is); afterwards it is back where it was."""
    home = device_of(model)
    place = home if device is None else torch.device(device)
    try:
        if place != home:
            model.to(place)
        yield place
    finally:
        if place != home:
            model.to(home)
