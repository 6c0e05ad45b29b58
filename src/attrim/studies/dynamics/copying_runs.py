"""The trainings of the copying experiments: what a run has is read, the rest is spread over processes and stored."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING

from ...core import record
from ...core.progress import progress_bar
from ...errors import DataError
from ...runs.run import Run
from .copying import BAD, GOOD, Evaluated, Training, train
from .pool import spread

if TYPE_CHECKING:
    from .study import DynamicsMultihead, GeneratedBench

RANDOM_HEADS = 1_000_000
"""Numbers from here on are those of heads that were never screened."""
SCREENED_AT_A_TIME = 4
"""How many heads are screened before it is asked which kinds are still wanted, whatever the number of processes."""


def train_all(trainings: Mapping[str, Training], bench: GeneratedBench) -> dict[str, list[Evaluated]]:
    """The course of every training, by name; each is stored as soon as it is done."""
    run = bench.require_run()
    known = {name: course for name in trainings if (course := load_course(run, name)) is not None}
    missing = [(name, training) for name, training in trainings.items() if name not in known]
    with progress_bar(len(missing), "training networks", bench.progress) as bar:
        for (name, _), course in spread(_train, missing, bench.processes):
            store_course(run, name, course)
            known[name] = course
            bar.describe(f"training networks, {name} is done")
            bar.advance()
    return {name: known[name] for name in trainings}


def _train(point: tuple[str, Training]) -> list[Evaluated]:
    return train(point[1])


def store_course(run: Run, name: str, course: list[Evaluated]) -> None:
    """Keep a course in a run."""
    last = course[-1]
    metrics = {"accuracy": last.accuracy, "aligned": max(last.aligned), "loss": last.loss, "step": last.step}
    run.store(name, metrics, fields={"course": record.dump(course)})


def load_course(run: Run, name: str) -> list[Evaluated] | None:
    """The course of a training that a run has; None when it has not."""
    fields = run.fields(name)
    return None if fields is None else record.load(list[Evaluated], fields.get("course"), f"course {name!r}")


@dataclass(frozen=True)
class Screened:
    """What screening says about a head.

    Attributes
    ----------
    accuracies : the highest accuracy of a good training, the last one of others, one for each data seed that was tried.
    verdict : ``good`` or ``bad`` where all data seeds agree, else ``undecided``; ``not needed`` where the first data
        seed was of a kind that there was enough of.
    """

    head: int
    accuracies: tuple[float, ...]
    verdict: str


def screen(study: DynamicsMultihead, bench: GeneratedBench) -> list[Screened]:
    """Train networks of one head each until there are enough good and bad ones, or no more may be tried."""
    run = bench.require_run()
    found: list[Screened] = []
    heads = iter(range(study.most_heads))
    with progress_bar(study.most_heads, "screening heads", bench.progress) as bar:
        while (wanted := _wanted(study, found)) and (some := list(islice(heads, SCREENED_AT_A_TIME))):
            known = {head: one for head in some if (one := _load_head(run, head)) is not None}
            points = [(head, study, wanted) for head in some if head not in known]
            for (head, *_), one in spread(_screen_one, points, bench.processes):
                run.store(f"head/{head}", {"accuracy": one.accuracies[-1]}, fields={"screened": record.dump(one)})
                known[head] = one
            found += [known[head] for head in some]
            for _ in some:
                bar.advance()
    return found


def _wanted(study: DynamicsMultihead, found: Sequence[Screened]) -> tuple[str, ...]:
    """The verdicts of which there are not enough heads yet."""
    least = {"good": study.good, "bad": study.bad}
    return tuple(verdict for verdict, number in least.items() if len(of_verdict(found, verdict)) < number)


def of_verdict(found: Sequence[Screened], verdict: str) -> list[int]:
    """The numbers of the heads with a verdict."""
    return [one.head for one in found if one.verdict == verdict]


def _load_head(run: Run, head: int) -> Screened | None:
    fields = run.fields(f"head/{head}")
    return None if fields is None else record.load(Screened, fields.get("screened"), f"head {head}")


def _screen_one(point: tuple[int, DynamicsMultihead, tuple[str, ...]]) -> Screened:
    """Train a head with each data seed until they disagree, or until it is of a kind that is not wanted."""
    head, study, wanted = point
    accuracies: list[float] = []
    verdicts: set[str] = set()
    for data_seed in study.data_seeds:
        course = train(study.single(head, data_seed))
        highest, last = max(one.accuracy for one in course), course[-1].accuracy
        verdicts.add("good" if highest > GOOD else "bad" if last < BAD else "undecided")
        accuracies.append(highest if highest > GOOD else last)
        if len(verdicts) > 1 or "undecided" in verdicts:
            break
        if not verdicts & {*wanted} and len(study.data_seeds) > 1:
            return Screened(head, tuple(accuracies), "not needed")
    return Screened(head, tuple(accuracies), verdicts.pop() if len(verdicts) == 1 else "undecided")


def arms(study: DynamicsMultihead, screened: Sequence[Screened]) -> dict[str, list[tuple[int, ...]]]:
    """The heads of the networks of each kind."""
    good, bad = of_verdict(screened, "good"), of_verdict(screened, "bad")
    if not good or len(bad) < study.heads:
        raise DataError(
            f"Of {len(screened)} heads, {len(good)} are good and {len(bad)} are bad; 1 and {study.heads} are needed; "
            "screen more with --most-heads, or draw another network with --base-seed."
        )
    found: dict[str, list[tuple[int, ...]]] = {"all bad": [], "one good": [], "random": []}
    unscreened = list(islice(count(RANDOM_HEADS), max(30, study.heads)))
    for number in range(study.combinations):
        found["all bad"].append(_drawn(bad, study.heads, 3 * number))
        with_good = (*_drawn(bad, study.heads - 1, 3 * number + 1), *_drawn(good, 1, 3 * number + 1))
        found["one good"].append(with_good)
        found["random"].append(_drawn(unscreened, study.heads, 3 * number + 2))
    return found


def _drawn(heads: Sequence[int], size: int, seed: int) -> tuple[int, ...]:
    shuffled = list(heads)
    random.Random(seed).shuffle(shuffled)
    return tuple(shuffled[:size])


def compare_arms(
    study: DynamicsMultihead, screened: Sequence[Screened], bench: GeneratedBench
) -> dict[str, dict[str, list[Evaluated]]]:
    """The courses of the networks of each kind, by the numbers of their heads."""
    chosen = arms(study, screened)
    names = {heads: "heads/" + "+".join(map(str, heads)) for kind in chosen.values() for heads in kind}
    courses = train_all({name: study.several(heads) for heads, name in names.items()}, bench)
    return {kind: {names[heads]: courses[names[heads]] for heads in networks} for kind, networks in chosen.items()}
