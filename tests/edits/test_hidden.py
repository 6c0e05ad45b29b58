"""Edits and stats of hidden states."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attrim.attention.context import attach, edit
from attrim.core.registry import EDITS
from attrim.core.site import Select
from attrim.core.text import describe, parse
from attrim.edits import load_edits, save_edits
from attrim.edits.hidden_quantize import HiddenQuantize, fixed_point, linear, logarithmic
from attrim.edits.hidden_threshold import HiddenThreshold
from attrim.errors import ParameterError, SiteError
from attrim.stats.values import Values
from methods import HIDDEN_METHODS
from watching import Keep, assert_same, eager, output_of
from zoo import ZOO, Animal, batch

BY_NAME = {animal.name: animal for animal in ZOO}
NUMBERS = torch.tensor([0, 0.013, 0.04, 0.4, -1.3, 3.7, -16.2, 40.6], dtype=torch.float64)
LAYERED = [animal for animal in ZOO if animal.eats not in ("embeddings", "regions")]


def close(values: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.float64), atol=1e-5, rtol=1e-5)


def test_the_released_quantisers() -> None:
    """The numbers that the paper's code gives."""
    close(fixed_point(NUMBERS, 8, as_coded=True), [0, 0, 0, 0.5, -1.25, 3.75, -16.25, 32.5])
    close(fixed_point(NUMBERS, 10, as_coded=True), [0, 0, 0.0625, 0.375, -1.3125, 3.6875, -16.1875, 32.625])
    close(linear(NUMBERS, 8, as_coded=True), [0, 0, 0, 0.46875, -1.25, 3.75, -16.25, 40.625])
    close(logarithmic(NUMBERS, 8, as_coded=True), [0, 0, 0.0390871, 0.393257, -1.27839, 3.76692, -16, 16])
    close(logarithmic(NUMBERS, 4, as_coded=True), [0, 0, 0, 0.410168, -1, 2.43803, -14.4916, 16])


def test_the_corrected_quantisers_saturate() -> None:
    close(fixed_point(NUMBERS, 8), [0, 0, 0, 0.5, -1.25, 3.75, -16.25, 31.75])
    close(linear(NUMBERS, 8)[-2:], [-15, 24.84375])
    for function in (fixed_point, linear, logarithmic):
        assert len(torch.unique(function(torch.linspace(-60, 60, 100001).double(), 8))) <= 2**8
        levels = function(NUMBERS, 8)
        torch.testing.assert_close(function(levels, 8), levels)


def test_the_threshold_is_strict() -> None:
    hidden = torch.tensor([[0.5, -0.5, 0.51, -3.0]])
    assert HiddenThreshold(0.5).apply(hidden).tolist() == [[0, 0, hidden[0, 2].item(), -3]]
    assert torch.equal(HiddenThreshold(0.0).apply(hidden), hidden)


@pytest.mark.parametrize("change", HIDDEN_METHODS)
def test_round_trip(change: HiddenThreshold, tmp_path) -> None:
    save_edits([change], tmp_path)
    (again,) = load_edits(tmp_path)
    hidden = torch.randn(2, 3, 4)
    assert torch.equal(again.apply(hidden), change.apply(hidden))
    assert torch.equal(parse(EDITS, describe(change)).apply(hidden), change.apply(hidden))
    assert parse(EDITS, describe(change)).overrides("edit_layer_input") == change.overrides("edit_layer_input")


@pytest.mark.parametrize("change", HIDDEN_METHODS)
@pytest.mark.parametrize("animal", LAYERED, ids=str)
def test_hidden_states_of_the_whole_zoo(animal: Animal, change: HiddenThreshold) -> None:
    """Every layer is found, its hidden states are what the edit makes them, and the result changes."""
    model, inputs = eager(animal.build()), batch(animal)
    moment = "layer_input" if change.overrides("edit_layer_input") else "layer_output"
    with torch.no_grad():
        stock = output_of(model(**inputs))
        with attach(model, [change], [keep := Keep(moment)]):
            edited = output_of(model(**inputs))
    selves = sum(count for role, count in animal.roles.items() if role != "cross" and ">" not in role)
    assert len(keep.tensors) == selves
    assert not torch.allclose(stock, edited, atol=1e-6)
    for hidden in keep.tensors.values():
        torch.testing.assert_close(change.apply(hidden), hidden)


