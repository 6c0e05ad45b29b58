from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

import attrim
from attrim.core.registry import EDITS
from attrim.core.site import Select, Site
from attrim.core.text import parse
from attrim.edits import Constant, Mix
from attrim.edits.mix import mix
from attrim.errors import ParameterError, SelectionError, ShapeError, SiteError
from attrim.stats.bundle import save_stats
from attrim.stats.mean import Mean

# spec/papa.md O4: the attention and the constants of two heads.
ATTENTION = torch.stack([torch.eye(2), torch.full((2, 2), 0.5)])[None]
CONSTANTS = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[0.9, 0.1], [0.2, 0.8]]])


def test_oracle_o4() -> None:
    lambdas = torch.zeros(2, requires_grad=True)
    mixed = Mix(CONSTANTS, lambdas).apply(ATTENTION)[0]
    expected = torch.tensor([[[0.5, 0.5], [0.5, 0.5]], [[0.7, 0.3], [0.35, 0.65]]])
    torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-6)
    loss = (mixed @ torch.tensor([1.0, 3.0]) - torch.tensor([[1.0, 3.0], [2.0, 2.0]])).square().sum()
    (gradient,) = torch.autograd.grad(loss, lambdas)
    torch.testing.assert_close(loss, torch.tensor(2.25), rtol=0, atol=1e-6)
    torch.testing.assert_close(gradient, torch.tensor([-2.0, -0.25]), rtol=0, atol=1e-6)


def test_oracle_o4_other_lambdas() -> None:
    mixed = Mix(CONSTANTS, {"plain": torch.tensor([1.5, -0.5])}).apply(ATTENTION)[0]
    expected = [
        [[0.817574, 0.182426], [0.182426, 0.817574]],
        [[0.748984, 0.251016], [0.313262, 0.686738]],
    ]
    torch.testing.assert_close(mixed, torch.tensor(expected), rtol=0, atol=1e-6)


def test_the_gradient_is_that_of_the_formula() -> None:
    weights = torch.rand(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    matrix = torch.rand(3, 4, 4, dtype=torch.float64)
    lambdas = torch.randn(3, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 1]])  # with a gap
    assert torch.autograd.gradcheck(lambda a, given: Mix(matrix, given).apply(a, mask), (weights, lambdas))
    share = torch.sigmoid(lambdas)[:, None, None]
    expected = share * weights * mask.bool()[:, None, None] + (1 - share) * Constant(matrix).apply(weights, mask)
    torch.testing.assert_close(Mix(matrix, lambdas).apply(weights, mask), expected)


def test_the_matrix_gets_no_gradient() -> None:
    matrix = torch.rand(2, 4, 4, requires_grad=True)
    assert not Mix(matrix, 0.0).apply(torch.rand(1, 2, 4, 4)).requires_grad


def test_forms_of_lambdas_agree() -> None:
    weights, matrix = torch.rand(2, 3, 4, 4), torch.rand(3, 4, 4)
    expected = Mix(matrix, 0.7).apply(weights)
    for lambdas in (torch.tensor(0.7), torch.full((3,), 0.7), {"plain": 0.7}, {"plain": torch.full((3,), 0.7)}):
        torch.testing.assert_close(Mix(matrix, lambdas).apply(weights), expected)
    some = Mix(matrix, torch.tensor([0.0, 9.0, 0.7]), heads=[2]).apply(weights)
    torch.testing.assert_close(some[:, 2], expected[:, 2])
    assert torch.equal(some[:, :2], weights[:, :2])


def test_a_share_of_zero_or_one_is_exact() -> None:
    weights, constants = torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 4)
    assert torch.equal(mix(weights, constants, torch.ones(2, 3)), weights)
    assert torch.equal(mix(weights, constants, torch.zeros(3)), constants)


