"""What the numbers say: the two headlines of Ji et al. 2021 (https://arxiv.org/abs/2106.01335), and renormalising."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...core.wording import counted
from ...evaluation import UNEDITED
from ...runs.result import Interval, Result
from ..findings import Setting
from .settings import CONTROL, LOG_PRUNED, MATCHED, OFF, RENORMALIZED, THRESHOLD

TOLERANCE = 1.0  # per cent of the unedited score
SHARE, SLACK = 0.8, 0.03  # "about 80 %" of the weights
USABLE = 20.0  # per cent of the unedited score: what the example for renormalising may lose
FEWEST = 30
"""Examples below which nothing is judged: a tenth of all examples may then be unlike any that was seen."""
Verdict = Literal["confirmed", "refuted", "open"]


@dataclass(frozen=True)
class Claim:
    """A claim and what the numbers say about it.

    Attributes
    ----------
    loss : how much of the unedited score is lost, in per cent of it, with the interval of the change; None if unknown.
    sentence : all of it in words.
    examples, needed : how many were evaluated, and an estimate of how many would decide an open claim; None if unknown.
    """

    claim: str
    verdict: Verdict
    setting: str
    loss: Interval | None
    sentence: str
    examples: int = 0
    needed: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {**vars(self), "loss": None if self.loss is None else self.loss.to_json()}


def claims(
    settings: Sequence[Setting], results: Mapping[str, Result], metric: str, smaller_is_better: bool
) -> list[Claim]:
    """Judge both claims by the settings that were evaluated: by thresholds as in the paper, if there are any."""
    losses = {
        name: relative_loss(result, results[UNEDITED], metric, smaller_is_better)
        for name, result in results.items()
        if name != UNEDITED
    }
    examples = _examples(results)
    thresholds = group_of(settings, THRESHOLD) or group_of(settings, RENORMALIZED)
    far = {setting.name: abs(results[setting.name].zero_share - SHARE) for setting in thresholds}
    nearest = min(thresholds, key=lambda setting: far[setting.name], default=None)
    nearest = nearest if nearest is not None and far[nearest.name] <= SLACK else None
    log = next((setting for setting in settings if setting.group == LOG_PRUNED and setting.value == 3), None)
    found = []
    for claim, setting, missing in (
        ("About 80 % zeros within 1 %", nearest, "no threshold that was tried zeroes about 80 % of the weights"),
        ("3-bit log with pruning within 1 %", log, f"{LOG_PRUNED} was not tried with 3 bits"),
    ):
        if setting is None:
            found.append(Claim(claim, "open", "", None, f"{claim}: open, for {missing}.", examples))
            continue
        loss, result = losses[setting.name], results[setting.name]
        verdict = judge(loss, examples)
        score = None if smaller_is_better else results[UNEDITED].metrics[metric]
        needed = examples_needed(loss, examples, score) if verdict == "open" and loss is not None else None
        said = (
            f"{claim}: {verdict}. {setting.name} zeroes {100 * result.zero_share:.1f} % of the attention weights and "
            f"changes {metric} from {results[UNEDITED].metrics[metric]:.2f} by {_change(result, metric, examples)} on "
            f"{counted(examples, 'example')}, {_loss(loss, examples)}{_missing(verdict, loss, examples, needed)}"
            f"{_control(setting, settings, results, losses)}."
        )
        found.append(Claim(claim, verdict, setting.name, loss, said, examples, needed))
    return found


def group_of(settings: Sequence[Setting], group: str) -> list[Setting]:
    """The settings of one group."""
    return [setting for setting in settings if setting.group == group]


def relative_loss(result: Result, unedited: Result, metric: str, smaller_is_better: bool) -> Interval | None:
    """What is lost in per cent of the unedited score; None where that score is not positive.

    The ends are those of the interval of the change, divided by the unedited score as it was measured. A bootstrap of
    examples of which none changed has no width, but an example that turns out otherwise may only not have been drawn:
    with N examples its probability can still be 1 - (1 - level)^(1/N). The upper end is never below that, and the lower
    end never nearer to a loss of everything (for scores that are means over examples, which perplexity is not).
    """
    score = unedited.metrics[metric]
    if score <= 0:
        return None
    change = result.changes[metric]
    factor = 100 / score if smaller_is_better else -100 / score
    low, high = sorted((factor * change.low, factor * change.high))
    if not smaller_is_better:
        unseen = _unseen(score, _size(result), change.level)
        low, high = min(low, 100 - unseen), max(high, unseen)
    return Interval(factor * change.value + 0.0, low + 0.0, high + 0.0, change.level)


def judge(loss: Interval | None, examples: int = FEWEST, tolerance: float = TOLERANCE) -> Verdict:
    """Confirmed if the whole interval is within the tolerance, refuted if all of it is beyond, else open.

    Fewer than :data:`FEWEST` examples leave it open: resamples of so few are too much alike for an interval.
    """
    if loss is None or examples < FEWEST or loss.low <= tolerance < loss.high:
        return "open"
    return "confirmed" if loss.high <= tolerance else "refuted"


def examples_needed(loss: Interval, examples: int, score: float | None, tolerance: float = TOLERANCE) -> int | None:
    """Estimate how many examples would decide, if the loss stays as it is; None where it is at the bar itself.

    The width of an interval falls with the root of the number of examples. To confirm, so many are needed that an
    example that was not drawn cannot matter: 1 - (1 - level)^(1/N) of a mean ``score`` within the tolerance (None for
    scores that are no means).
    """
    distance = abs(loss.value - tolerance)
    if distance == 0:
        return None
    beyond = loss.high - loss.value if loss.value < tolerance else loss.value - loss.low
    needed = FEWEST
    if score is not None and loss.value < tolerance:
        lost = tolerance * score / 1e4  # the share of examples that may be lost
        needed = max(needed, math.ceil(math.log(1 - loss.level) / math.log1p(-lost)))
        if loss.high <= _unseen(score, examples, loss.level):
            beyond = 0.0  # nothing but that share made the interval as wide as it is
    if examples >= FEWEST:
        needed = max(needed, math.ceil(examples * (beyond / distance) ** 2))
    return _rounded_up(needed)


def _unseen(score: float, examples: int, level: float) -> float:
    """What an example that was not drawn can still change a mean, in per cent of the score."""
    return 100 / score * 100 * (1 - (1 - level) ** (1 / examples))


def _rounded_up(number: int) -> int:
    """To two digits, because an estimate has no more."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return -(-number // unit) * unit


