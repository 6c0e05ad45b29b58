"""Lambdas: what training them finds, what a kill does not change, and how several seeds become one order."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attrim.attention.context import edit
from attrim.attention.discover import find_sites
from attrim.core.site import Site
from attrim.edits import Constant
from attrim.errors import ParameterError
from attrim.probing.probe import make_probe
from attrim.probing.probed import Probed, train_probed
from attrim.scores.lambdas import lambda_scores, train_lambdas
from attrim.training.callbacks import Callback
from attrim.training.recipe import ProbeRecipe
from probed_models import LENGTH, TOKENIZER, backbone, sentences

SITES = [Site("a", "encoder", 0, 3), Site("b", "encoder", 1, 3)]
LAMBDAS = {"a": torch.tensor([0.12, -0.05, 0.30]), "b": torch.tensor([-0.20, 0.02, -0.01])}


def matrices(model):
    return {site.name: torch.rand(site.heads, LENGTH, LENGTH) for site in find_sites(model)}


def test_the_order_of_one_training_is_that_of_the_paper():
    """Oracle O5."""
    found = lambda_scores([LAMBDAS], SITES)
    assert found.order(by="layer") == [(1, 0), (0, 1), (1, 2), (1, 1), (0, 0), (0, 2)]
    assert torch.allclose(found.values["a"], LAMBDAS["a"].double())


def test_several_trainings_give_mean_ranks_and_stable_ties():
    other = {"a": torch.tensor([5.0, 5.0, 0.0]), "b": torch.tensor([-1.0, 9.0, 8.0])}
    found = lambda_scores([LAMBDAS, other], SITES)
    # ranks: a = (4, 1, 5), b = (0, 3, 2), and a = (2.5, 2.5, 1), b = (0, 5, 4)
    assert found.values["a"].tolist() == [3.25, 1.75, 3.0]
    assert found.values["b"].tolist() == [0.0, 4.0, 3.0]
    assert found.order(by="layer") == [(1, 0), (0, 1), (0, 2), (1, 2), (0, 0), (1, 1)]
    with pytest.raises(ParameterError, match="at least one seed"):
        lambda_scores([], SITES)


def test_gradients_are_those_of_finite_differences(tmp_path):
    """Of the whole chain: model, mixture, probe and loss."""
    from attrim.edits import Mix

    task, model = sentences(tmp_path), backbone().double()
    constants = {name: matrix.double() for name, matrix in matrices(model).items()}
    lambdas = {site.name: torch.randn(site.heads).double() for site in find_sites(model)}
    probed = Probed(model, make_probe(model, task).double(), trained="lambdas", lambdas=lambdas).eval()
    inputs = next(iter(task.train_batches(TOKENIZER, probed)))
    with edit(probed, Mix(constants, probed.lambdas.by_site())):
        probed(**inputs).loss.backward()
        parameter = probed.lambdas.values[0]
        for head in range(4):
            with torch.no_grad():
                parameter[head] += 1e-5
                above = probed(**inputs).loss
                parameter[head] -= 2e-5
                below = probed(**inputs).loss
                parameter[head] += 1e-5
            assert parameter.grad[head].item() == pytest.approx(((above - below) / 2e-5).item(), rel=1e-4, abs=1e-9)
    assert all(weight.grad is None for weight in model.parameters())


def test_every_head_gets_a_lambda_of_its_own(tmp_path):
    task, model = sentences(tmp_path, count=60), backbone()
    useless = {name: torch.eye(LENGTH).expand(4, -1, -1).clone() for name in matrices(model)}
    found = train_lambdas(model, task, TOKENIZER, useless, ProbeRecipe(steps=60, learning_rate=3e-3), rate=5e-2)
    values = torch.cat([*found.values()])
    assert values.shape == (8,)
    assert values.abs().max() > 0.2
    assert values.unique().numel() == 8


class Stop(Callback):
    def after_step(self, step, loop):
        if step.number == 5:
            raise KeyboardInterrupt


def test_a_killed_training_goes_on_bit_for_bit_and_one_that_is_done_is_read(tmp_path):
    task, model = sentences(tmp_path / "data"), backbone()
    constants = matrices(model)
    recipe = ProbeRecipe(steps=8, learning_rate=1e-3, checkpoint_every=2, batch_size=5)
    run = lambda **options: train_lambdas(model, task, TOKENIZER, constants, recipe, **options)
    whole = run()
    with pytest.raises(KeyboardInterrupt):
        run(folder=tmp_path / "c", callbacks=[Stop()])
    for _ in range(2):
        found = run(folder=tmp_path / "c", callbacks=[Callback()])
        assert all(torch.equal(found[name], whole[name]) for name in whole)


def test_the_learning_rate_of_lambdas_is_their_own(tmp_path):
    task, model = sentences(tmp_path), backbone()
    constants = matrices(model)
    recipe = ProbeRecipe(steps=1, learning_rate=1e-4)
    own, coded = (train_lambdas(model, task, TOKENIZER, constants, recipe, **options)
                  for options in ({"rate": 1e-2}, {"as_coded": True}))  # fmt: skip
    # Adam's first step is the learning rate, whatever the gradient, unless that is next to nothing.
    assert torch.cat([*own.values()]).abs().median().item() == pytest.approx(1e-2, rel=0.01)
    assert torch.cat([*coded.values()]).abs().median().item() == pytest.approx(1e-4, rel=0.01)


def test_constants_of_some_sites_leave_the_others_alone(tmp_path):
    task, model = sentences(tmp_path), backbone()
    names = [site.name for site in find_sites(model)]
    constants = {names[1]: matrices(model)[names[1]]}
    found = train_lambdas(model, task, TOKENIZER, constants, ProbeRecipe(steps=1))
    assert list(found) == names[1:]
    with pytest.raises(ParameterError, match="'elsewhere', which the model does not have"):
        train_lambdas(model, task, TOKENIZER, {"elsewhere": torch.ones(4, 3, 3)}, ProbeRecipe(steps=1))


def test_training_leaves_the_model_as_it_was(tmp_path):
    task, model = sentences(tmp_path), backbone()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    train_lambdas(model, task, TOKENIZER, matrices(model), ProbeRecipe(steps=2))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "forward" not in vars(model)


def test_learned_constants_lower_the_loss(tmp_path):
    task, model = sentences(tmp_path), backbone()
    probed = Probed(model, make_probe(model, task), trained="constants", constants=matrices(model))
    losses = []

    class Losses(Callback):
        def after_step(self, step, loop):
            losses.append(step.loss)

    constants = Constant(probed.constants.by_site(), train_constants=True)
    before = probed.constants.copied()
    train_probed(probed, task, TOKENIZER, ProbeRecipe(steps=50, learning_rate=1e-2), constants, callbacks=[Losses()])
    assert sum(losses[-5:]) < sum(losses[:5])
    assert all(not torch.equal(value, before[name]) for name, value in probed.constants.copied().items())
    assert isinstance(probed.constants.values[0], nn.Parameter)
