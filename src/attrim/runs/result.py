"""The result of one evaluation, and how sure its difference from another is: paired bootstrap and McNemar's test."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ..core import record
from ..core.charts import Column, Table
from ..errors import ArtefactError, DataError
from .run import Run

Columns = Mapping[str, NDArray[Any]]
Metric = Callable[[Columns], NDArray[np.float64]]
"""Columns of per-example numbers ``[..., N]`` to one value ``[...]``: vectorised over leading axes."""
# Values gathered at once while resampling; bounds the memory whatever the number of examples.
BLOCK = 2_000_000
Array = NDArray[Any]
MOST = 4  # settings that a remark names
CAPTION = "Change: against the unedited model, with 95 % paired bootstrap interval. Zeros: share of attention weights."


@dataclass(frozen=True)
class Interval:
    """A difference with its bootstrap interval.

    Attributes
    ----------
    value : the difference on the examples as they are.
    low, high : the ends of the percentile interval; NaN where there is none, as for a single value.
    level : how much of the bootstrap distribution lies between them.
    """

    value: float
    low: float
    high: float
    level: float = 0.95

    def __str__(self) -> str:
        if math.isnan(self.low) and math.isnan(self.high):
            return f"{self.value:+.2f}"
        return f"{self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"

    def to_json(self) -> dict[str, float]:
        """The fields as JSON values."""
        return asdict(self)


def paired_bootstrap(
    metric: Metric,
    before: Columns,
    after: Columns,
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile interval of ``metric(after) - metric(before)`` when both saw the same examples.

    Every resample draws examples with replacement, the same ones on both sides (Efron and Tibshirani 1993, chapter 13;
    for language tasks: Berg-Kirkpatrick et al. 2012, https://aclanthology.org/D12-1091).

    Parameters
    ----------
    metric : maps columns ``[..., N]`` to values ``[...]``.
    before, after : columns ``[N]`` with the same names and the same number of examples.
    """
    names, size = _matching(before, after)
    if not 0 < level < 1:
        raise DataError(f"The level of an interval lies between 0 and 1, not {level}; use 0.95 for 95 %.")
    if resamples < 1:
        raise DataError(f"A bootstrap needs at least one resample, not {resamples}.")
    value = float(metric(after)) - float(metric(before))
    if size == 1:  # every resample is the same example
        return Interval(value, value, value, level)

    def difference(*parts: NDArray[Any], axis: int = -1) -> NDArray[np.float64]:
        half = len(names)
        first, second = (dict(zip(names, group, strict=True)) for group in (parts[:half], parts[half:]))
        return np.asarray(metric(second) - metric(first))

    from scipy.stats import bootstrap

    result = bootstrap(
        [np.asarray(side[name]) for side in (before, after) for name in names],
        difference,
        paired=True,
        vectorized=True,
        axis=-1,
        n_resamples=resamples,
        batch=max(1, BLOCK // (size * len(names))),
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return Interval(value, float(result.confidence_interval.low), float(result.confidence_interval.high), level)


def mcnemar(before: ArrayLike, after: ArrayLike) -> float:
    """Exact two-sided p-value of McNemar's test (1947, https://doi.org/10.1007/BF02295996).

    Parameters
    ----------
    before, after : bool ``[N]``, whether each example was right; only the examples that changed sides count.
    """
    first, second = np.asarray(before, dtype=bool), np.asarray(after, dtype=bool)
    if first.shape != second.shape:
        raise DataError(f"McNemar's test needs the same examples twice, not {first.size} and {second.size}.")
    lost, won = int((first & ~second).sum()), int((~first & second).sum())
    from scipy.stats import binomtest

    return 1.0 if lost + won == 0 else float(binomtest(lost, lost + won, 0.5).pvalue)


def _matching(before: Columns, after: Columns) -> tuple[list[str], int]:
    """The shared names and the shared number of examples of two evaluations."""
    names = list(before)
    lengths = {len(side[name]) for side in (before, after) for name in side}
    if set(names) != set(after) or len(lengths) != 1:
        raise DataError(
            "Two evaluations can only be compared on the same examples, but these have the columns "
            f"{sorted(before)} and {sorted(after)} of lengths {sorted(lengths)}; "
            "evaluate both with the same task options."
        )
    size = lengths.pop()
    if size == 0:
        raise DataError("There are no examples to compare; raise the limit or check the data.")
    return names, size


@dataclass(frozen=True)
class Result:
    """What one evaluation gave.

    Attributes
    ----------
    metrics : the task's metrics in per cent; the first one is the headline.
    zero_share : exact-zero share of the valid attention cells, after the edits.
    columns : per-example predictions, what the metrics are computed from.
    outputs : the model's raw answers ``[N, ...]``, for comparing later results with this one.
    labels : ``[N]``, NaN where unknown.
    changes : each metric minus that of the unedited model, with its paired bootstrap interval.
    distances : how far the outputs are from those of the unedited model.
    p_value : McNemar's test against the unedited model, where answers are right or wrong.
    seconds : time for the forward passes.
    texts : what the model wrote for each example, such as its translations; empty for other tasks.
    name : what a run keeps it under; empty for one that is not stored.
    """

    metrics: dict[str, float]
    zero_share: float
    columns: dict[str, Array] = field(repr=False)
    outputs: Array = field(repr=False)
    labels: Array = field(repr=False)
    changes: dict[str, Interval] = field(default_factory=dict)
    distances: dict[str, float] = field(default_factory=dict)
    p_value: float | None = None
    seconds: float = 0.0
    texts: list[str] = field(default_factory=list, repr=False)
    name: str = ""

    def to_json(self) -> dict[str, Any]:
        """Everything but the per-example arrays, as JSON values."""
        return {
            "metrics": self.metrics,
            "zero_share": self.zero_share,
            "changes": {name: change.to_json() for name, change in self.changes.items()},
            "distances": self.distances,
            "p_value": self.p_value,
            "examples": len(next(iter(self.columns.values()))),
            "seconds": self.seconds,
        }

    def store(self, run: Run, setting: str) -> Result:
        """Keep the result in a run, and return it with the name that it is kept under."""
        arrays = {"outputs": torch.from_numpy(self.outputs), "labels": torch.from_numpy(self.labels)}
        metrics = {**self.metrics, "zero_share": self.zero_share, **self.distances}
        # The database knows neither the order of the columns nor whether they had single precision.
        kinds = {name: column.dtype.str for name, column in self.columns.items()}
        fields = {**self.to_json(), "columns": kinds, **({"texts": self.texts} if self.texts else {})}
        run.store(setting, metrics, self.columns, record.dump(fields), arrays)
        return replace(self, name=setting)

    @classmethod
    def load(cls, run: Run, setting: str) -> Result | None:
        """Read a stored result; None when the run does not have it yet."""
        known = run.fields(setting)
        if known is None:
            return None
        what = f"result {setting!r} of {run.folder}"
        fields: _Fields = record.load(_Fields, known, what)
        arrays, stored = run.load_arrays(setting), run.predictions(setting)
        whole = set(arrays) == {"outputs", "labels"} and set(stored) == set(fields.columns)
        if not whole or {len(column) for column in stored.values()} != {fields.examples}:
            raise ArtefactError(f"The {what} is not complete; repeat the run in another folder.")
        return cls(
            metrics=fields.metrics,
            zero_share=fields.zero_share,
            columns={name: stored[name].astype(kind) for name, kind in fields.columns.items()},
            outputs=arrays["outputs"].numpy(),
            labels=arrays["labels"].numpy(),
            changes=fields.changes,
            distances=fields.distances,
            p_value=fields.p_value,
            seconds=fields.seconds,
            texts=fields.texts,
            name=setting,
        )


@dataclass(frozen=True)
class _Fields:
    """What :meth:`Result.to_json` gives, as a run keeps it, the number types of the columns in order, and texts."""

    metrics: dict[str, float]
    zero_share: float
    changes: dict[str, Interval]
    distances: dict[str, float]
    p_value: float | None
    examples: int
    seconds: float
    columns: dict[str, str]
    texts: list[str] = field(default_factory=list)


def results_table(
    results: Mapping[str, Result], title: str, names: Mapping[str, str] | None = None, name: str = "results"
) -> Table:
    """One row for each setting; ``names`` are what to call settings instead of their own text."""
    first, *others = next(iter(results.values())).metrics
    distances = list(dict.fromkeys(key for result in results.values() for key in result.distances))
    columns = [
        Column("setting"),
        Column("zeros", "percent", 1),
        Column(first, "number"),
        Column("change"),
        *(Column(other, "number") for other in others),
        *(Column(key, "number", 4) for key in distances),
    ]
    rows = [
        [
            (names or {}).get(setting, setting),
            result.zero_share,
            result.metrics[first],
            str(result.changes[first]) if first in result.changes else "",
            *(result.metrics[other] for other in others),
            *(result.distances.get(key) for key in distances),
        ]
        for setting, result in results.items()
    ]
    remark = same_answers({(names or {}).get(setting, setting): [result] for setting, result in results.items()})
    return Table(name, title, columns=columns, rows=rows, caption=" ".join(filter(None, (CAPTION, remark))))


def same_answers(results: Mapping[str, Sequence[Result]]) -> str:
    """A remark about settings whose every answer is the same, whatever the example; empty where there are none.

    Its score may look fair, but it is that of a model that does not read its input.
    """
    found = []
    for setting, each in results.items():
        answers = [np.unique(result.columns["prediction"]) for result in each if _several(result)]
        if answers and all(len(one) == 1 for one in answers):
            given = dict.fromkeys(f"{float(one[0]):g}" for one in answers)
            found.append(f"{setting} (always {' or '.join(given)})")
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return f"The same answer to every example: {', '.join(found[:MOST])}{more}." if found else ""


def _several(result: Result) -> bool:
    """Whether a result has answers, and more than the one that is always like itself."""
    return "prediction" in result.columns and len(result.columns["prediction"]) > 1
