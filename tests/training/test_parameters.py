"""Which parameters are trained, and in which groups."""

from __future__ import annotations

import pytest
import torch

from attrim.errors import ParameterError, SelectionError
from attrim.training.loop import frozen, groups, matches
from nets import Net, Watch, equal, train, weights


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


def test_parameters_may_have_a_learning_rate_of_their_own():
    """Adam's first step is the learning rate, whatever the gradient; the schedule is the same for all."""
    model = Net()
    before = weights(model)
    train(model=model, steps=1, learning_rate=1e-3, own_rate=("second=1e-2", "*.bias=1e-4", "second.bias=9"))
    for name, rate in {"first.weight": 1e-3, "norm.bias": 1e-4, "second.weight": 1e-2, "second.bias": 1e-2}.items():
        change = (model.state_dict()[name] - before[name]).abs()
        assert change.max().item() == pytest.approx(rate, rel=0.01), name
    with pytest.raises(SelectionError, match="'head' for a learning rate"):
        train(own_rate=("head=1",))


def test_decay_and_own_rates_make_four_groups():
    model = Net()
    found = groups(model, 0.3, {"second": 5.0})
    assert [(group["factor"], group["weight_decay"], len(group["params"])) for group in found] == [
        (1.0, 0.3, 1),
        (1.0, 0.0, 3),
        (5.0, 0.3, 1),
        (5.0, 0.0, 1),
    ]


def test_a_resumed_run_has_the_same_own_rates(tmp_path):
    options = {"own_rate": ("second=0.03",), "schedule": "cosine", "warmup": 3}
    whole = train(**options)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, callbacks=[Watch(7)], **options)
    resumed = train(tmp_path, callbacks=[Watch()], **options)
    assert equal(weights(resumed.model), weights(whole.model))
