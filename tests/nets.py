"""A small network, its data and its training, for the tests of the training loop."""

from __future__ import annotations

import torch
from torch import nn

from attrim.training.callbacks import Callback
from attrim.training.loop import Loop
from attrim.training.recipe import Recipe


class Net(nn.Module):
    """Two layers with dropout, and a buffer that changes while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.3)
        self.second = nn.Linear(8, 3)

    def forward(self, x):
        return self.second(self.dropout(torch.relu(self.norm(self.first(x)))))


def loss(model, inputs):
    return nn.functional.cross_entropy(model(inputs["x"]), inputs["labels"])


def epochs(number, batches=5, size=6):
    """Some batches of random points, other ones in every epoch."""
    generator = torch.Generator().manual_seed(number)
    for _ in range(batches):
        x = torch.randn(size, 4, generator=generator)
        yield {"x": x, "labels": x.abs().argmax(1) % 3}


def train(folder=None, model=None, callbacks=(), **fields):
    """Train for 12 steps; returns the loop with its model."""
    recipe = Recipe(**{"steps": 12, "learning_rate": 1e-2, "checkpoint_every": 4, **fields})
    loop = Loop(model or Net(), epochs, recipe, loss=loss, callbacks=callbacks, folder=folder)
    loop.run()
    return loop


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(first, second):
    return all(torch.equal(first[name], second[name]) for name in {*first, *second})


class Watch(Callback):
    """Remembers every step; stops the loop before the checkpoint of one of them, as a kill would."""

    def __init__(self, stop=None) -> None:
        self.steps = []
        self.stop = stop
        self.seen = 0

    def after_step(self, step, loop):
        self.steps.append(step)
        self.seen += 1
        if step.number == self.stop:
            raise KeyboardInterrupt

    def state(self):
        return {"seen": self.seen}

    def load(self, state):
        self.seen = state["seen"]
