"""Texts of the grammar: each is read or refused in one sentence, and what is read is written and read back the same."""

from __future__ import annotations

from typing import Any

from fuzz.scale import fuzzed, tried
from fuzz.strategies import MEMBERS, NUMBERS, VALUES
from fuzz.trial import call
from hypothesis import given
from hypothesis import strategies as st

from attrim.core import text as grammar
from attrim.core.record import same
from attrim.core.registry import EDITS, STATS, TASKS
from attrim.errors import AttrimError

SECONDS = 2.0
HINTS: list[Any] = [int, float, int | float, int | None, str, bool, tuple[int, ...], tuple[float, ...], float | str]


def read_back(read: Any, text: str) -> None:
    """Read a text, write what it says, and read that: nothing may have changed."""
    found = read(text)
    written = grammar.describe(*found)
    try:
        again = read(written)
    except AttrimError:
        # Labels stand for many entries, and for tensors, by their number; those cannot be read.
        assert any(word in written for word in (" entries", " heads", " site", "x")), f"{text!r} became {written!r}"
        return
    assert len(again) == len(found)
    for one, other in zip(found, again, strict=True):
        assert same(vars(one), vars(other)), f"{text!r} became {written!r}"


@fuzzed("texts", 0.5)
@given(MEMBERS)
def test_edits(text: str) -> None:
    tried["texts"] += 1
    assert call(lambda: read_back(grammar.parse_chain, text), SECONDS) == ""


@fuzzed("texts", 0.2)
@given(MEMBERS)
def test_stats(text: str) -> None:
    tried["texts"] += 1
    assert call(lambda: grammar.parse(STATS, text), SECONDS) == ""


@fuzzed("texts", 0.1)
@given(st.sampled_from(["layers", "heads", "roles", "names"]), VALUES, VALUES)
def test_selections(field: str, text: str, other: str) -> None:
    tried["texts"] += 1
    assert call(lambda: grammar.parse_selection(field, f"{text}+{other}"), SECONDS) == ""


@fuzzed("texts", 0.1)
@given(VALUES, st.sampled_from(HINTS))
def test_values(text: str, hint: Any) -> None:
    """A number that is read is the number that was written."""
    tried["texts"] += 1

    def read() -> None:
        value = grammar.convert(text, hint, "value")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            assert value == type(value)(text), (text, value)

    assert call(read, SECONDS) == ""


@fuzzed("texts", 0.1)
@given(st.sampled_from(list(TASKS)), st.lists(st.tuples(VALUES, VALUES).map("=".join), max_size=3), VALUES)
def test_options(task: str, options: list[str], value: str) -> None:
    tried["texts"] += 1
    known = [f"{name}={value}" for name in TASKS[task].__dataclass_fields__]
    place = len(value) % len(known)
    assert call(lambda: grammar.parse_options([*options, known[place]], TASKS[task], "task"), SECONDS) == ""
    assert call(lambda: grammar.parse_options([known[place]], TASKS[task], "task"), SECONDS) == ""


def test_the_corpus_holds_what_was_found_before() -> None:
    """Numbers that once ended in a traceback stay in the corpus."""
    assert {"9" * 5000, "nan", "1e999", str(2**63)} <= {*NUMBERS}
    for registry in (EDITS, STATS):
        for name in registry:
            for number in NUMBERS:
                tried["texts"] += 1
                assert call(lambda: grammar.parse(registry, f"{name}:{number}"), SECONDS) == ""  # noqa: B023
