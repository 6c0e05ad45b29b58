"""The heads study: score heads by explanations of a model's answers, and prune them in the order of the scores.

The experiment of Chefer's "Explainability-Based Attention Head Analysis for Transformers" on any model and task. A good
score makes the model fail soon when the heads with the largest numbers are removed first, and late when those with the
smallest are. With the scope ``example`` every example has scores and a mask of its own, so that the curves say how
faithful an explanation is; with ``dataset`` one order, from other data, serves all examples, and can be baked.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import UseAppendAction

from ...errors import ParameterError
from ..base import Study, register
from ..bench import Bench

if TYPE_CHECKING:
    from ...tasks.base import Task
    from .findings import HeadsFindings

Part = Literal["prune", "correlation", "explain"]
Change = Literal["removed", "mean", "window", "uniform"]


@register("heads")
@dataclass(frozen=True)
class Heads(Study):
    """Score heads by how much they explain of the answers, and remove them in the order of the scores, both ways."""

    scores: tuple[str, ...] = ("gradient-attention", "lrp", "gradient", "random")
    """Scores that order heads (attrim ls scores), with options as in lrp:rules=safe; @FILE is an order in a file."""
    scopes: tuple[Literal["example", "dataset"], ...] = ("example", "dataset")
    """An order for each example, from itself; one for all, from other data (--score-examples); or both."""
    directions: tuple[Literal["largest", "smallest"], ...] = ("largest", "smallest")
    """Which scores are removed first."""
    steps: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    """Shares of the heads that are removed; the unpruned model is always evaluated."""
    unit: Literal["head", "site", "block"] = "head"
    """What is removed at once: a head, an attention computation, or all attention of a layer."""
    target: str = "predicted"
    """The answer that is explained: predicted, label, or the number of one."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Random orders, for the score random."""
    score_examples: int | None = 1000
    """How many examples of the training data the orders of the scope dataset come from; none is all."""
    score_option: UseAppendAction[tuple[str, ...]] = ()
    """Option of the task for the data to score on, as name=value (repeatable); the split is train by default."""
    rescore: bool = False
    """Score again after each step, with the heads removed that are removed by then."""
    as_coded: bool = False
    """Count heads and average cells as the released code."""
    parts: tuple[Part, ...] = ("prune",)
    """What to do: prune, correlation (how well scores predict the rise of the loss by one change), explain (maps)."""
    changes: tuple[Change, ...] = ("removed", "mean", "window")
    """For correlation, what happens to a head: removed, its mean output, a window of attention, or a uniform one."""
    pairs: int = 150
    """For correlation, how many pairs of head and change are measured."""
    window: int = 2
    """For correlation, how far from its own position a token of a windowed head sees."""
    levels: tuple[float, ...] = (0.0, 0.4, 0.6, 0.9)
    """For explain, shares of the heads that maps leave out, the lowest gradient x attention of the example first."""
    mask_in: Literal["aggregation", "model", "both"] = "aggregation"
    """For explain, where heads are missing: in the average over heads, or in the model (see attrim explain)."""
    examples: tuple[int, ...] = (0, 1, 2)
    """For explain, numbers of the examples that are drawn; the quality is that of all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("scores", "scopes", "directions", "parts", "changes", "seeds", "steps", "levels"):
            given = getattr(self, name)
            if not given or len({*given}) < len(given):
                raise ParameterError(f"--{name} needs at least one entry, each of them once, not {list(given)}.")
        for step in (*self.steps, *self.levels):
            if not (math.isfinite(step) and 0 <= step <= 1):
                raise ParameterError(f"A step or level is a share of the heads from 0 to 1, not {step}.")
        for name, least in (("score_examples", 1), ("pairs", 3), ("window", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ParameterError(f"--{name.replace('_', '-')} must be at least {least}, not {value}.")
        object.__setattr__(self, "steps", tuple(sorted({0.0, *self.steps})))
        from .scoring import candidates

        candidates(self)

    def identity(self) -> dict[str, Any]:
        """Where orders of the scope dataset come from; everything else has results under names of its own."""
        return {"score_examples": self.score_examples, "score_option": list(self.score_option)}

    @property
    def answer(self) -> Any:
        """The answer that is explained: a word, or its number."""
        return int(self.target) if self.target.isdecimal() else self.target

    def scoring_task(self, bench: Bench) -> Task:
        """The task with the data that orders for all examples, and predictions, come from."""
        from ...core.registry import TASKS
        from ...core.text import parse_options

        task = bench.training_task(limit=self.score_examples)
        own = parse_options(self.score_option, TASKS[task.registered_name], f"task {bench.task_name}")
        return dataclasses.replace(task, **own)

    def work(self, bench: Bench) -> HeadsFindings:
        """Score and prune, and measure how well scores predict, as far as ``parts`` says."""
        from .explaining import explain
        from .findings import HeadsFindings
        from .prediction import predict
        from .pruning import prune
        from .scoring import Scoring, candidates

        scoring = Scoring(bench, self)
        for one in candidates(self):
            if one.order is not None:
                scoring.of(one, "dataset")  # refuses an order that does not fit before the long work begins
        if "dataset" in self.scopes or "correlation" in self.parts:
            scoring.scored  # noqa: B018 (refuses data that is not held out before the long work begins)
        pruned = prune(bench, self, scoring) if "prune" in self.parts else None
        predicted = predict(bench, self, scoring) if "correlation" in self.parts else None
        return HeadsFindings(
            folder=bench.run_folder,
            study=self,
            model=bench.name,
            task=bench.task_name,
            ground=scoring.ground(),
            pruned=pruned,
            predicted=predicted,
            explained=explain(bench, self) if "explain" in self.parts else None,
        )

    @classmethod
    def findings(cls) -> type[HeadsFindings]:
        """See :meth:`Study.findings`."""
        from .findings import HeadsFindings

        return HeadsFindings
