"""Texts of the grammar: each is read or refused in one sentence, and what is read is written and read back the same."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

from attrim.core import text as grammar
from attrim.core.record import same
from attrim.core.registry import EDITS, STATS, TASKS
from attrim.errors import AttrimError
from fuzz.cases import NUMBERS, edits, option, stat, value
from fuzz.scale import fuzzed, tried
from fuzz.trial import call

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
        assert type(one) is type(other)
        for field in dataclasses.fields(one):
            assert same(getattr(one, field.name), getattr(other, field.name)), f"{text!r} became {written!r}"


@fuzzed("texts", 0.5)
def test_edits(random: Random) -> None:
    text = edits(random)
    assert (call(lambda: read_back(grammar.parse_chain, text), SECONDS), text) == ("", text)


@fuzzed("texts", 0.2)
def test_stats(random: Random) -> None:
    text = stat(random)
    assert (call(lambda: grammar.parse(STATS, text), SECONDS), text) == ("", text)


@fuzzed("texts", 0.1)
def test_selections(random: Random) -> None:
    text, field = f"{value(random)}+{value(random)}", random.choice(grammar.SELECT_FIELDS)
    assert (call(lambda: grammar.parse_selection(field, text), SECONDS), text) == ("", text)


@fuzzed("texts", 0.1)
def test_values(random: Random) -> None:
    """A number that is read is the number that was written."""
    text, hint = value(random), random.choice(HINTS)

    def read() -> None:
        found = grammar.convert(text, hint, "value")
        if isinstance(found, (int, float)) and not isinstance(found, bool):
            assert found == type(found)(text), (text, found)

    assert (call(read, SECONDS), text) == ("", text)


@fuzzed("texts", 0.1)
def test_options(random: Random) -> None:
    task = random.choice(list(TASKS))
    texts = [option(random, task) for _ in range(random.randrange(3))]
    assert (call(lambda: grammar.parse_options(texts, TASKS[task], "task"), SECONDS), texts) == ("", texts)


def test_the_corpus_holds_what_was_found_before() -> None:
    """Numbers that once ended in a traceback stay in the corpus."""
    assert {"9" * 5000, "nan", "1e999", str(2**63)} <= {*NUMBERS}
    for registry in (EDITS, STATS):
        for name in registry:
            for number in NUMBERS:
                tried["texts"] += 1
                assert call(lambda: grammar.parse(registry, f"{name}:{number}"), SECONDS) == ""  # noqa: B023