def test_from_text(tmp_path) -> None:
    mean = Mean()
    mean.update(CONSTANTS[None])
    edit = parse(EDITS, f"mix:{save_stats([mean], tmp_path)},1.5,heads=0")
    torch.testing.assert_close(edit.apply(ATTENTION)[0, 0, 0], torch.tensor([0.817574, 0.182426]), rtol=0, atol=1e-6)


@pytest.fixture
def bert() -> BertModel:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 24}
    model = BertModel(BertConfig(vocab_size=64, **sizes)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def hidden(model: BertModel, inputs: dict[str, Tensor], *edits: attrim.Edit) -> Tensor:
    with torch.no_grad(), attrim.edit(model, *edits):
        return model(**inputs).last_hidden_state[inputs["attention_mask"].bool()]


def test_large_lambdas_are_the_ends(bert: BertModel) -> None:
    """Property (iii) of spec/papa.md: 50 is the dense model, -50 the constant one."""
    ids = torch.randint(3, 64, (3, 8))
    mask = torch.ones(3, 8, dtype=torch.long)
    mask[1, 5:], mask[2, 4:7] = 0, 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    matrix = {site.name: torch.rand(3, 8, 8) for site in attrim.sites(bert)}
    with torch.no_grad():
        dense = bert(**inputs).last_hidden_state[mask.bool()]
    torch.testing.assert_close(hidden(bert, inputs, Mix(matrix, 50.0)), dense, rtol=1e-5, atol=1e-5)
    constant = hidden(bert, inputs, Constant(matrix))
    torch.testing.assert_close(hidden(bert, inputs, Mix(matrix, -50.0)), constant, rtol=1e-5, atol=1e-5)
    assert (dense - constant).abs().max() > 0.1


def test_lambdas_learn_in_a_model(bert: BertModel) -> None:
    """One step of each head against a central difference."""
    bert = bert.double()
    inputs = {"input_ids": torch.randint(3, 64, (2, 6)), "attention_mask": torch.ones(2, 6, dtype=torch.long)}
    sites = attrim.sites(bert)
    matrix = {site.name: torch.rand(3, 6, 6, dtype=torch.float64) for site in sites}
    lambdas = {site.name: torch.randn(3, dtype=torch.float64, requires_grad=True) for site in sites}

    def loss(given: dict[str, Tensor]) -> Tensor:
        with attrim.edit(bert, Mix(matrix, given)):
            return bert(**inputs).last_hidden_state[:, 0].square().sum(-1).log().sum()

    gradients = torch.autograd.grad(loss(lambdas), list(lambdas.values()))
    nudge = torch.zeros(3, dtype=torch.float64)
    nudge[1] = 1e-5
    with torch.no_grad():
        for site, gradient in zip(sites, gradients, strict=True):
            up, down = ({**lambdas, site.name: lambdas[site.name] + sign * nudge} for sign in (1, -1))
            torch.testing.assert_close(gradient[1], (loss(up) - loss(down)) / 2e-5, rtol=1e-5, atol=1e-8)


def test_what_does_not_fit_is_refused() -> None:
    matrix, weights = torch.rand(3, 4, 4), torch.rand(1, 3, 4, 4)
    with pytest.raises(SiteError, match="no lambda for site 'plain'"):
        Mix(matrix, {"layer.0": 0.0}).apply(weights)
    with pytest.raises(ShapeError, match="2 heads but the site has 3"):
        Mix(matrix, torch.zeros(2)).apply(weights)
    with pytest.raises(ShapeError, match=r"shape \[H\]"):
        Mix(matrix, torch.zeros(2, 3))
    with pytest.raises(ParameterError, match="finite"):
        Mix(matrix, float("inf"))
    with pytest.raises(SelectionError, match="Mix got heads both"):
        Mix(matrix, 0.0, heads=1, select=Select(heads=2))
    with pytest.raises(ShapeError, match="longer than the averages"):
        Mix(matrix).apply(torch.rand(1, 3, 6, 6))
    order = [(Site("plain", "encoder", 0, 3), 2)]
    assert Mix(matrix, heads=order).select == Select(heads=[("plain", 2)])
