"""The scores of the heads study: which there are, what data they see, and where the run keeps them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...attention.context import attach
from ...core.charts import file_name
from ...core.registry import SCORES
from ...core.site import Select, Site
from ...core.text import parse
from ...edits.base import Edit
from ...edits.offset import Offset
from ...errors import DataError, ParameterError
from ...evaluation import Prepared
from ...scores.base import STORE, Scope, Score, Scores
from ...scores.orders import given_order
from ...scores.taps import influential_sites
from ...stats.mean import Mean
from ...tasks.encoding import Example
from ..bench import Bench
from .study import Heads

SHARED = 0.5
"""With so many of its examples among those that are evaluated, the data to score on is not other data."""


@dataclass(frozen=True)
class Candidate:
    """A score that takes part.

    Attributes
    ----------
    label : what tables and files call it: its name, and the options that are not the usual ones.
    score : how it is computed; None for an order of a file.
    order : the file.
    """

    label: str
    score: Score | None = None
    order: Path | None = None

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """What it can give a number for."""
        return ("dataset",) if self.score is None else self.score.scopes

    @property
    def drawn(self) -> bool:
        """Whether it depends on nothing but a seed."""
        return self.score is not None and self.score.registered_name == "random"

    @property
    def first_order(self) -> bool:
        """Whether its negative is what removing heads does to the explained logit, to first order."""
        return self.label == "gradient-attention" or self.label.startswith("gradient-attention:target=")


def candidates(study: Heads) -> list[Candidate]:
    """The scores that the study asks for; refuses those that it has no use for."""
    found: dict[str, Candidate] = {}
    for text in study.scores:
        if text.startswith("@"):
            path = Path(text[1:])
            one = Candidate(path.stem, order=path)
        else:
            score = _read(text, study)
            one = Candidate(_label(score), score)
        if one.label in found:
            raise ParameterError(f"--scores has {one.label!r} twice; give each score once.")
        found[one.label] = one
    for scope in study.scopes:
        if not any(scope in one.scopes for one in found.values()):
            raise ParameterError(f"None of --scores has the scope {scope!r}; leave it out of --scopes.")
    return list(found.values())


def _read(text: str, study: Heads) -> Score:
    """A score as the study uses it: heads are removed, and the study says what is explained."""
    score: Score = parse(SCORES, text)
    needs = score.needs & {"task"}
    if needs:
        raise ParameterError(
            f"The score {score.registered_name!r} trains a probe; run 'attrim constant' and give its order as @FILE."
        )
    for name in ("scope", "unit"):
        if f"{name}=" in text:
            raise ParameterError(
                f"{text!r} gives {name}, which the study decides; use --{name}{'s' * (name == 'scope')}."
            )
    changes: dict[str, Any] = {}
    fields = {item.name for item in dataclasses.fields(score)}
    if "target=" not in text and len(score.targets) > 1:
        changes["target"] = study.answer
    if "towards" in fields and "towards=" not in text:
        changes["towards"] = "nothing"
    if "cells" in fields and study.as_coded and "cells=" not in text:
        changes["cells"] = "mean"
    return dataclasses.replace(score, **changes)


def _label(score: Score) -> str:
    """The name of a score and the options that are not the usual ones of this study."""
    usual = {"towards": "nothing", "scope": score.scope, "unit": score.unit}
    default = type(score)()
    parts = [
        f"{item.name}={str(value).lower() if isinstance(value, bool) else value}"
        for item in dataclasses.fields(score)
        if (value := getattr(score, item.name)) != usual.get(item.name, getattr(default, item.name))
    ]
    return ":".join(filter(None, (score.registered_name, ",".join(parts))))


@dataclass(frozen=True)
class Ground:
    """What was scored and evaluated.

    Attributes
    ----------
    sites, heads : how many the model has.
    scored_sites, scored_heads : how many of them are selected and have an influence on the answers.
    idle : the sites without any influence, which are neither scored nor pruned.
    examples : how many are evaluated.
    scored_examples : how many other ones orders for all examples come from; 0 where there are none.
    shared : how many of these are among those that are evaluated.
    """

    sites: int
    heads: int
    scored_sites: int
    scored_heads: int
    idle: tuple[str, ...]
    examples: int
    scored_examples: int = 0
    shared: int = 0


class Scoring:
    """A model, the data that heads are scored on, and the scores that the run has."""

    def __init__(self, bench: Bench, study: Heads) -> None:
        self.bench, self.study = bench, study
        self.model = bench.loaded_model
        self.evaluated = Prepared(self.model, bench.loaded_task, bench.loaded_tokenizer, count_zeros=False)
        self.sites = self.evaluated.sites()
        self.chosen, self.idle = influence(self.evaluated, bench.select())
        self._loaded: dict[str, Scores] = {}

    def ground(self) -> Ground:
        """What was scored and evaluated, for the findings."""
        scored = vars(self).get("scored")
        return Ground(
            sites=len(self.sites),
            heads=sum(site.heads for site in self.sites),
            scored_sites=len(self.chosen),
            scored_heads=sum(len(own) for own in self.chosen.values()),
            idle=self.idle,
            examples=self.examples,
            scored_examples=0 if scored is None else examples_of(scored),
            shared=0 if scored is None else self.shared,
        )

    @cached_property
    def examples(self) -> int:
        """How many examples are evaluated."""
        return examples_of(self.evaluated)

    @cached_property
    def scored(self) -> Prepared:
        """The data that orders for all examples come from; refuses what is evaluated itself."""
        task = self.study.scoring_task(self.bench)
        given = list(map(_key, task.examples()))
        known = {*map(_key, self.bench.loaded_task.examples())}
        self.shared = sum(key in known for key in given)
        if self.shared > SHARED * len(given):
            raise ParameterError(
                f"{self.shared} of the {len(given)} examples to score heads on are those that are evaluated, so the "
                "orders would not be held out; give other data as --score-option split=NAME or data=FILE, or leave "
                "the scope dataset out: --scopes example."
            )
        return Prepared(self.model, task, self.bench.loaded_tokenizer, count_zeros=False)

    def of(self, candidate: Candidate, scope: Scope, seed: int = 0) -> Scores:
        """The scores of the chosen heads, from the run or computed now and kept there."""
        if candidate.order is not None:
            return given_order(candidate.order, self.sites, self.chosen)
        name = file_name(scope, candidate.label, f"seed-{seed}" if candidate.drawn else "")
        return self.kept(name, lambda: self.compute(candidate, scope, seed))

    def kept(self, name: str, compute: Callable[[], Scores]) -> Scores:
        """Scores under a name of the run."""
        if name not in self._loaded:
            folder = self.bench.run_folder / "scores" / name
            if not (folder / STORE.index).exists():
                compute().save(folder)
            self._loaded[name] = Scores.load(folder)
        return self._loaded[name]

    def compute(self, candidate: Candidate, scope: Scope, seed: int = 0, gate: Edit | None = None) -> Scores:
        """Score the chosen heads now.

        Parameters
        ----------
        gate : removes heads while the others are scored.
        """
        assert candidate.score is not None
        prepared = self.evaluated if scope == "example" else self.scored
        score = dataclasses.replace(candidate.score, scope=scope).with_seed(seed)
        constants = self.averages if "constants" in score.needs else None
        return score_task(prepared, score, constants, gate).only(self.chosen)

    @cached_property
    def averages(self) -> Offset:
        """Average attention by distance on the data to score on, for scores that compare heads with a constant."""
        stats = self.bench.measure(Mean(), "averages", task=self.scored.task)
        return Offset(stats[Mean])


def influence(prepared: Prepared, select: Select) -> tuple[dict[Site, tuple[int, ...]], tuple[str, ...]]:
    """The selected heads that the answers depend on, and the names of the sites that have no influence on them."""
    sites = prepared.sites()
    batch = prepared.batches.first()
    inputs = prepared.task.arguments(dict(batch.inputs), prepared.model)
    try:
        reached = influential_sites(prepared.model, inputs)
    except DataError:  # a model without logits has no answer that could be explained, and scores that need one say so
        reached = sites
    chosen = {site: own for site, own in select.resolve(sites).items() if site in reached}
    if not chosen:
        raise ParameterError("The selected heads have no influence on the model's answers; select others.")
    return chosen, tuple(site.name for site in sites if site not in reached)


def score_task(prepared: Prepared, score: Score, constants: Any = None, gate: Edit | None = None) -> Scores:
    """Score the heads of a model on the data of a task; of the scope ``example``, one row for each of its examples.

    Parameters
    ----------
    constants : for scores that need them.
    gate : removes heads while the others are scored.
    """
    index: list[NDArray[np.int64]] = []
    batches = labelled_batches(prepared, score.target == "label", index, gate)
    found = score(prepared.model, batches, constants, task=prepared.task)
    if found.scope == "dataset":
        return found
    # An example that is read in several rows (windows of a paragraph) has the sum of their numbers.
    places, examples = torch.from_numpy(np.concatenate(index)), examples_of(prepared)
    values = {
        name: torch.zeros(examples, rows.shape[1], dtype=torch.float64).index_add(0, places, rows)
        for name, rows in found.values.items()
    }
    return dataclasses.replace(found, values=values)


def labelled_batches(
    prepared: Prepared, labelled: bool, index: list[NDArray[np.int64]] | None = None, gate: Edit | None = None
) -> Iterator[dict[str, Tensor]]:
    """The batches of a task as scores take them, in the order of the evaluation.

    Parameters
    ----------
    labelled : with labels.
    index : gets the numbers of the examples of each batch.
    gate : is switched on while the batch is used.
    """
    model, task = prepared.model, prepared.task
    for batch in prepared.batches:
        if index is not None:
            index.append(batch.index)
        labels = task.evaluation_labels(batch, model) if labelled else {}
        inputs = task.arguments({**batch.inputs, **labels}, model)
        if gate is None:
            yield inputs
            continue
        with attach(model, [gate.for_examples(batch.index)]):
            yield inputs


def examples_of(prepared: Prepared) -> int:
    """How many examples a task has, which may have several rows each."""
    return 1 + max(int(batch.index.max()) for batch in prepared.batches)


def _key(example: Example) -> int:
    arrays = [array.tobytes() for array in example.arrays.values()]
    return hash((example.texts, example.label, repr(example.answers), *arrays))
