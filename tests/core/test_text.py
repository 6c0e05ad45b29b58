from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attrim.core.registry import EDITS
from attrim.core.site import Select
from attrim.core.text import describe, parse
from attrim.edits import Constant, Edit, Gate, Mask, RandomDrop, Threshold, Uniform
from attrim.errors import AttrimError


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("threshold:0.001", Threshold(0.001)),
        (" Threshold : 1e-3 ", Threshold(0.001)),
        (
            "threshold:bar=0.5,relative_to=uniform,layers=0-3+5,roles=encoder,renormalize=true",
            Threshold(0.5, "uniform", True, select=Select(roles="encoder", layers=[0, 1, 2, 3, 5])),
        ),
        ("threshold:0.5, row-maximum, yes", Threshold(0.5, "row-maximum", True)),
        ("threshold:top=0.2", Threshold(top=0.2)),
        ("threshold:top=1.0", Threshold(top=1.0)),
        ("threshold:top=1", Threshold(top=1)),
        ("threshold:mass=0.9", Threshold(mass=0.9)),
        ("uniform", Uniform()),
        ("uniform:layers=-1", Uniform(select=Select(layers=-1))),
        ("uniform:heads=0/3+5/11", Uniform(select=Select(heads=[(0, 3), (5, 11)]))),
        ("uniform:heads=encoder.layer.0/3", Uniform(select=Select(heads=[("encoder.layer.0", 3)]))),
        ("uniform:names=encoder.*+decoder.*", Uniform(select=Select(names=["encoder.*", "decoder.*"]))),
        ("random_drop:0.8,seed=7", RandomDrop(0.8, 7)),
        ("random-drop:0.8,7,true", RandomDrop(0.8, 7, True)),
    ],
)
def test_text_to_edit(text: str, edit: Edit) -> None:
    parsed = parse(EDITS, text)
    assert parsed == edit
    assert type(getattr(parsed, "top", None)) is type(getattr(edit, "top", None))


def test_gate() -> None:
    edit = parse(EDITS, "gate:0,heads=3")
    assert isinstance(edit, Gate)
    assert edit.factors == 0
    assert edit.select == Select(heads=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("treshold:0.1", "did you mean 'threshold'"),
        ("", "no edit named ''"),
        ("threshold:br=1", "did you mean 'bar'"),
        ("threshold:0.1,layer=3", "did you mean 'layers'"),
        ("threshold:bar=much", "'bar' of the edit 'threshold' cannot be 'much'; give a number"),
        ("threshold:0.1,renormalize=maybe", "true or false"),
        ("threshold:0.1,relative_to=unifrom", "did you mean 'uniform'"),
        ("threshold:0.1,bar=0.2", "gives 'bar' twice"),
        ("threshold:0.1,layers=a", "not a selection"),
        ("threshold:0.1,layers=3-1", "not a selection"),
        ("threshold:0.1,layers=0/3", "not a selection"),
        ("threshold", "exactly one"),
        ("gate", "lacks 'factors'"),
        ("uniform:3", "too many values"),
        ("mask:cells.pt", "'cells' of the edit 'mask' cannot be .*do this in Python"),
        ("random-drop:0.5,seed=1.5", "a whole number"),
    ],
)
def test_bad_text_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(AttrimError, match=message) as caught:
        parse(EDITS, text)
    assert "\n" not in str(caught.value)


selections = st.builds(
    Select,
    roles=st.none() | st.lists(st.sampled_from(["encoder", "cross", "language>vision"]), min_size=1, max_size=2),
    layers=st.none() | st.lists(st.integers(-3, 12), min_size=1, max_size=6),
    heads=st.none()
    | st.lists(st.integers(-3, 12), min_size=1, max_size=6)
    | st.lists(st.tuples(st.integers(0, 5) | st.just("encoder.layer.1"), st.integers(-2, 9)), min_size=1, max_size=8),
)
thresholds = st.one_of(
    st.builds(
        Threshold, st.floats(0, 5), st.sampled_from(["one", "uniform", "row-maximum"]), st.booleans(), select=selections
    ),
    st.builds(Threshold, top=st.integers(1, 50) | st.floats(0.01, 1.0), renormalize=st.booleans(), select=selections),
    st.builds(Threshold, mass=st.floats(0.01, 1), select=selections),
)
drops = st.builds(RandomDrop, st.floats(0, 1), st.integers(0, 10**6), st.booleans(), select=selections)


@given(edit=thresholds | drops | st.builds(Uniform, select=selections))
def test_a_label_reads_back_as_the_same_edit(edit: Edit) -> None:
    assert parse(EDITS, describe(edit)) == edit


def test_labels() -> None:
    assert describe(Threshold(0.001)) == "threshold:0.001"
    assert describe(Threshold(top=0.2, renormalize=True)) == "threshold:renormalize=true,top=0.2"
    assert describe(Uniform()) == "uniform"
    assert describe(Gate(torch.ones(12), select=Select(layers=[0, 1, 2, 7]))) == "gate:12,layers=0-2+7"
    assert describe(Gate(torch.tensor(0.5))) == "gate:0.5"
    assert describe(Mask({"a": torch.ones(1, 2, 2).bool()}, "prune")) == "mask:1 site,unseen=prune"
    many = [(layer, head) for layer in range(6) for head in range(12)]
    assert describe(Constant(torch.rand(12, 64, 64), heads=many)) == "constant:12x64x64,heads=72 heads"
