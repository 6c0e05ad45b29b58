"""Dataclasses go to JSON and come back, and what does not fit is refused in one sentence."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attrim.core import record
from attrim.errors import ArtefactError


@dataclass(frozen=True)
class Inner:
    number: float
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    name: str
    count: int = 0
    look: Literal["plain", "bold"] = "plain"
    inner: Inner | None = None
    table: dict[str, list[Inner]] = field(default_factory=dict)
    pair: tuple[str, int] = ("", 0)
    place: Path | None = None
    loose: Any = None
    cache: int = field(default=7, metadata={"kept": False})


INNER = st.builds(Inner, st.floats(), st.lists(st.text(), max_size=3).map(tuple))
OUTER = st.builds(
    Outer,
    st.text(),
    st.integers(-(2**53), 2**53),
    st.sampled_from(["plain", "bold"]),
    st.none() | INNER,
    st.dictionaries(st.text(), st.lists(INNER, max_size=2), max_size=2),
    st.tuples(st.text(), st.integers(-100, 100)),
    st.none() | st.just(Path("a/b")),
    st.none() | st.booleans() | st.lists(st.integers(-9, 9), max_size=2),
)


@given(OUTER)
def test_a_round_trip_changes_nothing(value: Outer) -> None:
    text = json.dumps(record.dump(value), allow_nan=False)
    assert record.same(record.load(Outer, json.loads(text), "values"), value)


@given(INNER, INNER)
def test_same_is_equality_of_content(one: Inner, other: Inner) -> None:
    assert record.same(one, one)
    number = one.number == other.number or (math.isnan(one.number) and math.isnan(other.number))
    assert record.same(one, other) == (number and one.words == other.words)


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        (np.array([1.0, math.nan]), np.array([1.0, math.nan]), True),
        (np.array([1.0]), np.array([2.0]), False),
        (np.array([1.0]), np.array([1]), False),
        ({"a": np.zeros(2)}, {"a": np.zeros(2)}, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        ([1, 2], (1, 2), False),
        (1.0, 1, False),
    ],
)
def test_same_looks_into_arrays_and_containers(first: Any, second: Any, equal: bool) -> None:
    assert record.same(first, second) == equal


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"name": 3}, "'name' cannot be read: 3 is not a text"),
        ({"name": "x", "count": "3"}, "'3' is not a whole number"),
        ({"name": "x", "count": True}, "True is not a whole number"),
        ({"name": "x", "look": "bald"}, "'bald'"),
        ({"name": "x", "inner": {"number": []}}, "is not Inner or None"),
        ({"name": "x", "table": {"a": [{"number": None}]}}, "'table', 'a', entry 0, 'number'"),
        ({"name": "x", "pair": ["a"]}, "1 entries, not 2"),
        ({"name": "x", "cache": 3}, "no field 'cache'"),
        ({"nam": "x"}, "no field 'nam'"),
        ({}, "name"),
        (["x"], "is not Outer"),
        ({"name": "x" * 500, "count": "y" * 500}, r"\.\.\. is not a whole number"),
    ],
)
def test_what_does_not_fit_is_refused(value: Any, words: str) -> None:
    with pytest.raises(ArtefactError, match=words) as caught:
        record.load(Outer, value, "values")
    assert len(str(caught.value)) < 300


def test_a_codec_stands_for_a_type_and_its_subclasses() -> None:
    class Base(dict): ...

    class Derived(Base): ...

    codecs = {Base: record.Codec(lambda value: sorted(value), lambda keys: Derived.fromkeys(keys))}
    assert record.dump({"x": Derived(b=1, a=2)}, codecs) == {"x": ["a", "b"]}
    assert record.load(dict[str, Derived], {"x": ["a"]}, "values", codecs) == {"x": {"a": None}}


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ArtefactError, match="object"):
        record.dump({"x": object()})
