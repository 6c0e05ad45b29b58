"""What a checkpoint brings back: bit for bit the same end after a stop at any step."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attrim.errors import ArtefactError, ParameterError
from attrim.training.callbacks import Callback
from attrim.training.loop import Loop
from attrim.training.recipe import Recipe
from nets import Net, Watch, epochs, equal, loss, train, weights


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


def test_float16_resumes_with_its_scale_and_its_count_of_skipped_steps(tmp_path):
    """The first steps overflow, so that a scale that begins anew would be another one."""
    recipe = Recipe(steps=12, learning_rate=1e-2, checkpoint_every=4, dtype="float16", schedule="inverse-sqrt")

    def large(model, inputs):
        return loss(model, inputs) * 2.0**8

    whole = Loop(Net(), epochs, recipe, loss=large)
    whole.run()
    assert 2 < whole.skipped < 12
    with pytest.raises(KeyboardInterrupt):
        Loop(Net(), epochs, recipe, loss=large, callbacks=[Watch(7)], folder=tmp_path).run()
    resumed = Loop(Net(), epochs, recipe, loss=large, callbacks=[Watch()], folder=tmp_path)
    resumed.run()
    assert resumed.skipped == whole.skipped
    assert resumed._scaler.get_scale() == whole._scaler.get_scale()
    assert equal(weights(resumed.model), weights(whole.model))


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
