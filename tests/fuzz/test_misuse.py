"""Python that nobody should write: wrong types, shapes and numbers for every verb, edit, stat, score and study.

Each works, or raises a subclass of ``AttrimError`` with one sentence. Arguments that the signature does not have stay
the ``TypeError`` that Python itself raises.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import attrim
from attrim.core.registry import EDITS, SCORES, STATS, STUDIES
from attrim.models.loading import load_model, load_tokenizer
from attrim.tasks.base import load_task
from fuzz.scale import fuzzed
from fuzz.trial import call

WRONG: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**70, -(2**70), 0.5, -0.5, 1.5, float("nan"), float("inf"), 1j, "", "x", "0.5",
    "\0", b"x", (), [], {}, set(), [None], ["x"], [[1], [2, 3]], {"x": 1}, {1: None}, object(), int, print, lambda:
    None, Ellipsis, range(3), slice(3), np.float32(0.5), np.array([1.0, 2.0]), np.array("x"), np.zeros((0,)),
    np.datetime64("2020"), Path("nowhere"), torch.tensor(0.5), torch.zeros(0), torch.zeros(3), torch.ones(2, 2),
    torch.ones(4, 5, 5), torch.full((4,), float("nan")), torch.zeros(4, 8, 8), torch.tensor([True, False]),
    torch.zeros(3, dtype=torch.int64), torch.zeros(2, 2, device="meta"), torch.zeros(2, dtype=torch.complex64),
    nn.Linear(2, 2), nn.Module(), attrim.Threshold, attrim.Threshold(0.1), attrim.Mean, attrim.Select(),
    attrim.Select(heads=[(0, 1)]), ValueError("x"), iter(()),
)  # fmt: skip


@cache
def tiny() -> tuple[Any, Any, dict[str, torch.Tensor]]:
    model, tokenizer = load_model("tiny-bert"), load_tokenizer("tiny-bert")
    return model, tokenizer, dict(tokenizer(["some words", "more"], return_tensors="pt", padding=True))


def wrong(random: Random) -> Any:
    return random.choice(WRONG)


@fuzzed("python", 0.6)
def test_edits_stats_scores_and_studies(random: Random) -> None:
    """Fields that hold the wrong thing, and what is made in spite of it on a model."""
    registry = random.choice([EDITS, EDITS, STATS, SCORES, STUDIES])
    kind = registry[random.choice(list(registry))]
    fields = [field for field in dataclasses.fields(kind) if field.init]
    chosen = {field.name: wrong(random) for field in random.sample(fields, min(len(fields), random.randint(1, 2)))}
    for field in fields:
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            chosen.setdefault(field.name, random.choice([0.1, "linear-slog-clamped-midval", wrong(random)]))

    def use() -> None:
        member = kind(**chosen)
        model, _, batch = tiny()
        if registry is EDITS:
            with attrim.edit(model, member), torch.no_grad():
                model(**batch)
        elif registry is STATS:
            attrim.measure(model, [batch], [member])

    assert (call(use), kind, chosen) == ("", kind, chosen)
    assert_untouched()


@fuzzed("python", 0.4)
def test_verbs(random: Random) -> None:
    """Arguments that are not what the verb takes."""
    model, tokenizer, batch = tiny()
    odd, other = wrong(random), wrong(random)
    verbs = {
        "sites": lambda: attrim.sites(odd),
        "edit model": lambda: attrim.edit(odd, attrim.Threshold(0.1)).__enter__(),
        "edit edits": lambda: enter(attrim.edit(model, odd)),
        "edit select": lambda: enter(attrim.edit(model, attrim.Threshold(0.1), select=odd)),
        "measure model": lambda: attrim.measure(odd, [batch], [attrim.Mean()]),
        "measure batches": lambda: attrim.measure(model, odd, [attrim.Mean()]),
        "measure batch": lambda: attrim.measure(model, [odd], [attrim.Mean()]),
        "measure stats": lambda: attrim.measure(model, [batch], odd),
        "measure select": lambda: attrim.measure(model, [batch], [attrim.Mean()], odd),
        "evaluate": lambda: attrim.evaluate(odd, other, tokenizer),
        "evaluate task": lambda: attrim.evaluate(model, odd, tokenizer),
        "bake": lambda: attrim.bake(odd, attrim.Gate(0.0, select=attrim.Select(heads=[0]))),
        "bake edits": lambda: attrim.bake(model, odd),
        "load": lambda: attrim.load(odd),
        "load_model": lambda: attrim.load_model(odd),
        "load_model kind": lambda: attrim.load_model("tiny-bert", odd),
        "load_model device": lambda: attrim.load_model("tiny-bert", device=odd),
        "load_model dtype": lambda: attrim.load_model("tiny-bert", dtype=odd),
        "load_tokenizer": lambda: attrim.load_tokenizer(odd),
        "load_task": lambda: load_task("retrieval", data=odd, limit=other),
        "select heads": lambda: attrim.Select(heads=odd).resolve(attrim.sites(model)),
        "select layers": lambda: attrim.Select(layers=odd).resolve(attrim.sites(model)),
        "select roles": lambda: attrim.Select(roles=odd).resolve(attrim.sites(model)),
        "select names": lambda: attrim.Select(names=odd, layers=other).resolve(attrim.sites(model)),
        "findings": lambda: attrim.findings(odd),
        "bench": lambda: attrim.Bench(odd, task=other).loaded_model,
        "bench task": lambda: attrim.Bench("tiny-bert", task=odd, data=other).loaded_task,
    }
    name = random.choice(list(verbs))
    assert (call(verbs[name]), name, odd, other) == ("", name, odd, other)
    assert_untouched()


def enter(context: Any) -> None:
    model, _, batch = tiny()
    with context, torch.no_grad():
        model(**batch)


def assert_untouched() -> None:
    """Whatever failed, the model gives what it gave before."""
    model, _, batch = tiny()
    with torch.no_grad():
        assert torch.equal(model(**batch).last_hidden_state, unedited())


@cache
def unedited() -> torch.Tensor:
    model, _, batch = tiny()
    with torch.no_grad():
        return model(**batch).last_hidden_state


@pytest.mark.parametrize("verb", ["edit", "measure", "evaluate", "bake", "load", "sites"])
def test_a_missing_argument_is_pythons_own_error(verb: str) -> None:
    with pytest.raises(TypeError, match="missing"):
        getattr(attrim, verb)()


@pytest.mark.parametrize(
    "use",
    [
        lambda model, batch: enter(attrim.edit(model, attrim.Threshold(0.1), select=torch.ones(2, 2))),
        lambda model, batch: enter(attrim.edit(model, attrim.Threshold(0.1), select=0)),
        lambda model, batch: attrim.Select(layers=torch.zeros(2, 2, device="meta")),
        lambda model, batch: attrim.Constant(torch.zeros(1, 2, 2, device="meta")),
        lambda model, batch: attrim.Mix(attrim.Mean),
        lambda model, batch: attrim.measure(model, [batch], np.array("x")),
        lambda model, batch: attrim.measure(model, [batch], torch.tensor(0.5)),
        lambda model, batch: attrim.measure(model, np.array("x"), [attrim.Mean()]),
        lambda model, batch: attrim.RowDistance(bins=0),
        lambda model, batch: attrim.RowDistance(floor=2.0),
        lambda model, batch: attrim.Histogram(bins=10**12),
        lambda model, batch: attrim.RowCurves(levels=10**12),
        lambda model, batch: attrim.Quantize({"x": None}, bits=3),
    ],
)
def test_what_random_cases_found_is_refused(use: Any) -> None:
    model, _, batch = tiny()
    with pytest.raises(attrim.errors.AttrimError):
        use(model, batch)
    assert_untouched()