def _change(result: Result, metric: str, examples: int) -> str:
    change = result.changes[metric]
    return str(change) if examples >= FEWEST else f"{change.value:+.2f}"


def _loss(loss: Interval | None, examples: int) -> str:
    if loss is None:
        return "and a loss relative to an unedited score that is not positive means nothing"
    interval = f" ({100 * loss.level:g} % interval {loss.low:.2f} to {loss.high:.2f})" if examples >= FEWEST else ""
    return f"a relative loss of {loss.value:.2f} %{interval}"


def _missing(verdict: Verdict, loss: Interval | None, examples: int, needed: int | None) -> str:
    """What an open claim would need."""
    if verdict != "open" or loss is None:
        return ""
    few = f"; {counted(examples, 'example')} {'is' if examples == 1 else 'are'} too few for a verdict"
    if needed is None:
        return f"{few if examples < FEWEST else ''}; the loss is at the bar, which no number of examples decides"
    if examples < FEWEST:
        return f"{few}, at least {needed} are needed"
    return f"; about {needed} examples would decide"


def _control(
    setting: Setting,
    settings: Sequence[Setting],
    results: Mapping[str, Result],
    losses: Mapping[str, Interval | None],
) -> str:
    """What a random drop of the same share loses, and attention that is switched off, where they were tried."""
    share = round(results[setting.name].zero_share, 4)
    same = next((other for other in settings if other.group == MATCHED and other.value == share), None)
    off = next((other for other in settings if other.group == CONTROL and other.label == OFF), None)
    examples, said = _examples(results), ""
    for control, words in ((same, "dropping the same share at random loses"), (off, "switching attention off loses")):
        loss = None if control is None else losses[control.name]
        if loss is not None:
            said += f"; {words} {loss.value:.2f} %"
            said += f" ({loss.low:.2f} to {loss.high:.2f})" if examples >= FEWEST else ""
            if judge(loss, examples) == "confirmed":
                said += ", so this score does not show what attention is worth"
    return said


