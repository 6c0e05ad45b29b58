"""The training loop: what a step does, what is reproducible, and what a checkpoint brings back."""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import get_scheduler

from attrim.errors import ArtefactError, DataError, ParameterError, SelectionError
from attrim.training import Callback, Loop, Recipe
from attrim.training.parameters import frozen, groups, matches
from attrim.training.stream import Stream, count, weight


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


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 0.25, 7, 20])
def test_learning_rates_are_those_of_transformers(schedule, warmup):
    steps = 20
    recipe = Recipe(learning_rate=0.1, schedule=schedule, warmup=warmup)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    name = "constant_with_warmup" if schedule == "constant" else schedule
    first = round(warmup * steps) if warmup < 1 else warmup
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=first, num_training_steps=steps)
    for step in range(steps):
        assert recipe.rate(step, steps) == pytest.approx(scheduler.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    "fields",
    [
        {"epochs": 0},
        {"steps": 0},
        {"steps": -3},
        {"accumulation": 0},
        {"learning_rate": 0},
        {"learning_rate": math.nan},
        {"warmup": -1},
        {"weight_decay": -0.1},
        {"clip": math.inf},
        {"schedule": "step"},
        {"own_rate": ("first",)},
        {"own_rate": ("=0.1",)},
        {"own_rate": ("first=fast",)},
        {"own_rate": ("first=0",)},
        {"own_rate": ("first=-1",)},
        {"dtype": "float16"},
        {"checkpoint_every": 0},
    ],
)
def test_values_that_cannot_be_meant_are_refused(fields):
    with pytest.raises(ParameterError) as caught:
        Loop(Net(), epochs, Recipe(**fields))
    assert "\n" not in str(caught.value)


def test_a_step_is_that_of_plain_torch():
    """Twelve steps by hand: same data, decay, limit of the gradient, and learning rates."""
    model, other = Net(), Net()
    model.dropout.p = other.dropout.p = 0.0
    train(model=model, clip=0.1, weight_decay=0.2, schedule="cosine", warmup=3)
    recipe = Recipe(learning_rate=1e-2, schedule="cosine", warmup=3)
    vectors = [parameter for parameter in other.parameters() if parameter.ndim == 1]
    matrices = [parameter for parameter in other.parameters() if parameter.ndim == 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.2}, {"params": vectors, "weight_decay": 0.0}], lr=1e-2, fused=True
    )
    data = [inputs for epoch in range(3) for inputs in epochs(epoch)]
    other.train()
    for step, inputs in enumerate(data[:12]):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step, 12)
        loss(other, inputs).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    assert equal(weights(model), weights(other))


