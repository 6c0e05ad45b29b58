"""The constant study of selected heads: only these are averaged, ordered and made constant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from attrim.attention.discover import find_sites
from attrim.core.charts import Curve, HeadMatrix
from attrim.edits.families import make_constants
from attrim.probing.hidden_states import extract
from attrim.studies.constant.ordering import Replacement
from attrim.studies.findings import findings
from constant_runs import bench, run, study

FIRST, SECOND = (f"encoder.layer.{layer}.attention.self" for layer in (0, 1))
SELECTIONS = {
    "roles": ({"select_roles": ("encoder",)}, [(site, head) for site in (FIRST, SECOND) for head in range(4)]),
    "layers": ({"select_layers": (-1,)}, [(SECOND, head) for head in range(4)]),
    "first layer": ({"select_layers": (-2,)}, [(FIRST, head) for head in range(4)]),
    "heads": ({"select_heads": ("0", "1/3")}, [(FIRST, 0), (SECOND, 0), (SECOND, 3)]),
    "names": ({"select_names": ("*0*",), "select_heads": ("1-2",)}, [(FIRST, 1), (FIRST, 2)]),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_orders_and_budgets_are_of_the_selected_heads(glue: Path, name: str) -> None:
    select, chosen = SELECTIONS[name]
    orders = ("lambdas", "divergence", "gradient", "random")
    found = run(glue, seeds=(0, 1), epochs=1, orders=orders, budgets=("1", "all"), **select)
    for scores in found.orders.values():
        assert sorted(scores.order()) == chosen
    assert [len(row.setting.heads) for row in found.rows][:3] == [0, 1, len(chosen)]
    assert sorted(found.rows[2].setting.heads) == chosen
    assert found.heads == len(chosen)
    (curve,) = (chart for chart in found.charts() if isinstance(chart, Curve))
    assert curve.x.label == f"constant heads (of {len(chosen)} selected)"
    (matrix,) = (chart for chart in found.charts() if chart.name == "order-lambdas")
    assert isinstance(matrix, HeadMatrix)
    assert np.isfinite(matrix.values).sum() == len(chosen)
    assert findings(found.folder) == found


def test_shares_are_of_the_selected_heads(glue: Path) -> None:
    found = run(glue, seeds=(0,), epochs=1, orders=("random",), budgets=("1/2", "all"), select_layers=(1,))
    assert [len(row.setting.heads) for row in found.rows] == [0, 2, 4]
    assert "All selected heads constant" in " ".join(found.sentences())


def test_every_family_for_some_heads_of_a_site(glue: Path) -> None:
    families = ("average", "offset", "uniform", "identity", "previous", "next", "random", "learned")
    found = run(glue, families=families, seeds=(0,), epochs=1, budgets=("all",), select_heads=("1", "2"))
    assert [row.setting.family for row in found.rows] == ["", *families]


def test_the_averages_of_selected_heads_are_those_of_all(glue: Path) -> None:
    everything = run(glue, until="average").averages.mean
    some = run(glue, until="average", select_heads=("0/2",)).averages.mean
    assert list(some.records) == [FIRST]
    assert torch.equal(some.matrix(FIRST)[2], everything.matrix(FIRST)[2])
    assert not some.matrix(FIRST)[[0, 1, 3]].any()


def test_heads_that_are_not_selected_keep_their_attention(glue: Path) -> None:
    """The hidden states of the first layer do not change when only heads of the second one are constant."""
    prepared = study().prepare(bench(glue, select_layers=(1,)))
    heads = tuple((SECOND, head) for head in range(4))
    sites = prepared.select().resolve(find_sites(prepared.loaded_model))
    setting = Replacement("uniform", "", "all", heads, "uniform").setting(make_constants("uniform", sites, 24))
    plain, edited = (
        extract(prepared.loaded_model, prepared.validation_task(), prepared.loaded_tokenizer, edits).parts[0]
        for edits in ((), setting.edits)
    )
    assert torch.equal(plain[:, :2], edited[:, :2])
    assert not torch.equal(plain[:, 2], edited[:, 2])
