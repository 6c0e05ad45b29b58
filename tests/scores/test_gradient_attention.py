"""Gradient x attention against stock eager models, where attention is a tensor that autograd can be asked about."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForQuestionAnswering, BertForTokenClassification

import attrim
from attrim.attention.context import attach
from attrim.core.call import Call
from attrim.core.site import Select, Site, blocks_of
from attrim.errors import DataError, ParameterError
from attrim.scores.gradient_attention import GradientAttention
from attrim.scores.taps import OutputTap, gradients
from attrim.scores.target import explained, losses, places_of
from stock_attention import private_maps
from zoo import HEADED, TEXT, Animal, batch

every_model = pytest.mark.parametrize("animal", HEADED, ids=str)
LENGTHS = (7, 4, 6)


def logits_of(output: Any) -> Tensor:
    return output.question_answering_score if hasattr(output, "question_answering_score") else output.logits


def number_of(animal: Animal, output: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The predicted logit ``[B]``; of causal models its mean over tokens that have a next one."""
    largest = logits_of(output).max(-1).values
    if not animal.causal:
        return largest
    follows = inputs["attention_mask"][:, 1:].bool()
    return (largest[:, :-1] * follows).sum(1) / follows.sum(1)


def stock(animal: Animal, model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradient x attention ``[B, H, Q, K]`` of the stock eager model, by site name; zeros without influence."""
    with private_maps(model) as maps:
        if animal.route == "softmax":
            output = model(**inputs)
        else:
            model.set_attn_implementation("eager")
            output = model(**inputs, output_attentions=True)
            maps |= {site.name: output.attentions[site.layer] for site in attrim.sites(model)}
    slopes = torch.autograd.grad(number_of(animal, output, inputs).sum(), list(maps.values()), allow_unused=True)
    return {
        name: torch.zeros_like(weights) if slope is None else slope * weights
        for (name, weights), slope in zip(maps.items(), slopes, strict=True)
    }


@every_model
def test_it_is_that_of_the_stock_model(animal: Animal) -> None:
    model, inputs = animal.build(), batch(animal, LENGTHS)
    expected = stock(animal, model, inputs)
    if animal.route != "softmax":
        model.set_attn_implementation("sdpa")
    scores = GradientAttention(scope="example")(model, [inputs])
    assert {site.name for site in scores.sites} == set(expected)
    for name, products in expected.items():
        torch.testing.assert_close(scores.values[name], products.sum((-2, -1)).double(), rtol=1e-4, atol=1e-5)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    dead = [name for name, products in expected.items() if not products.any()]
    assert bool(dead) == (animal.name == "lxmert")  # the image side of the last cross layer reaches no answer
    assert scores.table().abs().max() > 1e-2


@every_model
@pytest.mark.parametrize("cells", ["sum", "mean"])
def test_the_examples_of_a_padded_batch_are_scored_as_by_themselves(animal: Animal, cells: Any) -> None:
    model, inputs = animal.build(), batch(animal, LENGTHS)
    together = GradientAttention(scope="example", cells=cells)(model, [inputs]).table()
    for number, length in enumerate(LENGTHS):
        one = {name: tensor[number : number + 1] for name, tensor in inputs.items()}
        for name in ("input_ids", "attention_mask"):
            if name in one:
                one[name] = one[name][:, :length]
        alone = GradientAttention(cells=cells)(model, [one]).table()
        torch.testing.assert_close(together[number], alone, rtol=1e-3, atol=1e-5)


def test_the_mean_divides_by_the_size_of_the_attention_matrix() -> None:
    animal = HEADED[3]
    model, inputs = animal.build(), batch(animal, (7,))
    sums, means = (GradientAttention(cells=cells)(model, [inputs]) for cells in ("sum", "mean"))
    sizes = {"language": 7 * 7, "vision": 3 * 3, "language>vision": 7 * 3, "vision>language": 3 * 7}
    for site in sums.sites:
        torch.testing.assert_close(sums.values[site.name], means.values[site.name] * sizes[site.role])


@every_model
def test_it_is_the_slope_of_the_logit_when_a_head_fades(animal: Animal) -> None:
    model, inputs = animal.build().double(), batch(animal, LENGTHS, dtype=torch.float64)
    scores = GradientAttention(scope="example")(model, [inputs])
    step = 1e-3  # some models compute their softmax in float32, whatever their dtype
    with torch.no_grad():
        answers = logits_of(model(**inputs)).argmax(-1)

        def logits() -> Tensor:
            chosen = logits_of(model(**inputs)).gather(-1, answers[..., None] if animal.causal else answers[:, None])
            return number_of(animal, SimpleNamespace(logits=chosen), inputs)

        for site in scores.sites:
            ends = []
            for factor in (1 + step, 1 - step):
                with attrim.edit(model, attrim.Gate(factor), select=Select(heads=[(site.name, 2)])):
                    ends.append(logits())
            slope = (ends[0] - ends[1]) / (2 * step)
            torch.testing.assert_close(scores.values[site.name][:, 2], slope, rtol=1e-3, atol=1e-4)


def test_the_known_example_of_two_heads() -> None:
    """Two heads whose attention and gradients are given: sums 0.1 and 1.3, means 0.025 and 0.325, together 0.175."""
    weights = torch.tensor([[[[0.6, 0.4], [0.5, 0.5]], [[0.2, 0.8], [0.9, 0.1]]]], requires_grad=True)
    slopes = torch.tensor([[[[1.0, -2.0], [0.4, 0.2]], [[-1.0, 0.5], [1.0, 2.0]]]])
    values = torch.eye(2).expand(1, 2, 2, 2)  # the output is then the attention itself
    tap, site = OutputTap(), Site("a", "encoder", 0, 2)
    output = tap.edit_output(weights @ values, Call.plain(weights, site=site))
    sums = -tap.changes(gradients((output * slopes).sum(), tap.tensors))["a"]
    torch.testing.assert_close(sums, torch.tensor([[0.1, 1.3]]))
    torch.testing.assert_close(sums / tap.cells["a"][:, None], torch.tensor([[0.025, 0.325]]))
    shared = GradientAttention(unit="site").scores({"a": (sums / 4)[0]}, [site])
    torch.testing.assert_close(shared.values["a"], torch.tensor([0.175, 0.175]).double())


def test_the_known_example_of_a_gate() -> None:
    weights = torch.tensor([[[[0.6, 0.4], [0.5, 0.5]]]], requires_grad=True)
    values, u = torch.tensor([[1.0, 0.0], [2.0, 1.0]]), torch.tensor([[1.0, -1.0], [0.5, 2.0]])
    tap, gate = OutputTap(), torch.ones(1, 1, requires_grad=True)
    call = Call.plain(weights, site=Site("a", "encoder", 0, 1))
    output = tap.edit_output((gate[..., None, None] * weights) @ values, call)
    number = (u * output).sum()
    assert number.item() == pytest.approx(2.75)
    by_gate, by_weights = torch.autograd.grad(number, [gate, weights], retain_graph=True)
    torch.testing.assert_close(by_weights[0, 0], torch.tensor([[1.0, 1.0], [0.5, 3.0]]))
    by_output = -tap.changes(gradients(number, tap.tensors))["a"]
    for form in (by_gate, by_output, (by_weights * weights).sum((-2, -1))):
        torch.testing.assert_close(form, torch.tensor([[2.75]]))


def test_only_the_selected_heads_are_scored_and_get_the_same_numbers() -> None:
    animal = HEADED[3]
    model, inputs = animal.build(), batch(animal, LENGTHS)
    whole = GradientAttention()(model, [inputs])
    chosen = Select(roles=["language", "vision>language"], heads=[1, 3])
    part = GradientAttention()(model, [inputs], select=chosen)
    assert {site.role for site in part.sites} == {"language", "vision>language"}
    for site in part.sites:
        torch.testing.assert_close(part.values[site.name], whole.values[site.name][[1, 3]])


def test_sites_and_blocks_share_a_number() -> None:
    animal = HEADED[3]
    model, inputs = animal.build(), batch(animal, LENGTHS)
    heads = GradientAttention()(model, [inputs])
    blocks = GradientAttention(unit="block")(model, [inputs])
    sites = GradientAttention(unit="site")(model, [inputs])
    for site in heads.sites:
        own = heads.values[site.name].mean().expand(4)
        torch.testing.assert_close(sites.values[site.name], own)
    names = blocks_of(heads.sites)
    cross = [site for site, block in names.items() if block == "lxmert.encoder.x_layers.0"]
    assert sorted(site.role for site in cross) == ["language", "language>vision", "vision", "vision>language"]
    mean = torch.cat([heads.values[site.name] for site in cross]).mean()
    for site in cross:
        torch.testing.assert_close(blocks.values[site.name], mean.expand(4))
    assert [len(unit) for unit in heads.units()] == [1] * 44
    assert [len(unit) for unit in sites.units()] == [4] * 11
    assert sorted(len(unit) for unit in blocks.units()) == [4, 4, 4, 16, 16]
    assert [head for unit in heads.units() for head in unit] == heads.order()
    values = [float(blocks.values[unit[0][0]][0]) for unit in blocks.units()]
    assert values == sorted(values)


def test_blocks_whose_weights_are_shared_by_layers_are_apart() -> None:
    sites = [Site(f"encoder.groups.0.layers.0.attention{end}", "encoder", n, 2) for n, end in enumerate(["", "#1"])]
    assert list(blocks_of(sites).values()) == ["encoder.groups.0", "encoder.groups.0#1"]
    assert blocks_of([Site("attention", "encoder", 0, 2)]) == {Site("attention", "encoder", 0, 2): "attention"}


def test_targets_of_a_classification() -> None:
    animal = HEADED[0]
    model, inputs = animal.build(), batch(animal, LENGTHS)
    predicted = logits_of(model(**inputs)).argmax(-1)
    labelled = {**inputs, "labels": predicted}
    by_label = GradientAttention(target="label")(model, [labelled])
    assert torch.equal(by_label.table(), GradientAttention()(model, [labelled]).table())
    each = torch.stack(
        [GradientAttention(target=answer, scope="example")(model, [inputs]).table() for answer in range(5)]
    )
    assert each.std(0).min() > 0
    expected = torch.stack([each[answer, number] for number, answer in enumerate(predicted.tolist())])
    torch.testing.assert_close(expected.mean(0), by_label.table(), rtol=1e-4, atol=1e-6)
    soft = torch.nn.functional.one_hot(predicted, 5) * 0.9
    torch.testing.assert_close(
        GradientAttention(target="label")(model, [{**inputs, "labels": soft}]).table(), by_label.table()
    )
    with pytest.raises(DataError, match="target='label' needs labels"):
        GradientAttention(target="label")(model, [inputs])
    with pytest.raises(ParameterError, match="target=5 is not an answer: the model has 5"):
        GradientAttention(target=5)(model, [inputs])
    with pytest.raises(ParameterError, match=r"'cells' .* cannot be 'most'; give one of sum, mean"):
        GradientAttention(cells="most")
    with pytest.raises(DataError, match="gives no logits"):
        GradientAttention()(model.bert, [inputs])
    with pytest.raises(DataError, match="batches are empty"):
        GradientAttention()(model, [])


def test_tokens_are_explained_where_they_count() -> None:
    model = BertForTokenClassification(BertConfig(**TEXT, num_labels=3)).eval()
    inputs = batch(HEADED[0], (5, 3))
    logits = model(**inputs).logits
    labels = torch.tensor([[-100, 1, 2, 0, -100], [-100, 2, -100, -100, -100]])
    places = places_of(model, SimpleNamespace(logits=logits), {**inputs, "labels": labels})
    own = torch.stack([logits[0, [1, 2, 3], [1, 2, 0]].mean(), logits[1, 1, 2]])
    torch.testing.assert_close(explained(places, "label"), own)
    unlabelled = places_of(model, SimpleNamespace(logits=logits), inputs)
    largest = logits.max(-1).values
    torch.testing.assert_close(
        explained(unlabelled, "predicted"), torch.stack([largest[0].mean(), largest[1, :3].mean()])
    )
    given = {**inputs, "labels": labels}
    total, places_each = losses(model, model(**given), given, "gradient")
    alone = [model(**{name: tensor[number : number + 1] for name, tensor in given.items()}).loss for number in (0, 1)]
    torch.testing.assert_close(total, torch.stack(alone).sum())
    assert places_each.tolist() == [3, 1]


def test_start_and_end_of_an_answer_are_explained_together() -> None:
    model = BertForQuestionAnswering(BertConfig(**TEXT)).eval()
    inputs = batch(HEADED[0], (5, 3))
    output = model(**inputs)
    places = places_of(model, output, inputs)
    start = [output.start_logits[0].max(), output.start_logits[1, :3].max()]
    end = [output.end_logits[0].max(), output.end_logits[1, :3].max()]
    torch.testing.assert_close(explained(places, None), (torch.stack(start) + torch.stack(end)) / 2)
    where = {"start_positions": torch.tensor([1, 0]), "end_positions": torch.tensor([4, 2])}
    places = places_of(model, output, {**inputs, **where})
    expected = (output.start_logits[[0, 1], [1, 0]] + output.end_logits[[0, 1], [4, 2]]) / 2
    torch.testing.assert_close(explained(places, "label"), expected)


def test_the_losses_of_a_causal_model_are_those_of_each_text() -> None:
    animal = HEADED[4]
    model, inputs = animal.build(), batch(animal, LENGTHS)
    given = {**inputs, "labels": inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)}
    total, places = losses(model, model(**given), given, "gradient")
    alone = [
        model(**{name: tensor[number : number + 1, :length] for name, tensor in given.items()}).loss
        for number, length in enumerate(LENGTHS)
    ]
    torch.testing.assert_close(total, torch.stack(alone).sum())
    assert places.tolist() == [length - 1 for length in LENGTHS]


def test_it_stays_on_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    animal = HEADED[0]
    model, inputs = animal.build(), batch(animal, LENGTHS)
    model.set_attn_implementation("sdpa")
    fused, calls = torch.nn.functional.scaled_dot_product_attention, []

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(None)
        return fused(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    GradientAttention()(model, [inputs, inputs])
    assert len(calls) == 4  # two batches, two layers


def test_nothing_is_left_behind() -> None:
    animal = HEADED[2]
    model, inputs = animal.build(), batch(animal, LENGTHS)
    before = logits_of(model(**inputs))
    GradientAttention()(model, [inputs])
    hooks = [module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks]
    assert not hooks
    assert not any("forward" in vars(module) for module in model.modules())
    assert torch.equal(logits_of(model(**inputs)), before)
    with attach(model, [attrim.Gate({site.name: torch.ones(3, 4) for site in attrim.sites(model)})]):
        assert torch.equal(logits_of(model(**inputs)), before)  # ones change no bit