@pytest.mark.parametrize("animal", LAYERED, ids=str)
def test_watching_hidden_states_changes_nothing_and_counts_real_tokens(animal: Animal) -> None:
    lengths = (7, 4)
    model, inputs = eager(animal.build()), batch(animal, lengths)
    options = {"use_cache": False} if animal.eats == "pair" else {}
    stats = [Values("layer_input"), Values("layer_output")]
    with torch.no_grad():
        stock = output_of(model(**inputs, **options))
        with attach(model, stats=stats):
            ours = output_of(model(**inputs, **options))
    assert_same(ours, stock, animal, lengths, "right", torch.float32)
    size = 16
    tokens = {"encoder": 11, "decoder": 9 if animal.eats == "pair" else 11, "text": 11, "language": 11}
    vision = 10 if animal.eats == "image-text" else 6
    for stat in stats:
        for site, total in zip(stat.sites, stat.total[:, 0].tolist(), strict=True):
            expected = tokens.get(site.role, vision)
            if animal.eats in ("visual-embeds", "image"):
                expected = {"visual-embeds": 17, "image": 10}[animal.eats]
            assert total == expected * size, site


def test_values_are_exact_over_any_split() -> None:
    hidden = torch.randn(6, 1, 5, 8) * 3
    whole, first, second = (Values("weights") for _ in range(3))
    mask = torch.rand(6, 1, 5, 8) > 0.2
    whole.update(hidden, mask)
    first.update(hidden[[4, 1, 5]], mask[[4, 1, 5]])
    second.update(hidden[[0, 3, 2]], mask[[0, 3, 2]])
    merged = second.merge(first)
    for name, tensor in whole.records["plain"].tensors.items():
        assert torch.equal(tensor, merged.records["plain"].tensors[name]), name
    inside = hidden[mask].double()
    torch.testing.assert_close(whole.mean().item(), inside.mean().item())
    torch.testing.assert_close(whole.std().item(), inside.std(correction=0).item())
    assert whole.maximum().item() == inside.max().item()
    assert whole.minimum().item() == inside.min().item()
    torch.testing.assert_close(whole.outside().item(), (inside.abs() > 5).double().mean().item())
    torch.testing.assert_close((whole.histogram().sum() + whole.outside().sum()).item(), 1.0)


def test_probes_of_queries_keys_and_values() -> None:
    animal = BY_NAME["llama"]
    model, keeps = (
        eager(animal.build()),
        [Keep(moment) for moment in ("query", "key", "value", "output", "scores", "weights")],
    )
    inputs = batch(animal, (7, 4))
    with torch.no_grad(), attach(model, stats=[*keeps, values := Values("key")]):
        model(**inputs)
    query, key, value, output, scores, weights = (next(iter(keep.tensors.values())) for keep in keeps)
    assert query.shape == key.shape == value.shape == (2, 4, 7, 4)
    torch.testing.assert_close(output, weights @ value)
    allowed = next(iter(keeps[4].calls.values())).allowed.expand_as(scores)
    torch.testing.assert_close(scores[allowed], (query @ key.transpose(-1, -2) / 2)[allowed])
    assert values.total.unique().tolist() == [11 * 4]


def test_probes_are_refused_where_attention_is_private() -> None:
    animal = BY_NAME["deberta"]
    model = animal.build()
    with (
        pytest.raises(SiteError, match="queries, keys and values cannot be watched"),
        attach(model, stats=[Keep("query")]),
    ):
        model(**batch(animal))


def test_one_layer_can_be_chosen() -> None:
    animal = BY_NAME["bert"]
    model = animal.build()
    with (
        torch.no_grad(),
        attach(model, [HiddenThreshold(100.0, select=Select(layers=1))], [keep := Keep("layer_output")]),
    ):
        model(**batch(animal))
    first, second = keep.tensors.values()
    assert first.any()
    assert not second.any()


def test_gradients_pass_straight_through() -> None:
    animal = BY_NAME["bert"]
    model = animal.build()
    with edit(model, HiddenQuantize("log", 4)):
        output_of(model(**batch(animal))).sum().backward()
    gradient = model.bert.embeddings.word_embeddings.weight.grad
    assert gradient.isfinite().all()
    assert gradient.any()


@pytest.mark.parametrize(
    ("method", "bits"), [("fixed-point", 6), ("linear", 1), ("log", 17), ("cubic", 8), ("log", 2.5)]
)
def test_bad_parameters(method: str, bits: int) -> None:
    with pytest.raises(ParameterError):
        HiddenQuantize(method, bits)  # type: ignore[arg-type]


def test_a_layer_of_two_streams_is_refused_and_the_others_work() -> None:
    animal = BY_NAME["lxmert"]
    model = animal.build()
    with pytest.raises(SiteError, match=r"x_layers.*no layer of its own"), attach(model, [HiddenThreshold(0.3)]):
        model(**batch(animal))
    with (
        torch.no_grad(),
        attach(model, [HiddenThreshold(0.3, select=Select(names="encoder.layer.*"))], [keep := Keep()]),
    ):
        model(**batch(animal))
    assert keep.tensors


def test_a_choice_without_layers_is_an_error() -> None:
    animal = BY_NAME["t5"]
    model = animal.build()
    cross = HiddenThreshold(0.3, select=Select(roles="cross"))
    with pytest.raises(SiteError, match="selects no layer"), attach(model, [cross]):
        model(**batch(animal))
