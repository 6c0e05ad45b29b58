"""What the constant study tries: budgets of heads, families of constants, orders of heads, seeds."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...core.registry import FAMILIES, SCORES
from ...errors import ParameterError, UnknownName
from ...scores import Scores, budget, budget_size
from ...scores.lambdas import RATE
from ...training.recipe import ProbeRecipe

BUDGETS = ("0", "1/2", "7/8", "15/16", "all")
LAMBDAS = "lambdas"
"""The order of the paper; it is trained, so it is not called like the registered scores."""


@dataclass(frozen=True)
class Setting:
    """Some heads made constant.

    Attributes
    ----------
    family, order : what they are replaced by, and which come first; empty where neither matters.
    label : the budget as it was asked for.
    heads : site name and head of each.
    constants : what the constants are called in the run (:meth:`Design.constants_name`).
    """

    family: str
    order: str
    label: str
    heads: tuple[tuple[str, int], ...] = ()
    constants: str = ""

    @property
    def name(self) -> str:
        """The setting in the run. It tells the heads themselves, because an order is another one with more seeds."""
        digest = hashlib.sha256(json.dumps(sorted(self.heads)).encode()).hexdigest()[:12] if self.order else ""
        parts = ("probe", self.constants, self.order, str(len(self.heads)), digest)
        return "/".join(part for part in parts if part)


@dataclass(frozen=True)
class Design:
    """What to try.

    Parameters
    ----------
    budgets : how many heads are constant: numbers, shares (``1/2``, ``0.5``) or ``all``; the baseline 0 is added.
    families : what heads are replaced by, ``average`` and others (:data:`attrim.families.FAMILIES`). The first one
        is used with every order, the others with the first order.
    orders : which heads come first: ``lambdas`` and others (:data:`attrim.scores.SCORES`).
    seeds : a probe, and for ``lambdas`` a training of them, for each.
    recipe : how probes are trained; its seed does not count.
    order_epochs : passes over the training data for lambdas; None takes those of the probe.
    lambda_rate : their learning rate.
    score_batches : batches of training data for the orders that are not trained.
    as_coded : train as the released code, with the model's dropout and the probe's learning rate for lambdas; hidden
        states cannot be kept then, so this takes many times longer.
    """

    budgets: Sequence[str | int | float] = BUDGETS
    families: Sequence[str] = ("average",)
    orders: Sequence[str] = (LAMBDAS,)
    seeds: Sequence[int] = (0, 1, 2)
    recipe: ProbeRecipe = field(default_factory=ProbeRecipe)
    order_epochs: float | None = 2.0
    lambda_rate: float = RATE
    score_batches: int = 32
    as_coded: bool = False

    def __post_init__(self) -> None:
        for names, what in ((self.budgets, "budget"), (self.families, "family"), (self.orders, "order")):
            if not names:
                raise ParameterError(f"The constant study needs at least one {what}.")
        if not self.seeds or len({*self.seeds}) < len(self.seeds):
            raise ParameterError(f"The seeds must be different numbers, at least one, not {tuple(self.seeds)}.")
        if self.score_batches < 1:
            raise ParameterError(f"Orders need at least one batch to score heads on, not {self.score_batches}.")
        for family in self.families:
            FAMILIES[family]  # raises, and suggests the nearest name
        for order in self.orders:
            _check_order(order)
        epochs = self.recipe.epochs if self.order_epochs is None else self.order_epochs
        for name, value in {"epochs of an order": epochs, "learning rate of lambdas": self.lambda_rate}.items():
            if not 0 < value < math.inf:
                raise ParameterError(f"The {name} must be a number above 0, not {value}.")
        self.recipe.check()

    def check(self, heads: int) -> None:
        """Refuse budgets that a model with so many heads does not have."""
        for wanted in self.budgets:
            budget_size(wanted, heads)

    def constants_name(self, family: str) -> str:
        """The constants of a family in the run: those that are drawn are others with another first seed."""
        return f"{family}-{self.seeds[0]}" if FAMILIES[family].drawn else family

    def settings(self, orders: dict[str, Scores]) -> list[Setting]:
        """Every setting once, the baseline first; at 0 and at all heads the order does not matter."""
        pairs = [(self.families[0], order) for order in self.orders]
        pairs += [(family, self.orders[0]) for family in self.families[1:]]
        found: dict[str, Setting] = {}
        for family, order in pairs:
            sequence = orders[order].order()
            for wanted in ("0", *self.budgets):
                heads = tuple(budget(sequence, wanted))
                everything = len(heads) == len(sequence)
                setting = Setting("", "", str(wanted))
                if heads:
                    own = "" if everything else order
                    setting = Setting(family, own, str(wanted), heads, self.constants_name(family))
                found.setdefault(setting.name, setting)
        return sorted(found.values(), key=lambda setting: bool(setting.heads))


def _check_order(name: str) -> None:
    try:
        if name != LAMBDAS:
            SCORES[name]
    except UnknownName:  # the scores do not know the order that is trained
        raise UnknownName("order", name, SCORES) from None
