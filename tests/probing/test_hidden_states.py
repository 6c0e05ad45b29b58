"""Cached features: the same answers as the model with its probe, in bounded memory, found again by what they are of."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attrim.attention.discover import find_sites
from attrim.edits import Constant
from attrim.errors import DataError
from attrim.evaluation import evaluate
from attrim.probing.hidden_states import extract, orders, remove_features
from attrim.probing.probe import make_probe
from attrim.probing.probed import Probed, train_probed
from attrim.probing.trainer import evaluate_probe, train_probe
from attrim.runs.mapped import Writer
from attrim.tasks import load_task
from attrim.training.callbacks import Callback
from attrim.training.recipe import ProbeRecipe
from probed_models import LENGTH, TOKENIZER, backbone, scores, sentences, settle, tags


def constants(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {site.name: torch.rand(site.heads, LENGTH, LENGTH, generator=generator) for site in find_sites(model)}


def masked(folder):
    path = folder / "text.txt"
    path.write_text("".join(f"abc {i} de fg\n" for i in range(9)))
    return load_task("masked-lm", data=str(path), max_length=LENGTH, batch_size=4)


TASKS = {"sentences": sentences, "scores": scores, "tags": tags, "masked": masked}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("place", ["memory", "file"])
def test_the_result_is_that_of_the_model_with_the_probe(name, place, tmp_path):
    task, model = TASKS[name](tmp_path), backbone()
    edit = Constant(constants(model), heads=[(0, 1), (1, 2)])
    probe = settle(make_probe(model, task))
    limits = {"folder": tmp_path / "features", "budget": 1000} if place == "file" else {}
    features = extract(model, task, TOKENIZER, edit, **limits)
    found = evaluate_probe(features, probe, task)
    right = evaluate(Probed(model, probe), task, TOKENIZER, edit)
    assert found.metrics == pytest.approx(right.metrics, abs=1e-3)
    assert np.allclose(found.outputs, right.outputs, atol=1e-5)
    assert np.array_equal(found.labels, right.labels, equal_nan=True)
    assert found.zero_share == right.zero_share
    assert found.columns.keys() == right.columns.keys()


def test_training_on_features_equals_training_with_the_model(tmp_path):
    """The same batches through the model in every step give the same probe and the same scores."""
    task, model = sentences(tmp_path), backbone()
    edit = Constant(constants(model), heads=[(0, 0), (1, 1)])
    features = extract(model, task, TOKENIZER, edit)
    recipe = ProbeRecipe(epochs=9, learning_rate=3e-3, batch_size=8)
    first, second = (make_probe(model, task, seed=1) for _ in range(2))
    history = train_probe(features, first, task, recipe, validation=(features, task))
    probed = Probed(model, second)
    rows = [row for batch in task.batches(TOKENIZER) for row in _rows(batch, task, probed)]

    def epochs(epoch):
        for chosen in orders(len(features), recipe.batch_size, recipe.seed, epoch):
            yield {name: torch.stack([rows[place][name] for place in chosen]) for name in rows[0]}

    train_probed(probed, task, TOKENIZER, recipe, edit, epochs=epochs)
    for name, value in first.state_dict().items():
        assert torch.allclose(value, second.state_dict()[name], atol=1e-4), name
    assert len(history) == 9
    final = evaluate(probed, task, TOKENIZER, edit)
    assert history[-1] == pytest.approx(final.metrics)
    assert np.allclose(evaluate_probe(features, first, task).outputs, final.outputs, atol=1e-3)
    assert final.metrics["accuracy"] > 90  # and something was learned


def _rows(batch, task, model):
    labels = task.train_labels(batch, model)["labels"]
    return [
        {**{name: value[i] for name, value in batch.inputs.items()}, "labels": labels[i]} for i in range(len(labels))
    ]


def test_tags_are_learned_from_features(tmp_path):
    task, model = tags(tmp_path), backbone()
    features = extract(model, task, TOKENIZER)
    assert len(features.slots) == sum(len(example.texts) for example in task.examples())  # one token a word
    probe = make_probe(model, task)
    history = train_probe(
        features, probe, task, ProbeRecipe(epochs=40, learning_rate=3e-3), validation=(features, task)
    )
    assert history[-1]["accuracy"] > history[0]["accuracy"]
    assert history[-1]["accuracy"] > 90


def test_regression_is_learned_from_features(tmp_path):
    task, model = scores(tmp_path), backbone()
    features = extract(model, task, TOKENIZER)
    history = train_probe(
        features, make_probe(model, task), task, ProbeRecipe(epochs=60, learning_rate=3e-3), validation=(features, task)
    )
    assert history[-1]["pearson"] > 80


def test_features_in_a_file_are_found_again_and_no_others(tmp_path):
    task, model = sentences(tmp_path / "data"), backbone()
    folder = tmp_path / "features"
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))

    def run(task=task, edits=(), **options):
        calls.clear()
        found = extract(model, task, TOKENIZER, edits, folder=folder, budget=1000, **options)
        return found, bool(calls)

    first, computed = run()
    assert computed
    again, computed = run()
    assert not computed
    assert torch.equal(first.parts[0], again.parts[0])
    for name in ("slots", "starts", "index", "labels"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert (again.key, again.zero_share) == (first.key, first.zero_share)
    _, computed = run(dataclasses.replace(task, batch_size=3))
    assert not computed  # how many run together changes nothing
    matrix = constants(model)
    edits = [Constant(matrix, heads=[(0, 0)])]
    for changed in (
        {"edits": edits},
        {"edits": [Constant(matrix, heads=[(0, 1)])]},
        {"edits": [Constant(constants(model, seed=1), heads=[(0, 1)])]},
        {"dtype": "float16"},
        {"task": sentences(tmp_path / "data", limit=30)},
        {"task": sentences(tmp_path / "data", max_length=LENGTH - 1)},
        {"task": sentences(tmp_path / "data", layout="papa")},
    ):
        assert run(**changed)[1], changed
        assert not run(**changed)[1], changed
        assert len(list(folder.glob("*.safetensors"))) == 2  # the old ones are gone
    run()
    with torch.no_grad():
        model.encoder.layer[1].output.dense.bias += 1e-6
    assert run()[1]  # another model


@pytest.mark.parametrize("damage", ["cut", "missing", "index"])
def test_half_of_the_features_is_computed_again(damage, tmp_path):
    task, model = sentences(tmp_path / "data"), backbone()
    folder = tmp_path / "features"
    right = extract(model, task, TOKENIZER, folder=folder, budget=1000).parts[0].clone()
    states = next(folder.glob("states-*"))
    if damage == "cut":
        states.write_bytes(states.read_bytes()[:-100])
    elif damage == "missing":
        states.unlink()
    else:
        (folder / "features.json").write_text("{")
    assert torch.equal(extract(model, task, TOKENIZER, folder=folder, budget=1000).parts[0], right)
    remove_features(folder)
    remove_features(folder)
    assert not folder.exists()


def test_an_error_on_the_way_leaves_nothing(tmp_path):
    task, model = sentences(tmp_path / "data"), backbone()
    folder = tmp_path / "features"
    handle = model.encoder.layer[1].register_forward_hook(_fail_after(3))
    with pytest.raises(KeyboardInterrupt):
        extract(model, task, TOKENIZER, folder=folder, budget=1000, compact=False)
    handle.remove()
    assert list(folder.iterdir()) == []


def _fail_after(count):
    calls = []

    def hook(*_):
        calls.append(1)
        if len(calls) > count:
            raise KeyboardInterrupt

    return hook


def test_above_the_budget_there_must_be_a_folder(tmp_path):
    with pytest.raises(DataError, match=r"more than 0 MiB; give a folder"):
        extract(backbone(), sentences(tmp_path), TOKENIZER, budget=1000)


def test_float16_takes_half_of_the_room_and_keeps_the_scores(tmp_path):
    task, model = sentences(tmp_path), backbone()
    whole, half = (extract(model, task, TOKENIZER, dtype=dtype) for dtype in ("float32", "float16"))
    assert half.nbytes * 2 == whole.nbytes
    probe = settle(make_probe(model, task))
    results = [evaluate_probe(features, probe, task) for features in (whole, half)]
    assert np.allclose(results[0].outputs, results[1].outputs, atol=0.05)
    assert not np.array_equal(results[0].outputs, results[1].outputs)


def test_the_model_comes_back_as_it_was(tmp_path):
    task, model = sentences(tmp_path), backbone().train()
    extract(model, task, TOKENIZER)
    assert model.training
    assert model.encoder.layer[0].training
    assert "forward" not in vars(model)


def test_tasks_that_train_on_other_inputs_are_refused(tmp_path):
    task, model = masked(tmp_path), backbone()
    features = extract(model, task, TOKENIZER)
    with pytest.raises(DataError, match="trains on other inputs"):
        train_probe(features, make_probe(model, task), task)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 5), st.integers(0, 3))
def test_an_epoch_has_every_example_once(count, size, seed, epoch):
    batches = orders(count, size, seed, epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))
    assert all(len(rows) == size for rows in batches[:-1])
    assert [rows.tolist() for rows in orders(count, size, seed, epoch)] == [rows.tolist() for rows in batches]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.integers(0, 900))
def test_rows_come_back_as_they_were_written(tmp_path_factory, sizes, budget):
    path = tmp_path_factory.mktemp("rows") / "folder" / "states.safetensors"
    parts = [torch.randn(size, 2, 5) for size in sizes]
    with Writer(budget, path) as writer:
        for part in parts:
            writer.append(part)
        found = writer.finish()
    assert torch.equal(torch.cat(found), torch.cat(parts))
    assert writer.in_file == (sum(part.nbytes for part in parts) > budget)
    assert path.exists() == writer.in_file


class Stop(Callback):
    def after_step(self, step, loop):
        if step.number == 7:
            raise KeyboardInterrupt


def test_a_killed_training_goes_on_bit_for_bit(tmp_path):
    task, model = sentences(tmp_path / "data"), backbone()
    features = extract(model, task, TOKENIZER, folder=tmp_path / "features", budget=1000)
    recipe = ProbeRecipe(epochs=3, learning_rate=1e-2, checkpoint_every=4)
    whole, killed, resumed = (make_probe(model, task) for _ in range(3))
    history = train_probe(features, whole, task, recipe, validation=(features, task))
    with pytest.raises(KeyboardInterrupt):
        train_probe(
            features, killed, task, recipe, validation=(features, task), callbacks=[Stop()], folder=tmp_path / "c"
        )
    going = train_probe(
        features, resumed, task, recipe, validation=(features, task), callbacks=[Callback()], folder=tmp_path / "c"
    )
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in resumed.state_dict().items())
    assert going == history
