from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import attrim
from attrim.core.registry import EDITS, METHODS, STATS, Registry
from attrim.core.site import Select
from attrim.core.text import (
    describe,
    folders,
    hints_of,
    options_of,
    parse,
    parse_chain,
    parse_heads,
    parse_one_chain,
    parse_options,
    spell,
)
from attrim.edits import Constant, Edit, Gate, Mask, RandomDrop, Threshold, Uniform
from attrim.errors import AttrimError
from attrim.stats import Sample
from attrim.tasks.glue import Sst2
from methods import HIDDEN_METHODS
from methods import METHODS as EVERY_EDIT


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
        ("mask:cells.pt", "no saved edits in 'cells.pt'"),
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


CHAIN = [Threshold(0.1), Uniform(select=Select(heads=[3]))]


@pytest.mark.parametrize(
    "text",
    [
        "threshold:0.1 then uniform:heads=3",
        "  threshold:0.1\tTHEN  uniform:heads=3 ",
        "threshold:0.1\nthen uniform:heads=3",
    ],
)
def test_then_means_order(text: str) -> None:
    assert parse_chain(text) == CHAIN
    assert parse_chain(describe(*CHAIN)) == CHAIN
    assert parse_one_chain([text]) == CHAIN
    assert parse_one_chain([]) == []


