"""Where a model is, and training or evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


def device_of(model: nn.Module) -> torch.device:
    """Where the model is; a model without parameters is on the CPU."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


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
