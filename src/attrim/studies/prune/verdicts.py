"""What the rows of the prune study say: how far from dense, and whether the pattern beats what is as sparse."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.wording import counted
from .comparison import PrunedRow, PrunePoint
from .sets import OWN
from .study import DENSE, TOGETHER

UNEQUAL = 0.05
"""Shares of removed weights that differ by more are not called equal."""
BASELINES = {"random": "random cells", "random-mass": "random cells of equal mass", "window": "a window"}


def sentences(rows: Sequence[PrunedRow], metric: str, smaller_is_better: bool, data: str = OWN) -> list[str]:
    """One sentence for each tau of AP that was removed everywhere, first where the model was trained with it."""
    sign = -1.0 if smaller_is_better else 1.0
    found = []
    for retrained in (True, False):
        for row in rows:
            point = row.point
            if point.kind != "ap" or point.role != TOGETHER or point.retrained != retrained:
                continue
            dense = next(
                each for each in rows if each.point.kind == DENSE and each.point.normaliser == point.normaliser
            )
            found.append(_sentence(row, dense, rows, metric, sign, data))
    return found


def _sentence(row: PrunedRow, dense: PrunedRow, rows: Sequence[PrunedRow], metric: str, sign: float, data: str) -> str:
    point = row.point
    score, before = (float(np.mean(each.scores(metric, data))) for each in (row, dense))
    where = "" if data == OWN else f" on {data}"
    with_entmax = f", {point.normaliser}," if point.normaliser != "softmax" else ""
    how = "trained with it" if point.retrained else "without training again"
    change = row.change[data]
    far = f"{abs(100 * (score - before) / before):.1f} % " if before else ""
    side = "equal to" if score == before else f"{far}{'better' if sign * (score - before) > 0 else 'worse'} than"
    text = (
        f"AP{with_entmax} at tau {point.tau:g} ({row.effective:.1%} of the cells removed, {_zeros(row)}), {how}: "
        f"{metric}{where} is "
        f"{score:.2f}, {side} dense ({before:.2f}; difference {change}; {counted(len(row.seeds), 'seed')})"
    )
    verdicts = [
        _verdict(row, other, metric, sign, data)
        for kind in BASELINES
        if (other := next((each for each in rows if each.point == _as(point, kind)), None)) is not None
    ]
    return "; ".join([text, *verdicts]) + "."


def _zeros(row: PrunedRow) -> str:
    return f"{np.mean(row.zeros):.1%} of the held-out texts' weights"


def unequal_use(rows: Sequence[PrunedRow]) -> str | None:
    """A warning where patterns with as many cells differ in the weights that they remove; None where they do not."""
    for row in reversed(rows):
        if row.point.kind == "ap" and row.point.role == TOGETHER:
            others = [each for each in rows if each.point in (_as(row.point, "random"), _as(row.point, "window"))]
            shares = {each.point.kind: float(np.mean(each.zeros)) for each in (row, *others)}
            if max(shares.values()) - min(shares.values()) > UNEQUAL:
                said = ", ".join(f"{kind} {share:.1%}" for kind, share in shares.items())
                return (
                    f"Equally many removed cells are not equally many removed weights (tau {row.point.tau:g}: {said} "
                    "of the held-out texts' weights), because texts differ in length and each pattern removes other "
                    "cells; --match use compares patterns that remove as many weights."
                )
    return None


def _as(point: PrunePoint, kind: str) -> PrunePoint:
    return PrunePoint(kind, point.tau, point.retrained, point.normaliser, point.role)


def _verdict(row: PrunedRow, other: PrunedRow, metric: str, sign: float, data: str) -> str:
    """Whether AP is better than another kind by more than the spread of the seeds and more than chance."""
    ahead = row.ahead[data][other.point.kind]
    ours, theirs = row.scores(metric, data), other.scores(metric, data)
    spread = max(max(ours) - min(ours), max(theirs) - min(theirs))
    name = BASELINES[other.point.kind]
    if other.point.kind == "window":
        name += f" {'/'.join(other.windows)}"
    name += f" ({other.effective:.1%} of the cells, {_zeros(other)})"
    gain = sign * ahead.value
    sure = ahead.low > 0 or ahead.high < 0
    beyond = abs(ahead.value) > spread
    single = len(ours) < 2 and len(theirs) < 2
    if gain == 0:
        return f"equal to {name}"
    word = "beats" if gain > 0 else "is beaten by"
    if not (sure and (beyond or single)):
        word = "does not differ clearly from"
    spreads = "one seed, so no spread" if single else f"spread of the seeds {spread:.2f}"
    if row.seeds == other.seeds and not single:
        won = sum(sign * (our - their) > 0 for our, their in zip(ours, theirs, strict=True))
        spreads += f", better with {won} of {len(ours)}"
    return f"{word} {name}: {ahead} ({spreads})"