def test_a_shared_selection_is_for_edits_that_select_nothing() -> None:
    shared = Select(layers=[0])
    assert parse_chain("threshold:0.1 then uniform:heads=3", shared) == [Threshold(0.1, select=shared), CHAIN[1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("theshold:0.1", "no edit named 'theshold'; did you mean 'threshold'"),
        ("threshold:bra=0.1", "field of the edit 'threshold' named 'bra'; did you mean 'bar'"),
        ("threshold:0.1 than gate:0", "'than' does not join .* 'threshold:0.1 then gate:0'"),
        ("threshold:0.1 and gate:0", "'and' does not join .* 'threshold:0.1 then gate:0'"),
        ("threshold:0.1;gate:0", "';' does not join .* 'threshold:0.1 then gate:0'"),
        ("threshold:0.1,gate:0", "',' does not join .* 'threshold:0.1 then gate:0'"),
        ("threshold:0.1 gate:0", "did you mean 'threshold:0.1 then gate:0'"),
        ("threshold:0.1 then", "an edit missing beside a 'then'"),
        ("then gate:0", "an edit missing beside a 'then'"),
        ("gate:0 then then uniform", "an edit missing beside a 'then'"),
        ("gate:0 then treshold:1", "'treshold'; did you mean 'threshold'"),
        ("uniform:heads=0..3", "'0..3' in heads=0..3 .* did you mean heads=0-3"),
        ("uniform:heads=1+0:3", "'0:3' in heads=1.0:3 .* did you mean heads=0-3"),
        ("uniform:layers=3-1", "did you mean layers=1-3"),
        ("uniform:layers=0/3", "did you mean heads=0/3"),
        ("uniform:layers=-1-3", "not a selection"),
        ("uniform:heads=1,2", "'2' in .* comes after heads=.* heads=1.2"),
        ("threshold:bar=0.1,uniform", "'uniform' in .* write FIELD=uniform"),
        ("uniform:layers=", "'' in layers= is not a selection; write numbers"),
        ("uniform:roles=encoder+", "'' in roles=.* write words such as roles=encoder"),
        ("uniform:heads=72 heads", "'72 heads' in heads=72 heads is not a selection"),
        ("threshold:nan", "cannot be 'nan'; give a number"),
        ("gate:-inf", "cannot be '-inf'; give a number"),
        ("threshold:top=99999999999999999999", "'top' .* too large"),
        ("random-drop:0.5,seed=99999999999999999999", "'seed' .* too large"),
        (f"threshold:{'9' * 5000}", "'bar' .* too large"),
        (f"threshold:top={'9' * 5000}", "'top' .* too large"),
        (f"uniform:layers={'9' * 5000}", "more than the 9999 layers"),
        (f"uniform:heads=3/{'9' * 5000}", "more than the 9999 layers or heads"),
        (f"uniform:heads={'9' * 5000}/3", "more than the 9999 layers or heads"),
        ("uniform:layers=0-99999999", "99999999 in layers=0-99999999 is more than the 9999"),
        (f"uniform:layers={'+'.join(['0-9999'] * 1000)}", "chooses more than 9999"),
        ("x" * 5000, "no edit named 'xxx"),
        ("uniform:layers=0\n+a\nb", "not a selection"),
        ("threshold:bar=0.1,\n1 \n2", "write FIELD=1  2"),
    ],
)
def test_messages_name_the_wrong_token_and_the_right_one(text: str, message: str) -> None:
    with pytest.raises(AttrimError, match=message) as caught:
        parse_chain(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_one_text_where_one_is_expected() -> None:
    with pytest.raises(AttrimError, match=r"2 times.*'threshold:0\.1 then gate:0'"):
        parse_one_chain(["threshold:0.1", "gate:0"])
    with pytest.raises(AttrimError, match="One edit was expected"):
        parse(EDITS, "threshold:0.1 then gate:0")
    with pytest.raises(AttrimError, match="One stat was expected"):
        parse(STATS, "histogram then moments")


def test_stats_and_lists() -> None:
    assert parse(STATS, "sample:3,first=2").options() == Sample(3, first=2).options()
    assert parse(STATS, "token-sparsity:bars=[1e-3, 1e-2]").options() == {"bars": (1e-3, 1e-2)}
    texts = ("quantize:linear-slog-clamped-midval,bits=3", "uniform:names=layer[0-3]*")
    stat = parse(STATS, f'row-distance:edits=["{texts[0]}", {texts[1]}],bins=7')
    assert stat.options() == {"edits": texts, "floor": 1e-10, "bins": 7}
    with pytest.raises(AttrimError, match="'bars' of the stat 'token-sparsity' cannot be 'x'; give a list"):
        parse(STATS, "token-sparsity:bars=[1e-3,x]")
    with pytest.raises(AttrimError, match="field of the stat 'histogram' named 'layers'"):
        parse(STATS, "histogram:layers=3")


def test_folders() -> None:
    text = (
        'constant:some/folder,heads=0 then gate:0 then quantize:lloyd-max,3,fitted=\'a, then b\' then mix:"c\\"d",0.5'
    )
    assert folders(text) == ["some/folder", "a, then b", 'c"d']


def test_heads() -> None:
    assert parse_heads("3") == [3]
    assert parse_heads("5/11 + 0-2") == [(5, 11), 0, 1, 2]
    assert parse_heads("5/1-3+encoder.layer-0/-1") == [(5, 1), (5, 2), (5, 3), ("encoder.layer-0", -1)]


def test_options() -> None:
    options = parse_options(["min-words= 6", "label_order=[1, 0]", "split='a=b'"], Sst2, "task glue/sst2")
    assert options == {"min_words": 6, "label_order": (1, 0), "split": "a=b"}


# Every registered edit and stat that can be written as text: fields at random, from their type hints.
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(1, 16),
    float: st.floats(1e-6, 0.999) | st.sampled_from([1.0, 1e-300]),
    str: st.text(st.characters(exclude_categories=["C"]), max_size=8),
}
OWN = {
    ("quantize", "method"): st.sampled_from(sorted(METHODS)),
    ("quantize", "search"): st.sampled_from(["grid", "entropy"]),
    ("row-distance", "edits"): st.lists(
        st.sampled_from(["uniform", "threshold:0.1,layers=0-3", "quantize:linear-slog-clamped-midval,bits=3"]),
        unique=True,
    ).map(tuple),
}
NOT_WRITTEN = {  # they cannot do without tensors, whose text names a file
    name
    for name in EDITS
    if any("parse" in item.metadata and item.default is dataclasses.MISSING for item in dataclasses.fields(EDITS[name]))
}


