"""Metrics of per-example columns, vectorised over leading axes so that a bootstrap is one call; all in per cent.

scikit-learn and scipy give the same numbers (the tests compare), but only for one sample at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runs.result import Columns, Metric

Values = NDArray[np.float64]
Pair = Callable[[NDArray[Any], NDArray[Any]], Values]


def of_labels(function: Pair) -> Metric:
    """Turn a function of predictions and labels ``[..., N]`` into a metric of columns, in per cent."""

    def metric(columns: Columns) -> Values:
        return 100.0 * function(columns["prediction"], columns["label"])

    return metric


def mean_of(column: str) -> Metric:
    """Return the mean of one column of values from 0 to 1, in per cent."""

    def metric(columns: Columns) -> Values:
        return 100.0 * np.mean(columns[column], axis=-1)

    return metric


def mean_ratio(above: str, *below: str) -> Metric:
    """Return the sum of one column over the mean of the sums of others, in per cent; 0 where that is 0.

    With hits above, predicted and true ones below, this is F1; with one column below, precision, recall or accuracy.
    """

    def metric(columns: Columns) -> Values:
        sums = np.mean([np.sum(columns[name], axis=-1) for name in below], axis=0)
        return 100.0 * _divide(np.asarray(np.sum(columns[above], axis=-1), dtype=np.float64), np.asarray(sums))

    return metric


def average(*parts: Metric) -> Metric:
    """Return the plain mean of several metrics."""

    def metric(columns: Columns) -> Values:
        return np.mean([part(columns) for part in parts], axis=0)

    return metric


def accuracy(prediction: NDArray[Any], label: NDArray[Any]) -> Values:
    """Share of predictions ``[..., N]`` that equal their labels."""
    return np.mean(prediction == label, axis=-1)


def _counts(prediction: NDArray[Any], label: NDArray[Any]) -> tuple[Values, Values, Values, Values]:
    """True positives, false positives, false negatives and true negatives, where class 1 is the positive one."""
    guessed, true = prediction == 1, label == 1
    pairs = ((guessed, true), (guessed, ~true), (~guessed, true), (~guessed, ~true))
    hit, false, missed, rest = (np.sum(first & second, axis=-1).astype(np.float64) for first, second in pairs)
    return hit, false, missed, rest


def f1(prediction: NDArray[Any], label: NDArray[Any]) -> Values:
    """F1 of class 1; 0 when there is neither a prediction nor a label of it."""
    hit, false, missed, _ = _counts(prediction, label)
    return _divide(2 * hit, 2 * hit + false + missed)


def matthews(prediction: NDArray[Any], label: NDArray[Any]) -> Values:
    """Matthews correlation of two classes (1975, https://doi.org/10.1016/0005-2795(75)90109-9); 0 where undefined."""
    hit, false, missed, rest = _counts(prediction, label)
    spread = np.sqrt(hit + false) * np.sqrt(hit + missed) * np.sqrt(rest + false) * np.sqrt(rest + missed)
    return _divide(hit * rest - false * missed, spread)


def pearson(prediction: NDArray[Any], label: NDArray[Any]) -> Values:
    """Linear correlation; 0 where one side is constant."""
    first, second = (side - np.mean(side, axis=-1, keepdims=True) for side in (_float(prediction), _float(label)))
    spread = np.sqrt(np.sum(first**2, axis=-1)) * np.sqrt(np.sum(second**2, axis=-1))
    constant = (np.ptp(prediction, axis=-1) == 0) | (np.ptp(label, axis=-1) == 0)
    return np.where(constant, 0.0, _divide(np.sum(first * second, axis=-1), spread))


def spearman(prediction: NDArray[Any], label: NDArray[Any]) -> Values:
    """Rank correlation, ties at their mean rank; 0 where one side is constant."""
    from scipy.stats import rankdata  # here, because most commands need nothing of it

    return pearson(rankdata(prediction, axis=-1), rankdata(label, axis=-1))


def _float(values: NDArray[Any]) -> Values:
    return np.asarray(values, dtype=np.float64)


def _divide(above: Values, below: Values) -> Values:
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)
