"""Choosing sites and heads."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attrim.errors import SelectionError
from attrim.select import Select, Site

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
    with pytest.raises(SelectionError, match="There is no head"):
        chosen(roles="encoder", heads=[(0, 1), pair])


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
