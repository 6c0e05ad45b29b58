"""What constant heads cost: scores over seeds, and the drop relative to the probe on the model as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.wording import counted
from ...runs.result import Interval, Result
from .ordering import Replacement

LEVEL = 0.95


@dataclass(frozen=True)
class BudgetRow:
    """One row of the table.

    Attributes
    ----------
    scores : the first metric of each seed, in per cent.
    drop : how much of the baseline is lost, in per cent of it; the interval is over seeds (Student's t), each against
        its own baseline. None for the baseline, and where the baseline is not positive.
    """

    setting: Replacement
    scores: tuple[float, ...]
    drop: Interval | None

    @property
    def score(self) -> float:
        """The mean over seeds."""
        return float(np.mean(self.scores))

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "family": self.setting.family,
            "order": self.setting.order,
            "budget": self.setting.label,
            "heads": len(self.setting.heads),
            "scores": list(self.scores),
            "score": self.score,
            "drop": None if self.drop is None else self.drop.to_json(),
        }


def rows_of(
    settings: Sequence[Replacement], results: Mapping[str, Sequence[Result]], metric: str, smaller_is_better: bool
) -> tuple[BudgetRow, ...]:
    """One row a setting; the first setting is the baseline."""
    scores = {name: tuple(result.metrics[metric] for result in found) for name, found in results.items()}
    baseline = scores[settings[0].name]
    sign = -1.0 if smaller_is_better else 1.0
    return tuple(
        BudgetRow(
            setting, scores[setting.name], relative_drop(baseline, scores[setting.name], sign) if number else None
        )
        for number, setting in enumerate(settings)
    )


def relative_drop(baseline: Sequence[float], scores: Sequence[float], sign: float = 1.0) -> Interval | None:
    """The mean over seeds of ``(baseline - score) / baseline`` in per cent; no interval (NaN) for a single seed.

    Parameters
    ----------
    sign : -1 where smaller scores are better.
    """
    before, after = np.asarray(baseline, dtype=float), np.asarray(scores, dtype=float)
    if (before <= 0).any():
        return None
    drops = sign * 100.0 * (before - after) / before + 0.0  # no minus zero
    if len(drops) < 2:
        return Interval(float(drops[0]), float("nan"), float("nan"), LEVEL)
    from scipy.stats import t

    half = float(t.ppf((1 + LEVEL) / 2, len(drops) - 1)) * float(drops.std(ddof=1)) / len(drops) ** 0.5
    return Interval(float(drops.mean()), float(drops.mean()) - half, float(drops.mean()) + half, LEVEL)


def sentences(rows: Sequence[BudgetRow], metric: str, among: str = "") -> list[str]:
    """What the numbers say about the paper's two claims: half of the heads cost little or nothing, all about 8 %.

    Parameters
    ----------
    among : a word for the heads, such as ``selected``.
    """
    kind = f"{among} head" if among else "head"
    said = []
    for label, claim in (("1/2", "the paper finds little or no drop"), ("all", "the paper finds 8 % on average")):
        row = next((row for row in rows if row.setting.label == label and row.drop is not None), None)
        if row is None or row.drop is None:
            continue
        heads = f"All {kind}s" if label == "all" else counted(len(row.setting.heads), kind)
        known = not math.isnan(row.drop.low)
        interval = f" (95 % interval over seeds {row.drop.low:.1f} to {row.drop.high:.1f})" if known else ""
        change = f"{abs(row.drop.value):.1f} % {'worse' if row.drop.value > 0 else 'better'} than"
        if row.drop.value == 0:
            change = "equal to"
        elif round(abs(row.drop.value), 1) == 0:
            change = "within 0.1 % of"
        said.append(
            f"{heads} constant: {metric} is {row.score:.2f}, {change} the probe on the unedited model{interval}; "
            f"{claim}."
        )
    return said