@dataclass(frozen=True)
class Renormalising:
    """Whether rows should be divided by what a threshold leaves of them.

    Attributes
    ----------
    better, worse : the bars at which the interval of the difference says so.
    sentence : all of it in words, with the numbers of one bar.
    """

    verdict: Literal["needed", "harmful", "depends on the bar", "no difference", "open"]
    better: tuple[float, ...]
    worse: tuple[float, ...]
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {**vars(self), "better": list(self.better), "worse": list(self.worse)}


def renormalising(
    settings: Sequence[Setting],
    results: Mapping[str, Result],
    differences: Mapping[str, Interval],
    metric: str,
    smaller_is_better: bool,
) -> Renormalising | None:
    """Compare thresholds as in the paper with renormalised ones; None where no bar was tried both ways.

    Parameters
    ----------
    differences : of the metric, the renormalised form minus that of the paper on the same examples, by the name of the
        renormalised setting.
    """
    plain = {setting.value: setting for setting in group_of(settings, THRESHOLD)}
    pairs = [(plain[other.value], other) for other in group_of(settings, RENORMALIZED) if other.name in differences]
    if not pairs:
        return None
    sign = -1 if smaller_is_better else 1
    lowest, highest = (
        {
            other.value: end(sign * differences[other.name].low, sign * differences[other.name].high)
            for _, other in pairs
        }
        for end in (min, max)
    )
    better = tuple(bar for bar, low in lowest.items() if low > 0)
    worse = tuple(bar for bar, high in highest.items() if high < 0)
    known = [pair for pair in pairs if pair[0].value in {*better, *worse}] or pairs
    shown = _example(known, results, differences, metric, smaller_is_better)
    tried, examples = f"of {counted(len(pairs), 'bar')}", _examples(results)
    if examples < FEWEST:
        said = f"Renormalising after a threshold: open, for {counted(examples, 'example')} "
        said += f"{'is' if examples == 1 else 'are'} too few for a verdict, at least {FEWEST} are needed"
        return Renormalising("open", (), (), f"{said}; {shown}.")
    if better and not worse:
        said = f"Renormalising after a threshold: needed, for it is better at {len(better)} {tried} and worse at none"
        return Renormalising("needed", better, worse, f"{said}; {shown}.")
    if worse and not better:
        said = f"Renormalising after a threshold: harmful, for it is worse at {len(worse)} {tried} and better at none"
        return Renormalising("harmful", better, worse, f"{said}; {shown}.")
    if better:
        sides = (", ".join(f"{bar:g}" for bar in bars) for bars in (better, worse))
        said = "Renormalising after a threshold: depends on the bar, better at {} and worse at {}".format(*sides)
        return Renormalising("depends on the bar", better, worse, f"{said}; {shown}.")
    said = f"Renormalising after a threshold: no difference that {counted(examples, 'example')} show at any {tried}"
    return Renormalising("no difference", better, worse, f"{said}; {shown}.")


def _example(
    pairs: Sequence[tuple[Setting, Setting]],
    results: Mapping[str, Result],
    differences: Mapping[str, Interval],
    metric: str,
    smaller_is_better: bool,
) -> str:
    """The largest bar at which one of the forms still works, or else the smallest bar, in words."""

    def works(pair: tuple[Setting, Setting]) -> bool:
        losses = (relative_loss(results[one.name], results[UNEDITED], metric, smaller_is_better) for one in pair)
        return any(loss is not None and loss.value <= USABLE for loss in losses)

    pairs = sorted(pairs, key=lambda pair: pair[0].value)
    plain, other = next((pair for pair in reversed(pairs) if works(pair)), pairs[0])
    as_in_paper, renormalised = (results[one.name] for one in (plain, other))
    return (
        f"at {plain.name} {metric} is {as_in_paper.metrics[metric]:.2f} as in the paper "
        f"({as_in_paper.changes[metric]}) and {renormalised.metrics[metric]:.2f} renormalised "
        f"({renormalised.changes[metric]}), unedited {results[UNEDITED].metrics[metric]:.2f}, "
        f"a difference of {differences[other.name]}"
    )


def _examples(results: Mapping[str, Result]) -> int:
    return _size(results[UNEDITED])


def _size(result: Result) -> int:
    return len(next(iter(result.columns.values())))
