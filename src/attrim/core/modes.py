"""Where a model is, and training or evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


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
    """Evaluation mode without gradients; afterwards every module is in the mode it had."""
    with in_mode(model, training=False), torch.inference_mode():
        yield


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