def fitting(hint: Any) -> list[st.SearchStrategy[Any]]:
    """Values of a type hint, for each type that it allows; none when there is no text for them."""
    if hint in VALUES:
        return [VALUES[hint]]
    if get_origin(hint) is Literal:
        return [st.sampled_from(get_args(hint))]
    if get_origin(hint) in (tuple, Sequence):
        return [st.lists(entries, max_size=4).map(tuple) for entries in fitting(get_args(hint)[0])]
    return [values for option in options_of(hint) if option is not hint for values in fitting(option)]


def members(registry: Registry[Any], name: str) -> st.SearchStrategy[Any]:
    kind = registry[name]
    hints = hints_of(kind)
    required, optional = {}, {}
    for item in (item for item in dataclasses.fields(kind) if item.init):
        values = [OWN[name, item.name]] if (name, item.name) in OWN else fitting(hints[item.name])
        if item.name == "select":
            values = [selections]
        if values:
            needed = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
            (required if needed else optional)[item.name] = st.one_of(values)
    return st.fixed_dictionaries(required, optional=optional).map(partial(_made, kind))


def _made(kind: Any, fields: dict[str, Any]) -> Any:
    try:
        return kind(**fields)
    except AttrimError:
        return None  # a combination that the member itself refuses


def fields_of(member: Any) -> dict[str, Any]:
    return {item.name: getattr(member, item.name) for item in dataclasses.fields(member) if item.init}


WRITTEN = [(EDITS, name) for name in sorted({*EDITS} - NOT_WRITTEN)] + [(STATS, name) for name in STATS]


@pytest.mark.parametrize(("registry", "name"), WRITTEN, ids=[name for _, name in WRITTEN])
@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(data=st.data())
def test_every_member_reads_back_from_its_label(registry: Registry[Any], name: str, data: st.DataObject) -> None:
    member = data.draw(members(registry, name))
    assume(member is not None)
    label = describe(member)
    assert fields_of(parse(registry, label)) == fields_of(member), label


@pytest.mark.parametrize("edit", [parameter.values[0] for parameter in EVERY_EDIT + HIDDEN_METHODS])
def test_the_listed_edits_read_back(edit: Edit) -> None:
    if edit.registered_name not in NOT_WRITTEN:
        assert fields_of(parse(EDITS, describe(edit))) == fields_of(edit)


WORDS = (
    *("threshold", "gate", "quantize", "random-drop", "uniform", "linear-slog", "then", "than", "true", "none", "nan"),
    *("bar", "top", "renormalize", "layers", "heads", "roles", "names", "0", "3", "0.1", "1e9", "-1", ".."),
    *(":", ",", "=", "+", "-", "/", "[", "]", '"', "'", " ", "\n", "\\", "é", "٣"),
)


def edits_or_error(text: str) -> list[Edit] | AttrimError:
    try:
        return parse_chain(text)
    except AttrimError as error:
        return error


@settings(max_examples=500)
@given(text=st.lists(st.sampled_from(WORDS), max_size=12).map("".join) | st.text(max_size=20))
def test_any_text_is_edits_or_one_sentence(text: str) -> None:
    found = edits_or_error(text)
    if isinstance(found, AttrimError):
        assert "\n" not in str(found)
    else:
        assert [fields_of(edit) for edit in parse_chain(describe(*found))] == [fields_of(edit) for edit in found]


def test_a_spelled_edit_is_read_back_whole(tmp_path: Path) -> None:
    """Where a label says how many heads there are, the spelled text names them, and tensors by their folder."""
    heads = [(layer, head) for layer in range(5) for head in range(4)]
    gate = Gate(0.0, select=Select(heads=heads))
    assert describe(gate).endswith("heads=20 heads")
    (back,) = parse_chain(spell(gate))
    assert back.select == gate.select
    model, tokenizer = attrim.load_model("tiny-bert"), attrim.load_tokenizer("tiny-bert")
    stats = attrim.measure(model, [dict(tokenizer("a text", return_tensors="pt"))], attrim.Mean())
    folder = stats.save(tmp_path / "a folder, with a comma")
    constant = Constant(stats[attrim.Mean], select=Select(heads=heads[:2]))
    (back,) = parse_chain(spell(constant, matrix=str(folder)))
    assert back.select == constant.select
    assert all(torch.equal(back.matrix[name], constant.matrix[name]) for name in constant.matrix)
