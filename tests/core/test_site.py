"""Choosing sites and heads."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attrim.core.site import Select, Site
from attrim.errors import ParameterError, SelectionError

SITES = [
    Site(f"{role}.{layer}", role, layer, 4)
    for role, depth in (("encoder", 3), ("decoder", 2), ("cross", 2))
    for layer in range(depth)
]


def chosen(**fields: object) -> dict[str, tuple[int, ...]]:
    return {site.name: heads for site, heads in Select(**fields).resolve(SITES).items()}  # type: ignore[arg-type]


def test_everything_by_default() -> None:
    assert chosen() == {site.name: (0, 1, 2, 3) for site in SITES}


def test_by_role_layer_head_and_name() -> None:
    assert chosen(roles="cross") == {"cross.0": (0, 1, 2, 3), "cross.1": (0, 1, 2, 3)}
    assert chosen(roles=["cross", "decoder"], layers=0, heads=2) == {"decoder.0": (2,), "cross.0": (2,)}
    assert chosen(names="enc*.1") == {"encoder.1": (0, 1, 2, 3)}
    assert chosen(layers=-1, heads=[0, -1]) == {"encoder.2": (0, 3), "decoder.1": (0, 3), "cross.1": (0, 3)}


def test_by_pairs() -> None:
    assert chosen(roles="encoder", heads=[(0, 3), (2, 1), (2, 0)]) == {"encoder.0": (3,), "encoder.2": (0, 1)}
    assert chosen(heads=[("decoder.1", 2)]) == {"decoder.1": (2,)}
    assert chosen(heads=[(SITES[0], 1), (SITES[0], 3)]) == {"encoder.0": (1, 3)}


@pytest.mark.parametrize("fields", [{"roles": "vision"}, {"layers": 7}, {"heads": 4}, {"names": "x"}, {"heads": []}])
def test_a_selection_of_nothing_says_what_there_is(fields: dict[str, object]) -> None:
    with pytest.raises(SelectionError, match="7 sites with roles cross, decoder, encoder"):
        chosen(**fields)


@pytest.mark.parametrize("pair", [(0, 9), (8, 0), ("nowhere", 1)])
def test_a_pair_that_names_no_head_is_an_error_even_among_others(pair: tuple[object, int]) -> None:
    with pytest.raises(SelectionError, match=r"^heads=\(.*\) matches no head: the model has 7 sites"):
        chosen(roles="encoder", heads=[(0, 1), pair])


@pytest.mark.parametrize(
    ("fields", "entry"),
    [
        ({"layers": [0, 99]}, "layers=99"),
        ({"layers": [0, 2], "roles": "decoder"}, "layers=2"),
        ({"layers": [-3, -4]}, "layers=-4"),
        ({"heads": [0, 99]}, "heads=99"),
        ({"heads": [0, -5]}, "heads=-5"),
        ({"roles": ["encoder", "vision"]}, "roles='vision'"),
        ({"names": ["*", "nope*"]}, r"names='nope\*'"),
    ],
)
def test_an_entry_that_matches_nothing_is_named_even_among_others(fields: dict[str, object], entry: str) -> None:
    with pytest.raises(SelectionError, match=f"^{entry} matches no head: the model has 7 sites.* 3 layers.* 4 heads"):
        chosen(**fields)


def test_the_nearest_role_is_named() -> None:
    with pytest.raises(
        SelectionError, match=r"^roles='decodr' matches no head \(did you mean 'decoder'\?\): the model"
    ):
        chosen(roles=["encoder", "decodr"])


@pytest.mark.parametrize("kind", [np.array, torch.tensor, lambda numbers: [np.int64(number) for number in numbers]])
def test_arrays_and_tensors_are_stored_as_plain_numbers(kind: Callable[[list[int]], Any]) -> None:
    numbers = Select(heads=kind([3, 0]), layers=kind([1]))
    assert numbers == Select(heads=[3, 0], layers=1)
    pairs = Select(heads=[tuple(kind([2, 1]))])
    assert pairs == Select(heads=[(2, 1)])
    assert json.loads(json.dumps([numbers.to_json(), pairs.to_json()]))[1] == {"heads": [[2, 1]]}
    assert Select(layers=kind([1])[0]) == Select(layers=1)


def test_a_table_of_pairs_is_a_list_of_them() -> None:
    select = Select(heads=np.array([[0, 3], [2, 1]]))
    assert select == Select(heads=[(0, 3), (2, 1)])
    assert json.dumps(select.to_json()) == '{"heads": [[0, 3], [2, 1]]}'


@pytest.mark.parametrize(
    "fields",
    [
        {"heads": 1.5},
        {"heads": "ab"},
        {"heads": ["ab"]},
        {"heads": [(0, 1.7)]},
        {"heads": [(0, 1, 2)]},
        {"heads": np.array([True, False])},
        {"heads": torch.tensor([0.0, 1.0])},
        {"layers": ["first"]},
        {"layers": True},
        {"roles": 3},
        {"names": [None]},
    ],
)
def test_what_is_no_selection_is_one_sentence(fields: dict[str, object]) -> None:
    with pytest.raises(ParameterError, match=rf"^Select\({next(iter(fields))}=\.\.\.\) takes "):
        Select(**fields)  # type: ignore[arg-type]


@given(
    roles=st.none() | st.lists(st.sampled_from(["encoder", "decoder", "cross"]), min_size=1),
    layers=st.none() | st.lists(st.integers(-2, 1), min_size=1),
    heads=st.none() | st.lists(st.integers(0, 3) | st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=1),
)
def test_json_keeps_the_meaning(roles: object, layers: object, heads: object) -> None:
    select = Select(roles=roles, layers=layers, heads=heads)  # type: ignore[arg-type]
    again = Select.from_json(json.loads(json.dumps(select.to_json())))
    assert again == select


def test_streams() -> None:
    assert Site("a", "cross", 0, 1).streams == ("decoder", "encoder")
    assert Site("a", "language>vision", 0, 1).streams == ("language", "vision")
    assert Site("a", "encoder", 0, 1).streams == ("encoder", "encoder")
    assert Site("a.b#1", "vision", 0, 1, call=1).path == "a.b"


def test_a_model_without_attention_left_is_named() -> None:
    with pytest.raises(SelectionError, match="computes no attention"):
        Select().resolve([])
