"""Layer-wise relevance: its rules by hand, and what must hold for whole models."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import ViTConfig, ViTForImageClassification

import attrim
from attrim.core.modes import frozen
from attrim.core.site import Select
from attrim.errors import SiteError
from attrim.models.loading import load_model, load_tokenizer
from attrim.scores.gradient_relevance import GradientRelevance
from attrim.scores.lrp import LayerRelevance
from attrim.scores.relevance import Relevance, RelevanceMode, Rules, quotient
from attrim.scores.taps import OutputTap, Tapped, WeightTap
from attrim.scores.target import explained, places_of
from attrim.tasks.base import load_task
from attrim.tasks.shapes import make_world
from zoo import HEADED, ZOO, Animal, batch

every_model = pytest.mark.parametrize("animal", HEADED, ids=str)
every_rules = pytest.mark.parametrize("rules", ["original", "safe"])
LENGTHS = (7, 4, 6)


def relevance(function: Any, seed: Tensor, *inputs: Tensor, rules: Rules = "original") -> tuple[Tensor, ...]:
    """What arrives at the inputs when the result of the function has the relevance ``seed``."""
    leaves = [each.clone().requires_grad_() for each in inputs]
    with RelevanceMode(rules):
        result = function(*leaves)
    return torch.autograd.grad(result, leaves, seed)


def test_the_linear_rule() -> None:
    weight, bias = torch.tensor([[1.0, -2.0, 0.5], [-1.0, -1.0, 3.0]]), torch.tensor([5.0, 5.0])
    for function in (
        lambda x: functional.linear(x, weight, bias),
        lambda x: torch.addmm(bias, x, weight.T),
        lambda x: x @ weight.T,
        lambda x: (weight @ x.mT).mT,
    ):
        (found,) = relevance(function, torch.tensor([[1.0, 0.5]]), torch.tensor([[2.0, -1.0, 1.0]]))
        torch.testing.assert_close(found, torch.tensor([[0.444444, 0.569444, 0.486111]]))
        assert float(found.sum()) == pytest.approx(1.5)


def test_relevance_without_a_positive_contribution_is_lost() -> None:
    weight = torch.tensor([[-1.0, 2.0]])
    (found,) = relevance(lambda x: functional.linear(x, weight), torch.ones(1, 1), torch.tensor([[1.0, -1.0]]))
    assert found.tolist() == [[0.0, 0.0]]


@every_rules
def test_the_product_rule(rules: Rules) -> None:
    left, right = torch.tensor([[0.25, 0.75], [0.5, 0.5]]), torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    seed = torch.tensor([[0.4, 0.1], [0.3, 0.2]])
    of_left, of_right = relevance(torch.matmul, seed, left, right, rules=rules)
    torch.testing.assert_close(of_left, torch.tensor([[-0.08, 0.33], [0.2375, 0.0125]]))
    torch.testing.assert_close(of_right, torch.tensor([[0.0575, 0.1], [0.2925, 0.05]]))


def test_the_sum_rule() -> None:
    seed, other = torch.tensor([[0.6, 0.4]]), torch.tensor([[1.0, 2.0]])
    one, two = relevance(torch.add, seed, torch.tensor([[1.0, -3.0]]), other)
    torch.testing.assert_close(one, torch.tensor([[0.15, 0.6]]))
    torch.testing.assert_close(two, torch.tensor([[-0.15, 0.4]]))
    one, two = relevance(torch.add, seed, torch.tensor([[1.0, -3.0]]), other, rules="safe")
    torch.testing.assert_close(one, torch.tensor([[0.3, 1.2]]))
    torch.testing.assert_close(two, torch.tensor([[0.3, -0.8]]))
    for rules in ("original", "safe"):
        one, two = relevance(torch.add, seed, torch.tensor([[3.0, -1.0]]), other, rules=rules)
        torch.testing.assert_close(one, torch.tensor([[0.45, -0.4]]))
        torch.testing.assert_close(two, torch.tensor([[0.15, 0.8]]))


def test_the_totals_of_a_sum_are_those_of_each_example() -> None:
    one, other, seed = torch.randn(3, 4, 5), torch.randn(3, 4, 5), torch.rand(3, 4, 5)
    together = relevance(lambda a, b: a + b, seed, one, other)
    for number in range(3):
        rows = slice(number, number + 1)
        alone = relevance(lambda a, b: a + b, seed[rows], one[rows], other[rows])
        for whole, part in zip(together, alone, strict=True):
            torch.testing.assert_close(whole[rows], part)


def test_two_layers_conserve_relevance() -> None:
    first = torch.tensor([[1.0, -1.0], [2.0, 1.0], [0.5, -0.5]])
    second = torch.tensor([[1.0, 2.0, -1.0], [-1.0, 1.0, 1.0]])
    inputs = torch.tensor([[1.0, -0.5]], requires_grad=True)
    with RelevanceMode("original"):
        hidden = functional.linear(inputs, first)
        answer = functional.linear(functional.gelu(hidden), second)
    torch.testing.assert_close(answer.detach(), torch.tensor([[3.619338, 0.580030]]))
    found = torch.autograd.grad(answer, [hidden, inputs], torch.tensor([[1.0, 0.0]]))
    torch.testing.assert_close(found[0], torch.tensor([[1 / 3, 2 / 3, 0.0]]))
    torch.testing.assert_close(found[1], torch.tensor([[8 / 9, 1 / 9]]))


def test_what_relevance_passes() -> None:
    inputs, seed = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    for function in (
        lambda x: x.softmax(-1),
        lambda x: functional.layer_norm(x, (4,), torch.rand(4), torch.rand(4)),
        torch.tanh,
        lambda x: functional.relu(x, inplace=True),
        lambda x: x / math.sqrt(3),
        lambda x: 0.3 * x + torch.rand(3, 4),
        lambda x: functional.dropout(x, 0.5, training=False),
        lambda x: -x,
    ):
        assert torch.equal(relevance(function, seed, inputs)[0], seed)
    assert torch.equal(relevance(lambda x: x[:, :1].expand(2, 3, 4), seed, inputs)[0][:, 0], seed.sum(1))
    one, other = relevance(torch.mul, seed, inputs, inputs + 1)
    assert torch.equal(one, seed / 2)
    assert torch.equal(other, seed / 2)


def test_a_divisor_near_zero() -> None:
    tiny = torch.tensor([-1e-9, 0.0, 1e-9], dtype=torch.float64)
    safe = quotient(torch.ones(3), tiny, "safe")
    torch.testing.assert_close(safe, torch.tensor([-5e8, 0.0, 5e8], dtype=torch.float64))
    assert not torch.isfinite(quotient(torch.ones(3), tiny, "original")).all()


def test_an_operation_without_a_rule_is_refused_by_name_where_relevance_arrives() -> None:
    inputs = torch.randn(2, 3)
    with pytest.raises(SiteError, match=r"Relevance arrives at the operation torch\.(Tensor\.)?exp, which has no rule"):
        relevance(torch.exp, torch.ones(2, 3), inputs)
    with pytest.raises(SiteError, match="operation mul_"):
        relevance(lambda x: (x + 0).mul_(2), torch.ones(2, 3), inputs)
    # A branch that relevance does not pass is no obstacle.
    assert relevance(lambda x: x * x.exp().detach(), torch.ones(2, 3), inputs)[0].tolist() == torch.ones(2, 3).tolist()
    with pytest.raises(SiteError, match="has no rule"):
        relevance(lambda x: x / x.norm(), torch.ones(2, 3), inputs)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_relevance_is_conserved_in_encoder_and_decoder(name: str) -> None:
    """T5 has a norm of its own, which is written as several operations."""
    animal = next(animal for animal in ZOO if animal.name == name)
    facts = LayerRelevance()(load_model(f"tiny-{name}", "seq2seq-lm"), [batch(animal, LENGTHS)]).facts
    assert facts["lowest_total"] == pytest.approx(1, abs=1e-4)
    assert facts["highest_total"] == pytest.approx(1, abs=1e-4)


@every_model
@every_rules
def test_relevance_is_conserved_in_a_padded_batch(animal: Animal, rules: Rules) -> None:
    model = animal.build()
    batches = [batch(animal, LENGTHS), batch(animal, (3, 8), seed=1)]
    scores = LayerRelevance(rules=rules)(model, batches)
    assert scores.facts["lowest_total"] == pytest.approx(1, abs=1e-4)
    assert scores.facts["highest_total"] == pytest.approx(1, abs=1e-4)
    assert scores.table().abs().max() > 1e-3
    assert attrim.scores.Scores.from_json(scores.to_json()).facts == scores.facts
    hooks = [module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks]
    assert not hooks
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("name", ["shapes-lxmert-trained", "shapes-visualbert-trained"])
# With the safe rules large numbers of both signs cancel, which float32 does not do to the last digits.
@pytest.mark.parametrize(("rules", "lost"), [("original", 1e-4), ("safe", 1e-2)])
def test_relevance_is_conserved_in_trained_models(name: str, rules: Rules, lost: float) -> None:
    task = load_task("shapes", limit=96, batch_size=32)
    model, tokenizer = task.load_model(name), load_tokenizer(name)
    scores = LayerRelevance(rules=rules)(model, task.feed(model, tokenizer))
    assert scores.facts["lowest_total"] == pytest.approx(1, abs=lost)
    assert scores.facts["highest_total"] == pytest.approx(1, abs=lost)


def test_relevance_is_conserved_in_a_trained_vit() -> None:
    """One that has learned to see whether something is red; in narrow layers units lose theirs (the linear rule)."""
    world = make_world("validation", 0)
    pixels = torch.from_numpy(world.images).permute(0, 3, 1, 2).float() / 127.5 - 1
    labels = torch.from_numpy((world.scenes.there & (world.scenes.color == 0)).any(1)).long()
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    model = ViTForImageClassification(ViTConfig(**sizes, image_size=32, patch_size=4, num_labels=2))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(90):
        chosen = torch.arange(64) + 64 * (step % 15)
        optimiser.zero_grad()
        model(pixel_values=pixels[chosen], labels=labels[chosen]).loss.backward()
        optimiser.step()
    with torch.no_grad():
        right = (model(pixel_values=pixels[:512]).logits.argmax(1) == labels[:512]).float().mean()
    assert right > 0.95
    scores = LayerRelevance()(model, [{"pixel_values": pixels[:32]}])
    assert scores.facts["lowest_total"] == pytest.approx(1, abs=1e-4)
    assert scores.facts["highest_total"] == pytest.approx(1, abs=1e-4)


@every_model
@pytest.mark.parametrize("score", [LayerRelevance, GradientRelevance])
def test_the_examples_of_a_padded_batch_have_relevance_as_by_themselves(animal: Animal, score: Any) -> None:
    model, inputs = animal.build(), batch(animal, LENGTHS)
    for cells in ("sum", "mean"):
        together = score(scope="example", cells=cells)(model, [inputs]).table()
        for number, length in enumerate(LENGTHS):
            one = {name: tensor[number : number + 1] for name, tensor in inputs.items()}
            for name in ("input_ids", "attention_mask"):
                if name in one:
                    one[name] = one[name][:, :length]
            alone = score(cells=cells)(model, [one]).table()
            torch.testing.assert_close(together[number], alone, rtol=1e-2, atol=1e-4)


@every_model
def test_attention_gets_half_of_what_the_output_of_the_head_has(animal: Animal) -> None:
    model, inputs = animal.build(), batch(animal, LENGTHS)
    tapped, weights, outputs = Tapped(model, [inputs]), WeightTap(), OutputTap()
    with tapped.attached(weights, outputs):
        answer = explained(places_of(model, Relevance(model)(**inputs), inputs), "predicted").sum()
        wanted = [*weights.tensors.values(), *outputs.tensors.values()]
        found = torch.autograd.grad(answer, wanted, allow_unused=True)
    half = len(weights.tensors)
    assert half == len(tapped.sites)
    for of_weights, of_outputs in zip(found[:half], found[half:], strict=True):
        if of_weights is not None:
            torch.testing.assert_close(of_weights.sum((-2, -1)), of_outputs.sum((-2, -1)) / 2, rtol=1e-3, atol=1e-4)


class Block(nn.Module):
    """One layer of attention over three tokens with a head on the first, to compute relevance by hand."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Attention()])
        self.classifier = nn.Linear(4, 3)

    def forward(self, hidden: Tensor) -> Any:
        for layer in self.layers:
            hidden = layer(hidden)
        return SimpleNamespace(logits=self.classifier(hidden[:, 0]))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.dense = (nn.Linear(4, 4) for _ in range(4))
        self.norm = nn.LayerNorm(4)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = (
            part(hidden).unflatten(-1, (2, 2)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        weights = (query @ key.transpose(-1, -2) / math.sqrt(2)).softmax(-1)
        mixed = (weights @ value).transpose(1, 2).flatten(2)
        return self.norm(hidden + self.dense(mixed))


def test_it_is_what_the_rules_give_by_hand() -> None:
    """The whole backward pass of one layer, written out for one example at a time, with loops over units."""
    model, inputs = Block().double(), torch.randn(2, 3, 4, dtype=torch.float64)
    sites = attrim.sites(model, {"hidden": inputs})
    scores = LayerRelevance(scope="example", target=2)(model, [{"hidden": inputs}])
    layer = model.layers[0]

    def linear(part: nn.Linear, x: Tensor, seed: Tensor) -> Tensor:
        found = torch.zeros_like(x)
        for k in range(len(seed)):
            shares = (part.weight[k] * x).clamp(min=0)
            found += shares * (seed[k] / shares.sum() if shares.sum() else 0)
        return found

    with torch.no_grad():
        for number, x in enumerate(inputs):
            query, key, value = (part(x).view(3, 2, 2) for part in (layer.query, layer.key, layer.value))
            weights = torch.einsum("qhd,khd->hqk", query, key).div(math.sqrt(2)).softmax(-1)
            mixed = torch.einsum("hqk,khd->qhd", weights, value).reshape(3, 4)
            dense = layer.dense(mixed)
            final = torch.zeros(3, 4, dtype=torch.float64)
            final[0] = linear(model.classifier, layer.norm(x + dense)[0], torch.eye(3, dtype=torch.float64)[2])
            branches = [branch * final / (x + dense) for branch in (x, dense)]
            sizes = [float(branch.sum()) for branch in branches]
            goal = abs(sizes[1]) / (abs(sizes[0]) + abs(sizes[1]))
            of_dense = branches[1] * goal / sizes[1]
            of_mixed = torch.stack([linear(layer.dense, mixed[t], of_dense[t]) for t in range(3)]).view(3, 2, 2)
            for head in range(2):
                expected = 0.0
                for q in range(3):
                    for k in range(3):
                        for d in range(2):
                            share = weights[head, q, k] * value[k, head, d] / mixed.view(3, 2, 2)[q, head, d]
                            expected += float(share * of_mixed[q, head, d]) / 2
                assert float(scores.values[sites[0].name][number, head]) == pytest.approx(expected, rel=1e-6)


def test_the_rules_give_other_numbers_and_the_facts_are_of_all_examples() -> None:
    animal = HEADED[0]
    model, inputs = animal.build(), batch(animal, LENGTHS)
    original, safe = (LayerRelevance(rules=rules)(model, [inputs]) for rules in ("original", "safe"))
    assert not torch.allclose(original.table(), safe.table(), rtol=1e-2)
    chosen = LayerRelevance()(model, [inputs], select=Select(layers=1, heads=[2]))
    assert chosen.table()[0, 2] == original.table()[1, 2]
    assert len(chosen.order()) == 1


def test_positive_cells_of_gradient_times_relevance() -> None:
    animal = HEADED[0]
    model, inputs = animal.build(), batch(animal, (6,))
    model.set_attn_implementation("eager")
    output = model(**inputs, output_attentions=True)
    slopes = torch.autograd.grad(output.logits.max(), output.attentions)
    tapped, tap = Tapped(model, [inputs]), WeightTap()
    with tapped.attached(tap):
        answer = Relevance(model)(**inputs).logits.max()
        found = torch.autograd.grad(answer, list(tap.tensors.values()))
    scores = GradientRelevance()(model, [inputs])
    for site, slope, each in zip(scores.sites, slopes, found, strict=True):
        expected = (slope * each).clamp(min=0).sum((-2, -1))[0].double()
        torch.testing.assert_close(scores.values[site.name], expected, rtol=1e-4, atol=1e-6)
    assert scores.table().min() >= 0


def test_the_forward_pass_is_that_of_the_model() -> None:
    for animal in HEADED:
        model, inputs = animal.build(), batch(animal, LENGTHS)
        if animal.route != "softmax":
            model.set_attn_implementation("eager")
        before = model(**inputs)[0].detach()
        with frozen(model):
            assert torch.equal(Relevance(model)(**inputs)[0].detach(), before)
