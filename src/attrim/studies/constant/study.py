"""The constant study: how many heads of a frozen model can be replaced by a fixed matrix, and what a probe loses.

The method of PAPA (Hassid et al. 2022, https://arxiv.org/abs/2211.03495) in its three steps: average the attention over
the training data, put the heads in an order, and for each budget make the first heads constant and train a probe. The
first family of constants is tried with every order, the others with the first order. Where heads are selected, only
these are averaged, ordered and made constant, and budgets are shares of them.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...core import record
from ...core.registry import FAMILIES, SCORES
from ...errors import ParameterError, UnknownName
from ...training.recipe import ProbeRecipe
from ..base import Study, register
from ..bench import Bench, TrainingBench

if TYPE_CHECKING:
    from ...runs.result import Result
    from .findings import ConstantFindings
    from .probing import Epochs

SLOTS = 64
ORDERS = ("lambdas",)
# Of the recipe, what does not change any result: every seed has results of its own.
_FREE = ("seed", "checkpoint_every")


@register("constant")
@dataclass(frozen=True, kw_only=True)
class ConstantHeads(ProbeRecipe, Study):
    """Replace more and more heads of a frozen model by a fixed matrix, and see what a probe loses."""

    bench: ClassVar[type[Bench]] = TrainingBench
    model_kind: ClassVar[str] = "auto"

    layout: Literal["grid", "papa"] = "grid"
    """Fixed slots for the tokens: corrected, or as in the paper."""
    max_length: int | None = None
    """Slots of a text (default: 64)."""
    budgets: tuple[str, ...] = ("0", "1/2", "7/8", "15/16", "all")
    """How many heads are constant: numbers, shares or all."""
    families: tuple[str, ...] = ("average",)
    """What they are replaced by: average, offset, uniform, identity, previous, next, random, learned."""
    orders: tuple[str, ...] = ORDERS
    """Which heads come first: lambdas, divergence, gradient, random."""
    averages: Path | None = None
    """Folder of average attention that was measured before, in place of the first step."""
    order: Path | None = None
    """File with an order of all heads (.json or .csv), in place of --orders."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """A probe for each of them."""
    seed: int = 123
    """Chooses the examples."""
    order_epochs: float = 2.0
    """Passes over the training data for lambdas (the paper: as many as for the probe)."""
    lambda_rate: float = 1e-2
    """Learning rate of lambdas (the paper: that of the probe)."""
    score_batches: int = 32
    """Batches of training data for the other orders."""
    as_coded: bool = False
    """Train as the released code, with the model's dropout and one learning rate; many times slower."""
    until: Literal["average", "order", "probe"] = "probe"
    """The last step to do; steps that are done are not repeated."""
    batch_size: int = 16
    """Examples a step, and a forward pass."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number type of the computation."""

    def __post_init__(self) -> None:
        if isinstance(self.budgets, (list, tuple)):  # in Python they may be numbers
            object.__setattr__(self, "budgets", tuple(str(budget) for budget in self.budgets))
        super().__post_init__()
        for names, what in ((self.budgets, "budget"), (self.families, "family"), (self.orders, "order")):
            if not names:
                raise ParameterError(f"The constant study needs at least one {what}.")
        if not self.seeds or len({*self.seeds}) < len(self.seeds):
            raise ParameterError(f"The seeds must be different numbers, at least one, not {self.seeds}.")
        if self.score_batches < 1:
            raise ParameterError(f"Orders need at least one batch to score heads on, not {self.score_batches}.")
        for family in self.families:
            FAMILIES[family]  # raises, and suggests the nearest name
        for order in self.orders:
            if order not in (known := list(SCORES)):
                raise UnknownName("order", order, known)
        if self.order is not None and self.orders != ORDERS:
            raise ParameterError(
                f"Both --order {self.order} and --orders say which heads come first; give one of them."
            )
        rates = {"epochs of an order": self.lambda_epochs, "learning rate of lambdas": self.lambda_rate}
        for name, value in rates.items():
            if not 0 < value < math.inf:
                raise ParameterError(f"The {name} must be a number above 0, not {value}.")
        self.check()

    @property
    def lambda_epochs(self) -> float:
        """Passes over the training data for lambdas; the released code trains them as long as the probe."""
        return self.epochs if self.as_coded else self.order_epochs

    def recipe(self, seed: int, **changes: Any) -> ProbeRecipe:
        """How the probe of one seed is trained."""
        own = {item.name: getattr(self, item.name) for item in dataclasses.fields(ProbeRecipe)}
        return ProbeRecipe(**{**own, "seed": seed, **changes})

    def constants_name(self, family: str) -> str:
        """The constants of a family in the run: those that are drawn are others with another first seed."""
        return f"{family}-{self.seeds[0]}" if FAMILIES[family].drawn else family

    def identity(self) -> dict[str, Any]:
        """How probes and lambdas are trained; budgets, families, orders and seeds only say what to try."""
        recipe = record.dump(self.recipe(self.seed))
        return {
            "recipe": {name: value for name, value in recipe.items() if name not in _FREE},
            "order_epochs": self.lambda_epochs,
            "lambda_rate": self.lambda_rate,
            "as_coded": self.as_coded,
            **self._averages_identity(),
        }

    def _averages_identity(self) -> dict[str, str]:
        """A hash of the averages that are given: with others, every constant is another one."""
        if self.averages is None:
            return {}
        from ...edits.constant import Constant, load_averages
        from ...edits.saving import fingerprint

        return {"averages": fingerprint([Constant(load_averages(str(self.averages)))])}

    def prepare(self, bench: Bench) -> Bench:
        """The bench with texts on fixed slots, so that position i means the same in all texts that are averaged.

        Refuses a task that has no probe, a selection without heads, and budgets that the model does not have.
        """
        from .probing import check

        bench = super().prepare(bench)
        named = isinstance(bench.task, str)
        wanted = (self.max_length, bench.max_length, SLOTS if named else bench.task.max_length)
        length = next(length for length in wanted if length is not None)
        if named:
            options = (*bench.option, f"layout={self.layout}")
            bench = dataclasses.replace(bench, option=options, max_length=length)
        else:
            task = dataclasses.replace(bench.task, layout=self.layout, max_length=length)
            bench = dataclasses.replace(bench, task=task)
        check(bench, self)
        return bench

    def work(self, bench: Bench) -> ConstantFindings:
        """Average, order and probe, as far as ``until`` says."""
        from ...core.progress import track
        from ...edits.families import make_constants
        from ...probing.hidden_states import remove_features
        from .averages import average
        from .drops import rows_of
        from .findings import ConstantFindings
        from .ordering import order_heads, replacements, write_orders
        from .probing import baseline_probe, probe

        task = bench.training_task()
        metric = next(iter(task.metrics))
        averages = average(bench, self.averages)
        found = ConstantFindings(
            folder=bench.run_folder,
            study=self,
            model=bench.name,
            task=bench.task_name,
            metric=metric,
            smaller_is_better=metric in task.smaller_is_better,
            averages=averages,
        )
        if self.until == "average":
            return found
        mean, first = averages.mean, self.seeds[0]
        constants = {
            family: make_constants(family, mean.sites, task.max_length, mean=mean, seed=first)
            for family in self.families
        }
        orders = order_heads(bench, self, mean, constants[self.families[0]], lambda: baseline_probe(bench, self))
        write_orders(bench.require_run(), orders)
        found = dataclasses.replace(found, orders=orders)
        if self.until == "order":
            return found
        results: dict[str, tuple[Result, ...]] = {}
        epochs: dict[str, Epochs] = {}
        settings = replacements(self, orders)
        for setting in track(settings, lambda setting: f"probing {setting.name}", bench.progress):
            results[setting.name], own = probe(bench, self, setting, constants.get(setting.family, {}))
            epochs |= own
        remove_features(bench.run_folder / "features")  # what a kill left: the states of a setting that is done now
        rows = rows_of(settings, results, metric, found.smaller_is_better)
        return dataclasses.replace(found, rows=rows, results=results, epochs=epochs)

    @classmethod
    def findings(cls) -> type[ConstantFindings]:
        """See :meth:`Study.findings`."""
        from .findings import ConstantFindings

        return ConstantFindings
