"""Which parameters are trained, and in which groups."""

from __future__ import annotations

import pytest
import torch

from attrim.errors import ParameterError, SelectionError
from attrim.training.parameters import frozen, groups, matches
from nets import Net, train


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("bert.embeddings.word_embeddings.weight", "embeddings", True),
        ("bert.encoder.layer.1.output.bias", "layer.1", True),
        ("bert.encoder.layer.11.output.bias", "layer.1", False),
        ("bert.encoder.layer.11.output.bias", "*.layer.1*", True),
        ("bert.encoder.layer.0.output.bias", "*.bias", True),
        ("bert.encoder.layer.0.output.bias", "out", False),
    ],
)
def test_patterns_of_parameters(name, pattern, expected):
    assert matches(name, pattern) is expected


def test_frozen_parameters_stay_and_the_rest_moves():
    model = Net()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    train(model=model, freeze=("first", "*.bias"))
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == {"norm.weight", "second.weight"}
    assert all(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(SelectionError, match="'embeddings'"):
        train(freeze=("embeddings",))
    with pytest.raises(ParameterError, match="Every parameter is frozen"):
        train(model=model, freeze=("*",))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_groups_leave_frozen_parameters_out():
    model = Net()
    with frozen(model, ["first"]):
        matrices, vectors = groups(model, 0.3)
    assert matrices["params"] == [model.second.weight]
    assert matrices["weight_decay"] == 0.3
    assert vectors["weight_decay"] == 0.0
    assert len(vectors["params"]) == 3
