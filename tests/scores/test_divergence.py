from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

import attrim
from attrim.core.site import Site
from attrim.edits import Constant, Offset
from attrim.errors import ArtefactError
from attrim.scores import SCORES
from attrim.stats.distance import RowDivergence, row_divergence
from attrim.stats.mean import Mean
from watching import eager
from zoo import ZOO, batch


@given(st.lists(st.floats(0, 1), min_size=4, max_size=4), st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_rows_are_those_of_scipy(one: list[float], other: list[float]) -> None:
    left, right = (torch.tensor(row, dtype=torch.float64) + 1e-9 for row in (one, other))
    left, right = left / left.sum(), right / right.sum()
    expected = jensenshannon(left.numpy(), right.numpy()) ** 2
    assert float(row_divergence(left, right)) == pytest.approx(expected, abs=1e-12)


def test_ends() -> None:
    one, other, nothing = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]
    rows = torch.tensor([one, one, one], dtype=torch.float64)
    found = row_divergence(rows, torch.tensor([one, other, nothing], dtype=torch.float64))
    assert found.tolist() == pytest.approx([0, math.log(2), math.log(2)])


def test_only_valid_rows_count() -> None:
    """Two real tokens on slots 0 and 2; the junk on padding changes nothing."""
    weights = torch.full((1, 1, 3, 3), 0.3)
    weights[0, 0, 0] = torch.tensor([1.0, 0, 0])
    weights[0, 0, 2] = torch.tensor([0.5, 0, 0.5])
    matrix = torch.tensor([[[1.0, 5, 0], [1, 1, 1], [0, 5, 1]]])
    stat = RowDivergence(Constant(matrix))
    stat.update(weights, torch.tensor([[1, 0, 1]]))
    expected = jensenshannon([0.5, 0.5], [0, 1]) ** 2 / 2  # the first row is as the constant says
    assert stat.values()["plain"].tolist() == pytest.approx([expected])


def test_any_split_gives_the_same_integers() -> None:
    edit = Constant(torch.rand(2, 6, 6))
    weights = torch.softmax(3 * torch.randn(5, 2, 6, 6), -1)
    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[2, 3:5], mask[4, 2:] = False, False
    whole, one, other = RowDivergence(edit), RowDivergence(edit), RowDivergence(edit)
    whole.update(weights, mask)
    one.update(weights[[3, 0]], mask[[3, 0]])
    other.update(weights[[4, 2, 1]], mask[[4, 2, 1]])
    merged = one.merge(other)
    for name, tensor in whole.records["plain"].tensors.items():
        assert torch.equal(tensor, merged.records["plain"].tensors[name])
    with pytest.raises(ArtefactError, match="cannot be merged"):
        whole.merge(RowDivergence(Constant(torch.rand(2, 6, 6))))


@pytest.mark.parametrize("name", ["bert", "llama", "deberta"])
def test_a_head_that_never_changes_comes_first(name: str) -> None:
    """One text is its own average; on other texts the score is what a plain loop finds."""
    animal = next(animal for animal in ZOO if animal.name == name)
    model = eager(animal.build())
    text, others = batch(animal, (7,)), batch(animal, (7, 5), seed=4)
    mean = attrim.measure(model, [text], Mean(), progress=False)["Mean"]
    own = SCORES["divergence"]()(model, [text], mean)
    assert own.table().max() < 1e-9
    scores = SCORES["divergence"]()(model, [others], mean)
    assert scores.sites == tuple(attrim.sites(model))
    with torch.no_grad():
        attentions = model(**others, output_attentions=True).attentions
    site, head = scores.sites[1], 2
    total, rows = 0.0, 0
    for example, length in enumerate((7, 5)):
        for query in range(length):
            last = query + 1 if animal.causal else length
            constant = mean.matrix(site)[head, query, :last]
            row = attentions[1][example, head, query, :last].double()
            total, rows = total + jensenshannon(row.numpy(), constant.numpy()) ** 2, rows + 1
    assert float(scores.values[site.name][head]) == pytest.approx(total / rows, abs=1e-6)


def test_other_edits_serve_as_constants() -> None:
    animal = next(animal for animal in ZOO if animal.name == "gpt2")
    model = eager(animal.build())
    mean = attrim.measure(model, [batch(animal, (5, 5))], Mean(), progress=False)["Mean"]
    longer = batch(animal, (12, 9))
    scores = SCORES["divergence"]()(model, [longer], Offset(mean))
    assert 0 < float(scores.table().min()) < float(scores.table().max()) < math.log(2)


def test_sites_of_different_sizes() -> None:
    stat = RowDivergence(Constant({"a": torch.rand(2, 4, 4), "b": torch.rand(3, 4, 4)}))
    for name, heads in (("a", 2), ("b", 3)):
        stat.update(torch.softmax(torch.randn(1, heads, 4, 4), -1), site=Site(name, "encoder", 0, heads))
    assert {name: values.shape for name, values in stat.values().items()} == {"a": (2,), "b": (3,)}