def test_accumulated_batches_are_one_large_batch():
    """Batches with different numbers of labels count by labels, not by batches."""
    generator = torch.Generator().manual_seed(5)
    x, labels = torch.randn(24, 4, generator=generator), torch.randint(0, 3, (24,), generator=generator)
    labels[3:8] = -100
    sizes = {"large": [12, 12], "small": [3, 9, 8, 4]}
    after = {}
    for name, parts in sizes.items():
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
        batches = [{"x": a, "labels": b} for a, b in zip(x.split(parts), labels.split(parts), strict=True)]
        watch = Watch()
        recipe = Recipe(epochs=4, accumulation=len(parts) // 2, learning_rate=1e-2)
        loop = Loop(model, lambda _, b=batches: b, recipe, loss=loss, callbacks=[watch])
        assert loop.steps == 8
        loop.run()
        after[name] = (torch.cat([p.flatten() for p in model.parameters()]), [step.loss for step in watch.steps])
    assert torch.allclose(after["large"][0], after["small"][0], atol=1e-6)
    assert after["large"][1] == pytest.approx(after["small"][1], rel=1e-5)


def test_the_seed_fixes_dropout_and_nothing_outside_changes():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    first = weights(train(seed=1).model)
    torch.manual_seed(99)  # whatever was drawn before does not matter
    assert equal(first, weights(train(seed=1).model))
    assert not equal(first, weights(train(seed=2).model))
    torch.set_rng_state(before[0])
    train()
    assert not torch.equal(torch.get_rng_state(), before[0])  # Net() itself seeds torch
    model = Net()
    state = torch.get_rng_state()
    train(model=model)
    assert torch.equal(torch.get_rng_state(), state)
    assert (np.random.get_state()[1] == before[1]).all()
    assert random.getstate() == before[2]


@settings(max_examples=8)
@given(stop=st.integers(1, 12), every=st.integers(1, 13), accumulation=st.integers(1, 3))
def test_a_resumed_loop_ends_bit_for_bit_alike(tmp_path_factory, stop, every, accumulation):
    folder = tmp_path_factory.mktemp("loop")
    fields = {"accumulation": accumulation, "checkpoint_every": every, "warmup": 2}
    whole = Watch()
    expected = weights(train(callbacks=[whole], **fields).model)
    with pytest.raises(KeyboardInterrupt):
        train(folder, callbacks=[Watch(stop)], **fields)
    watch = Watch()
    resumed = train(folder, callbacks=[watch], **fields)
    assert equal(weights(resumed.model), expected)
    assert watch.steps[0].number == (stop - 1) // every * every + 1  # the step after the last checkpoint
    assert watch.seen == 12  # callbacks go on with what they knew
    assert [step.loss for step in watch.steps] == [step.loss for step in whole.steps[-len(watch.steps) :]]


def test_checkpoints_are_safetensors_and_json_and_only_the_newest_stays(tmp_path):
    train(tmp_path)
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    names = ("optimizer.safetensors", "state.json", "weights.safetensors")
    assert files == [f"step-000012/{name}" for name in names]
    assert json.loads((tmp_path / "step-000012" / "state.json").read_text())["done"] == 12


def test_half_a_checkpoint_is_not_used(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, callbacks=[Watch(7)])
    half = tmp_path / ".step-000006.part"
    half.mkdir()
    (half / "weights.safetensors").write_bytes(b"half")
    watch = Watch()
    resumed = train(tmp_path, callbacks=[watch])
    assert watch.steps[0].number == 5
    assert equal(weights(resumed.model), weights(train().model))


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, callbacks=[Watch(7)])
    model = Net()
    model.second = nn.Linear(8, 5)
    with pytest.raises(ArtefactError, match=r"does not fit the model \(second"):
        train(tmp_path, model=model, callbacks=[Watch()])
    (tmp_path / "step-000004" / "weights.safetensors").write_bytes(b"damaged")
    with pytest.raises(ArtefactError) as caught:
        train(tmp_path, callbacks=[Watch()])
    assert "\n" not in str(caught.value)


class Pin(Callback):
    """Pins the weights of some steps."""

    def __init__(self, *numbers) -> None:
        self.numbers = numbers
        self.weights = None

    def after_step(self, step, loop):
        if step.number in self.numbers:
            loop.pin()
            self.weights = weights(loop.model)


def test_pinned_weights_come_back(tmp_path):
    pin = Pin(3, 6)
    loop = train(tmp_path, callbacks=[pin])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000006", "step-000012"]
    assert not equal(weights(loop.model), pin.weights)
    loop.restore_pinned()
    assert equal(weights(loop.model), pin.weights)
    with pytest.raises(ParameterError, match="folder"):
        train(callbacks=[Pin(1)])


def test_pinned_weights_survive_a_kill(tmp_path):
    pin = Pin(6)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, callbacks=[pin, Watch(11)])
    loop = train(tmp_path, callbacks=[Pin(), Watch()])
    assert loop.pinned == 6
    loop.restore_pinned()
    assert equal(weights(loop.model), pin.weights)


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


def test_modes_are_as_before_also_after_an_error():
    model = Net().eval()
    model.norm.train()
    with pytest.raises(KeyboardInterrupt):
        train(model=model, callbacks=[Watch(2)])
    assert not model.training
    assert model.norm.training


