"""Scores: orders and budgets that are exact and nested, and what each score measures."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attrim
from attrim.attention.context import attach
from attrim.core.site import Select, Site
from attrim.edits import Constant
from attrim.edits.families import constant_edits, make_constants
from attrim.errors import ArtefactError, DataError, ParameterError, SelectionError, ShapeError
from attrim.scores import SCORES, Scores, budget, budget_size, rank_correlation
from attrim.scores.random import random_scores
from watching import Keep, eager, output_of
from zoo import ZOO, batch

LAYERS = [Site(f"layer.{number}", "encoder", number, 3) for number in range(2)]
LAMBDAS = {"layer.0": torch.tensor([0.12, -0.05, 0.30]), "layer.1": torch.tensor([-0.20, 0.02, -0.01])}
RAGGED = [Site("a", "encoder", 0, 2), Site("b", "decoder", 0, 3), Site("c", "cross", 0, 1)]


def test_oracle_o5() -> None:
    scores = Scores(LAMBDAS, LAYERS)
    order = scores.order(by="layer")
    assert order == [(1, 0), (0, 1), (1, 2), (1, 1), (0, 0), (0, 2)]
    by_layer = lambda k: {
        layer: sorted(head for place, head in budget(order, k) if place == layer) for layer, _ in budget(order, k)
    }
    assert by_layer(0) == {}
    assert by_layer(1) == {1: [0]}
    assert by_layer(3) == {0: [1], 1: [0, 2]}
    assert by_layer(4) == {0: [1], 1: [0, 1, 2]}
    assert by_layer(6) == by_layer("all") == {0: [0, 1, 2], 1: [0, 1, 2]}
    assert scores.order() == [(f"layer.{layer}", head) for layer, head in order]
    assert scores.ranks().tolist() == [[5, 2, 6], [1, 4, 3]]


def test_equal_scores_go_by_layer_then_head() -> None:
    scores = Scores({site.name: torch.zeros(site.heads) for site in LAYERS[::-1]}, LAYERS[::-1])
    assert scores.order(by="layer") == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_sites_may_have_different_numbers_of_heads() -> None:
    scores = random_scores(RAGGED)
    assert sorted(scores.order()) == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]
    assert scores.table().isnan().tolist() == [[False, False, True], [False] * 3, [False, True, True]]
    assert sorted(scores.ranks().flatten().nan_to_num(0).tolist()) == [0, 0, 0, 1, 2, 3, 4, 5, 6]
    with pytest.raises(SelectionError, match=r"order\(by='site'\)"):
        scores.order(by="layer")


@given(st.lists(st.floats(-5, 5, width=16), min_size=6, max_size=6), st.integers(0, 6), st.integers(0, 6))
def test_budgets_are_nested_and_hold_the_smallest_scores(numbers: list[float], one: int, other: int) -> None:
    values = {"layer.0": torch.tensor(numbers[:3]), "layer.1": torch.tensor(numbers[3:])}
    order = Scores(values, LAYERS).order()
    small, large = (set(budget(order, k)) for k in sorted((one, other)))
    assert small <= large
    number = lambda head: float(values[head[0]][head[1]])
    assert all(number(head) <= number(rest) for head in small for rest in set(order) - small)
    assert len(set(order)) == 6


@pytest.mark.parametrize(
    ("k", "size"),
    [
        *[(0, 0), ("0", 0), (12, 12), ("12", 12), ("1/2", 36), (0.5, 36), ("7/8", 63), ("15/16", 67), ("all", 72)],
        *[(72, 72), (1.0, 72), (1, 1), ("50%", 36), ("0.25", 18), (0.0, 0), ("1/1", 72)],
    ],
)
def test_budget_sizes(k: int | float | str, size: int) -> None:
    assert budget_size(k, 72) == size
    assert len(budget(range(72), k)) == size


def test_shares_are_exact() -> None:
    assert budget_size(0.29, 100) == 29  # in floats it is 28.999999999999996


@pytest.mark.parametrize("k", [-1, 73, 1.5, "2/1", "half", "", "1/0", True, -0.5, float("nan")])
def test_no_budget(k: object) -> None:
    with pytest.raises(ParameterError, match="is not a budget of 72 heads"):
        budget_size(k, 72)  # type: ignore[arg-type]


def test_json_round_trip() -> None:
    scores = Scores(LAMBDAS, LAYERS, "lambdas")
    again = Scores.from_json(json.loads(json.dumps(scores.to_json())))
    assert again.order() == scores.order()
    assert again.name == "lambdas"
    assert again.sites == scores.sites
    assert torch.equal(again.table(), scores.table())
    for broken in ({}, {"sites": [], "values": []}, {"name": "", "sites": [{"heads": 1}], "values": {}}):
        with pytest.raises(ArtefactError, match="not saved scores"):
            Scores.from_json(broken)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(SelectionError, match="1 sites and the list has 2"):
        Scores({"layer.0": torch.zeros(3)}, LAYERS)
    with pytest.raises(ShapeError, match=r"must have the shape \[3\]"):
        Scores({**LAMBDAS, "layer.1": torch.zeros(4)}, LAYERS)
    with pytest.raises(DataError, match="NaN or infinite"):
        Scores({**LAMBDAS, "layer.1": torch.tensor([0, 0, math.nan])}, LAYERS)


def test_registry() -> None:
    assert {"divergence", "gradient", "lambdas", "random"} <= set(SCORES)


def test_random_depends_on_the_seed_alone() -> None:
    model = ZOO[0].build()
    one, again, other = (SCORES["random"](seed=seed)(model) for seed in (0, 0, 1))
    assert one.order() == again.order() != other.order()
    assert one.order() == random_scores(attrim.sites(model)[::-1]).order()


@pytest.mark.parametrize("name", ["bert", "bart", "lxmert"])
def test_an_order_chooses_exactly_its_heads(name: str) -> None:
    """By site name, where several roles have the same layers; budgets of one order are nested there, too."""
    animal = next(animal for animal in ZOO if animal.name == name)
    model, inputs = eager(animal.build()), batch(animal)
    sites = attrim.sites(model)
    order = random_scores(sites, seed=3).order()
    for k in (0, 1, "1/2", "all"):
        heads = budget(order, k)
        edits = constant_edits(make_constants("identity", sites, 9), heads)
        chosen = {
            (site.name, head) for edit in edits for site, own in edit.select.resolve(sites).items() for head in own
        }
        assert chosen == set(heads)
    keep = Keep()
    heads = budget(order, "1/2")
    edits = constant_edits(make_constants("identity", sites, 9), heads)
    with torch.no_grad(), attach(model, edits, [keep]):
        assert torch.isfinite(output_of(model(**inputs))).all()
    for site in sites:
        if site.streams[0] == site.streams[1]:
            weights = keep.tensors[site.name]
            same = [torch.equal(head, torch.eye(head.shape[-1]).expand_as(head)) for head in weights.transpose(0, 1)]
            assert same == [(site.name, number) in heads for number in range(site.heads)]


def test_rank_correlation() -> None:
    scores = Scores(LAMBDAS, LAYERS)
    turned = Scores({name: -3 * values for name, values in LAMBDAS.items()}, LAYERS)
    swapped = {**LAMBDAS, "layer.0": torch.tensor([0.30, -0.05, 0.12])}  # the last two places of the order
    flat = Scores({name: torch.zeros(3) for name in LAMBDAS}, LAYERS)
    table = rank_correlation({"one": scores, "turned": turned, "swapped": Scores(swapped, LAYERS), "flat": flat})
    assert table.names == ("one", "turned", "swapped", "flat")
    assert table.spearman[0, :3] == pytest.approx([1, -1, 1 - 6 * 2 / (6 * 35)])
    assert table.kendall[0, :3] == pytest.approx([1, -1, (15 - 2) / 15])
    assert np.isnan(table.spearman[3]).all()
    assert np.array_equal(table.kendall, table.kendall.T, equal_nan=True)
    assert table.rows()[1] == ("one", "swapped", pytest.approx(0.942857, abs=1e-6), pytest.approx(13 / 15))
    assert len(table.rows()) == 6
    with pytest.raises(DataError, match="'one' and 'ragged' are of different heads"):
        rank_correlation({"one": scores, "ragged": random_scores(RAGGED)})


def test_heads_of_an_order_fit_other_edits() -> None:
    order = Scores(LAMBDAS, LAYERS).order()
    assert Constant(torch.rand(3, 4, 4), heads=order[:2]).select == Select(heads=[("layer.1", 0), ("layer.0", 1)])


def test_scores_of_some_heads() -> None:
    """Orders, places and budgets are of these alone, and a round trip keeps which they are."""
    everything = random_scores(RAGGED)
    a, b, _ = RAGGED
    some = everything.only({a: (1,), b: (0, 2)})
    assert some.order() == [head for head in everything.order() if head in (("a", 1), ("b", 0), ("b", 2))]
    assert some.table().isnan().tolist() == [[True, False, True], [False, True, False]]
    assert sorted(some.ranks().flatten().nan_to_num(0).tolist()) == [0, 0, 0, 1, 2, 3]
    again = Scores.from_json(json.loads(json.dumps(some.to_json())))
    assert again.order() == some.order()
    assert again.heads == some.heads == {"a": (1,), "b": (0, 2)}
    with pytest.raises(DataError, match="different heads"):
        rank_correlation({"some": some, "all": Scores({"a": torch.zeros(2), "b": torch.zeros(3)}, [a, b])})
    with pytest.raises(SelectionError, match=r"has 2 heads, so it cannot have scores for \(2,\)"):
        Scores({"a": torch.zeros(1)}, [a], heads={"a": (2,)})


@pytest.mark.parametrize("name", ["divergence", "gradient", "random"])
def test_a_selection_changes_no_number(name: str) -> None:
    """The other heads stay as they are, so a score of some heads is that of all, cut."""
    model = attrim.load_model("tiny-bert", "sequence-classification")
    generator = torch.Generator().manual_seed(0)
    inputs = {"input_ids": torch.randint(5, 250, (4, 12), generator=generator)}
    stat = attrim.measure(model, [inputs], attrim.Mean(), progress=False)["Mean"]
    batches = [{**inputs, "labels": torch.tensor([0, 1, 0, 1])}]
    everything = SCORES[name]()(model, batches, stat)
    select = Select(layers=-2, heads=[1, 3])
    some = SCORES[name]()(model, batches, stat, select=select)
    (site,) = some.sites
    assert (site.layer, some.scored(site)) == (0, (1, 3))
    assert some.values[site.name].tolist() == pytest.approx(everything.values[site.name][[1, 3]].tolist(), rel=1e-4)
