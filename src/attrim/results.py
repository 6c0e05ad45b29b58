"""What an evaluation gives, and how a run keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray

from .intervals import Interval
from .runs import Run

Array = NDArray[Any]


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

    def store(self, run: Run, setting: str) -> None:
        """Keep the result in a run."""
        arrays = {"outputs": torch.from_numpy(self.outputs), "labels": torch.from_numpy(self.labels)}
        # The arrays come first: a setting that the database knows is then always complete.
        run.save_arrays(setting, arrays)
        run.store(
            setting, {**self.metrics, "zero_share": self.zero_share, **self.distances}, self.columns, self.to_json()
        )

    @classmethod
    def load(cls, run: Run, setting: str) -> Result | None:
        """Read a stored result; None when the run does not have it yet."""
        fields = run.fields(setting)
        if fields is None:
            return None
        arrays = run.load_arrays(setting)
        return cls(
            metrics=fields["metrics"],
            zero_share=fields["zero_share"],
            columns=run.predictions(setting),
            outputs=arrays["outputs"].numpy(),
            labels=arrays["labels"].numpy(),
            changes={metric: Interval(**values) for metric, values in fields["changes"].items()},
            distances=fields["distances"],
            p_value=fields["p_value"],
            seconds=fields["seconds"],
        )