def test_a_loss_that_is_not_finite_is_an_error():
    with pytest.raises(DataError, match=r"step 1 .*learning rate"):
        Loop(Net(), epochs, Recipe(steps=3), loss=lambda model, inputs: loss(model, inputs) * math.nan).run()


@pytest.mark.parametrize("labels", [[], [-100]])
def test_data_with_nothing_to_learn_from_is_an_error(labels):
    batches = [{"x": torch.zeros(1, 4), "labels": torch.tensor([label])} for label in labels]
    with pytest.raises(DataError, match="nothing to learn from"):
        Loop(Net(), lambda _: batches, Recipe(), loss=loss).run()


def test_batches_without_answers_are_left_out():
    empty = {"x": torch.zeros(2, 4), "labels": torch.tensor([-100, -100])}
    watch = Watch()
    loop = Loop(
        Net(), lambda e: [empty, *epochs(e), empty], Recipe(epochs=2, learning_rate=1e-2), loss=loss, callbacks=[watch]
    )
    loop.run()
    assert loop.steps == 10
    assert equal(weights(loop.model), weights(train(steps=10).model))


def test_bfloat16_computes_in_it_and_keeps_the_weights():
    seen = set()

    def watched(model, inputs):
        output = model(inputs["x"])
        seen.add(output.dtype)
        return nn.functional.cross_entropy(output, inputs["labels"])

    model = Net()
    Loop(model, epochs, Recipe(steps=3, dtype="bfloat16"), loss=watched).run()
    assert seen == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@given(st.integers(0, 3), st.integers(0, 5), st.integers(1, 12))
def test_a_stream_begins_anywhere(epoch, batch, length):
    def number(inputs):
        return int(inputs["x"])

    source = lambda e: ({"x": torch.tensor([10 * e + b])} for b in range(5))
    everything = [10 * e + b for e in range(8) for b in range(5)]
    stream = Stream(source, epoch, batch)
    read = [number(inputs) for inputs in islice(stream, length)]
    assert read == everything[5 * epoch + batch :][:length]
    again = Stream(source, stream.epoch, stream.batch)
    assert number(next(iter(again))) == everything[everything.index(read[-1]) + 1]
    assert count(source) == 5


def test_the_weight_of_a_batch_is_its_number_of_answers():
    assert weight({"input_ids": torch.zeros(3, 7)}) == 3
    assert weight({"input_ids": torch.zeros(2, 3), "labels": torch.tensor([[1, -100, 2], [-100, -100, 0]])}) == 3


TWO_PROCESSES = """
import sys, torch
sys.path.insert(0, sys.argv[2])
from test_training import Net, epochs, loss
from attrim.training import Loop, Recipe
model = Net()
model.norm, model.dropout.p = torch.nn.Identity(), 0.0  # batch statistics and dropout differ between processes
accumulation = int(sys.argv[3])
loop = Loop(model, epochs, Recipe(steps=6, learning_rate=1e-2, accumulation=accumulation), loss=loss)
loop.run()
if loop.is_main:
    from safetensors.torch import save_file
    save_file(dict(model.named_parameters()), sys.argv[1])
"""


@pytest.mark.slow
def test_two_processes_do_what_two_batches_a_step_do(tmp_path):
    from safetensors.torch import load_file

    script = tmp_path / "script.py"
    script.write_text(TWO_PROCESSES)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ACCELERATE_USE_CPU": "true"}
    here = os.path.dirname(__file__)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29511"]
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    subprocess.run([sys.executable, str(script), str(one), here, "2"], env=environment, check=True, timeout=120)
    subprocess.run([*launch, str(script), str(two), here, "1"], env=environment, check=True, timeout=120)
    first, second = load_file(one), load_file(two)
    assert all(torch.allclose(first[name], second[name], atol=1e-6) for name in first)
    assert not torch.equal(first["first.weight"], dict(Net().named_parameters())["first.weight"])


def test_the_example_in_the_docs_learns():
    text = (Path(__file__).parent.parent / "docs" / "train.md").read_text()
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1), names)
    losses = names["losses"].losses
    assert len(losses) == 60
    assert losses[-1] < 0.1 * losses[0]
