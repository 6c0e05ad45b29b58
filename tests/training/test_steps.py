"""What one step of the training loop does: rates, accumulation, randomness, number types, and what is refused."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import get_scheduler

from attrim.errors import DataError, ParameterError
from attrim.training.loop import Loop
from attrim.training.recipe import Recipe
from nets import Net, Watch, epochs, equal, loss, train, weights


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "inverse-sqrt"])
@pytest.mark.parametrize("warmup", [0, 0.25, 7, 20])
def test_learning_rates_are_those_of_transformers(schedule, warmup):
    steps = 20
    recipe = Recipe(learning_rate=0.1, schedule=schedule, warmup=warmup)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    name = "constant_with_warmup" if schedule == "constant" else schedule.replace("-", "_")
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
        {"dtype": "float64"},
        {"label_smoothing": 1.0},
        {"label_smoothing": -0.1},
        {"label_smoothing": 0.1},  # this loss has none
        {"betas": (0.9, 1.0)},
        {"betas": (0.9,)},
        {"betas": (math.nan, 0.9)},
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
    train(model=model, clip=0.1, weight_decay=0.2, schedule="cosine", warmup=3, betas=(0.8, 0.98))
    recipe = Recipe(learning_rate=1e-2, schedule="cosine", warmup=3)
    vectors = [parameter for parameter in other.parameters() if parameter.ndim == 1]
    matrices = [parameter for parameter in other.parameters() if parameter.ndim == 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.2}, {"params": vectors, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.8, 0.98),
        fused=True,
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


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_half_precision_computes_in_it_and_keeps_the_weights(name):
    seen = set()

    def watched(model, inputs):
        output = model(inputs["x"])
        seen.add(output.dtype)
        return nn.functional.cross_entropy(output, inputs["labels"])

    model = Net()
    Loop(model, epochs, Recipe(steps=3, dtype=name), loss=watched).run()
    assert seen == {getattr(torch, name)}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_float16_trains_like_float32():
    """The scale of the loss is taken out again before the gradient is limited and used."""
    watches = {"float32": Watch(), "float16": Watch()}
    for name, watch in watches.items():
        model = Net()
        model.dropout.p = 0.0
        assert train(model=model, callbacks=[watch], dtype=name).skipped == 0
    for exact, half in zip(*(watch.steps for watch in watches.values()), strict=True):
        assert half.loss == pytest.approx(exact.loss, rel=2e-2)
        assert half.gradient_norm == pytest.approx(exact.gradient_norm, rel=5e-2)
        assert half.loss != exact.loss


def overflowing(steps):
    """A loss that is too large for float16, with its scale, in the first steps."""
    calls = iter(range(10**6))

    def changed(model, inputs):
        found = loss(model, inputs)
        return found * 1e38 if next(calls) < steps else found

    return changed


def test_steps_that_overflow_change_nothing_and_are_counted():
    model, watch = Net(), Watch()
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    loop = Loop(model, epochs, Recipe(steps=3, dtype="float16"), loss=overflowing(3), callbacks=[watch])
    loop.run()
    assert loop.skipped == 3
    assert [step.skipped for step in watch.steps] == [True] * 3
    assert equal(before, dict(model.named_parameters()))
    assert loop._scaler.get_scale() == 65536 / 2**3
    loop = Loop(model, epochs, Recipe(steps=4, dtype="float16", learning_rate=1e-2), loss=overflowing(3))
    loop.run()
    assert loop.skipped == 3
    assert not equal(before, dict(model.named_parameters()))


def test_an_overflow_that_no_scale_helps_is_an_error():
    with pytest.raises(DataError, match="compute in float32"):
        Loop(Net(), epochs, Recipe(steps=99, dtype="float16"), loss=lambda m, i: loss(m, i) * math.inf).run()


def test_the_example_in_the_docs_learns():
    text = (Path(__file__).resolve().parents[2] / "docs" / "train.md").read_text()
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1), names)
    losses = names["losses"].losses
    assert len(losses) == 60
    assert losses[-1] < 0.1 * losses[0]
