"""Paired intervals against enumeration, closed forms and scipy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from attrim.errors import DataError
from attrim.runs.result import Columns, Result, mcnemar, paired_bootstrap, results_table, same_answers


def mean(columns: Columns) -> NDArray[np.float64]:
    return np.mean(columns["hit"], axis=-1)


def ratio(columns: Columns) -> NDArray[np.float64]:
    return np.sum(columns["hit"], axis=-1) / np.sum(columns["count"], axis=-1)


def test_enumerated_resamples():
    """With three examples the 27 resamples can be listed, and their percentiles are the limit of the bootstrap."""
    before, after = np.array([0.0, 1.0, 5.0]), np.array([2.0, 1.0, 4.0])
    every = [np.mean((after - before)[list(pick)]) for pick in itertools.product(range(3), repeat=3)]
    interval = paired_bootstrap(mean, {"hit": before}, {"hit": after}, resamples=20_000, level=0.8)
    low, high = np.quantile(every, [0.1, 0.9], method="inverted_cdf")
    assert interval.value == pytest.approx(np.mean(after - before))
    assert (interval.low, interval.high) == pytest.approx((low, high))


def test_pairing_matters():
    """The interval is that of the paired differences (normal limit), not of two independent samples."""
    generator = np.random.default_rng(1)
    before = generator.normal(size=4000)
    after = before + 0.1 + 0.05 * generator.normal(size=4000)
    interval = paired_bootstrap(mean, {"hit": before}, {"hit": after}, resamples=4000)
    half = 1.96 * np.std(after - before) / np.sqrt(4000)
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.08)
    assert interval.low < 0.1 < interval.high


def test_equals_scipy_on_a_ratio():
    """The same draws through scipy's own front door give the same interval."""
    generator = np.random.default_rng(2)
    hits, count = generator.integers(0, 5, (2, 60)), generator.integers(5, 9, 60)
    ours = paired_bootstrap(
        ratio, {"hit": hits[0], "count": count}, {"hit": hits[1], "count": count}, resamples=500, level=0.9, seed=7
    )
    theirs = stats.bootstrap(
        (hits[0], hits[1], count),
        lambda a, b, n, axis: b.sum(axis) / n.sum(axis) - a.sum(axis) / n.sum(axis),
        paired=True, n_resamples=500, confidence_level=0.9, method="percentile", rng=np.random.default_rng(7),
    ).confidence_interval  # fmt: skip
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30), st.integers(0, 3))
def test_properties(pairs, seed):
    """The interval is ordered and seeded; swapping the sides negates it; equal sides give zero."""
    before, after = ({"hit": np.array(side, dtype=float)} for side in zip(*pairs, strict=True))
    interval = paired_bootstrap(mean, before, after, resamples=50, seed=seed)
    assert interval.low <= interval.high
    assert interval == paired_bootstrap(mean, before, after, resamples=50, seed=seed)
    swapped = paired_bootstrap(mean, after, before, resamples=50, seed=seed)
    assert (swapped.low, swapped.high) == pytest.approx((-interval.high, -interval.low))
    same = paired_bootstrap(mean, before, before, resamples=50, seed=seed)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


def test_blocks_cover_many_examples(monkeypatch):
    """Resampling in small blocks changes the memory, not the size of the interval."""
    generator = np.random.default_rng(3)
    before, after = ({"hit": generator.random(500) < 0.7} for _ in range(2))
    whole = paired_bootstrap(mean, before, after, resamples=2000)
    monkeypatch.setattr("attrim.runs.result.BLOCK", 5000)
    blocks = paired_bootstrap(mean, before, after, resamples=2000)
    assert (blocks.low, blocks.high) == pytest.approx((whole.low, whole.high), abs=0.01)


def test_mcnemar_is_the_sign_test_of_the_changed_examples():
    before = np.array([True] * 10 + [False] * 4 + [True] * 50)
    after = np.array([False] * 10 + [True] * 4 + [True] * 50)
    assert mcnemar(before, after) == pytest.approx(2 * stats.binom.cdf(4, 14, 0.5))
    assert mcnemar(before, before) == 1.0


def test_refuses_what_does_not_match():
    with pytest.raises(DataError, match="same examples"):
        paired_bootstrap(mean, {"hit": np.ones(3)}, {"hit": np.ones(4)})
    with pytest.raises(DataError, match="no examples"):
        paired_bootstrap(mean, {"hit": np.ones(0)}, {"hit": np.ones(0)})
    with pytest.raises(DataError, match="level"):
        paired_bootstrap(mean, {"hit": np.ones(3)}, {"hit": np.ones(3)}, level=95)
    with pytest.raises(DataError, match="same examples"):
        mcnemar([True], [True, False])


def answered(*answers: float) -> Result:
    numbers = np.array(answers)
    return Result({"accuracy": 50.0}, 0.0, {"prediction": numbers, "label": np.zeros(len(numbers))}, numbers, numbers)


def test_one_answer_to_everything_is_remarked_on():
    results = {"unedited": answered(0, 1, 1), "gate:0": answered(1, 1, 1), "few": answered(0, 0)}
    caption = results_table(results, "tiny-bert on glue/sst2", {"gate:0": "attention off"}).caption
    assert "The same answer to every example: attention off (always 1), few (always 0)." in caption
    assert same_answers({"one": [answered(1)], "other": [answered(0, 1)]}) == ""
    assert same_answers({"a": [answered(1, 1), answered(0, 1)]}) == ""  # another seed answers differently
    many = {str(number): [answered(number, number)] for number in range(6)}
    assert same_answers(many).endswith("3 (always 3) and 2 more.")
    without = Result({"top-1": 1.0}, 0.0, {"hit": np.zeros(3)}, np.zeros(3), np.zeros(3))
    assert same_answers({"unedited": [without]}) == ""
