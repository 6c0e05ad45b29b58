"""Metrics against scikit-learn, scipy and values by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as reference

from attrim.tasks import TASKS
from attrim.tasks.metrics import accuracy, f1, matthews, pearson, spearman

classes = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=40)


@pytest.mark.filterwarnings("ignore:A single label")
@given(classes)
def test_classes_equal_scikit_learn(pairs):
    guess, label = np.array(pairs).T
    assert accuracy(guess, label) == pytest.approx(reference.accuracy_score(label, guess))
    assert f1(guess, label) == pytest.approx(reference.f1_score(label, guess, zero_division=0))
    assert matthews(guess, label) == pytest.approx(reference.matthews_corrcoef(label, guess), abs=1e-12)


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=3, max_size=40))
def test_correlations_equal_scipy(pairs):
    guess, label = np.array(pairs, dtype=float).T
    if np.ptp(guess) == 0 or np.ptp(label) == 0:
        assert pearson(guess, label) == spearman(guess, label) == 0.0
    else:
        assert pearson(guess, label) == pytest.approx(stats.pearsonr(guess, label).statistic, abs=1e-9)
        assert spearman(guess, label) == pytest.approx(stats.spearmanr(guess, label).statistic, abs=1e-9)


@pytest.mark.parametrize("metric", [accuracy, f1, matthews, pearson, spearman])
def test_leading_axes(metric):
    """A stack of resamples gives the values of its members."""
    guess, label = np.random.default_rng(0).integers(0, 2, (2, 3, 5, 20))
    stacked = metric(guess, label)
    assert stacked.shape == (3, 5)
    assert stacked[2, 4] == pytest.approx(metric(guess[2, 4], label[2, 4]))


def test_official_metrics_by_hand():
    """Four examples, one false positive: accuracy 3/4, F1 4/5, Matthews 1/sqrt(3)."""
    columns = {"prediction": np.array([1, 1, 1, 0]), "label": np.array([1, 1, 0, 0])}
    expected = {
        "glue/cola": {"matthews": 100 / np.sqrt(3)},
        "glue/sst2": {"accuracy": 75.0},
        "glue/mrpc": {"f1": 80.0, "accuracy": 75.0, "combined": 77.5},
        "glue/qqp": {"f1": 80.0, "accuracy": 75.0, "combined": 77.5},
        "glue/mnli": {"accuracy": 75.0},
        "glue/mnli-mismatched": {"accuracy": 75.0},
        "glue/qnli": {"accuracy": 75.0},
        "glue/rte": {"accuracy": 75.0},
        "glue/wnli": {"accuracy": 75.0},
    }
    for name, values in expected.items():
        assert TASKS[name]().score(columns) == pytest.approx(values), name
    scores = {"prediction": np.array([1.0, 2.0, 4.0]), "label": np.array([0.0, 3.0, 5.0])}
    linear = 100 * 22 / 3 / np.sqrt(14 / 3 * 38 / 3)
    assert TASKS["glue/stsb"]().score(scores) == pytest.approx(
        {"pearson": linear, "spearman": 100.0, "combined": (linear + 100) / 2}
    )
