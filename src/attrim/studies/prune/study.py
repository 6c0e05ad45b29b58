"""The prune study: one sparse pattern of attention, the same for every input, that a model is trained with.

Attention Pruning (Rugina et al. 2020, https://arxiv.org/abs/2012.02030) in its steps: train a dense model, average its
attention over the training data, remove the cells that get the least of it, and train again from the first weights with
what is left. Patterns of random cells and a window around each token, as sparse as that, are what it is compared with.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tyro.conf import UseAppendAction

from ...core import record
from ...errors import ParameterError
from ...training.recipe import Recipe
from ..base import Study, register
from ..bench import Bench, FinetuningBench, TrainingBench

if TYPE_CHECKING:
    from .findings import PruneFindings

Kind = Literal["ap", "random", "random-mass", "window", "out-of-domain"]
Normaliser = Literal["softmax", "entmax"]
DENSE = "dense"
TOGETHER = "together"


@register("prune")
@dataclass(frozen=True, kw_only=True)
class Prune(Recipe, Study):
    """Remove the cells that get the least attention on average, the same for every input, and train with the rest."""

    bench: ClassVar[type[Bench]] = FinetuningBench

    taus: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)
    """Shares of the cells that are removed; 0 is the dense model, which is always there."""
    kinds: tuple[Kind, ...] = ("ap", "random", "window")
    """What is removed: ap (the least attention), as many random cells, random-mass (random ones with as much
    attention), window (all but near tokens and the first ones), out-of-domain (ap by averages of --average-data)."""
    retrain: Literal["both", "always", "never"] = "both"
    """Evaluate patterns without and with training again, only with, or only without: MODEL is then the dense model."""
    retrain_taus: tuple[float, ...] = ()
    """Train again for these taus only (default: all)."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """A dense model and a model of each pattern for each of them."""
    initial: Literal["given", "drawn"] = "given"
    """What training begins with: the weights of MODEL, or weights that each seed draws for its architecture."""
    dense: tuple[Path, ...] = ()
    """Folders of trained dense models, one for all seeds or one for each, in place of the first step."""
    average_examples: int | None = None
    """Average over so many examples of the training data (default: all)."""
    averages: tuple[str, ...] = ()
    """Averages that were measured before: folders, or .npy files (FILE.npy:ROLE), in place of the second step."""
    average_data: str | None = None
    """Other data for averages, of another domain; adds the kind out-of-domain."""
    average_option: UseAppendAction[tuple[str, ...]] = ()
    """Option of the task for that data, as name=value."""
    evaluate_data: UseAppendAction[tuple[str, ...]] = ()
    """Further data to evaluate on, as PATH or NAME=PATH."""
    evaluate_option: UseAppendAction[tuple[str, ...]] = ()
    """Option of the task for further data, as name=value for all of it or NAME:name=value."""
    roles: tuple[str, ...] = (TOGETHER,)
    """Where cells are removed: together (everywhere), one role alone (encoder, decoder, cross), or each (all of
    these)."""
    normaliser: tuple[Normaliser, ...] = ("softmax",)
    """What turns scores into weights: softmax, 1.5-entmax (trained with it), or both."""
    ablation_kinds: tuple[Kind, ...] = ("ap",)
    """The kinds that single roles and entmax are tried with."""
    entmax_roles: tuple[str, ...] = (TOGETHER,)
    """The roles that entmax is tried with."""
    scope: Literal["model", "layer", "head", "row"] | None = None
    """Which cells are ranked together (default: those of a layer)."""
    keep_row: int = 0
    """Never remove the so many strongest cells of a row."""
    keep_diagonal: bool = False
    """Never remove a token's attention to itself."""
    keep_keys: tuple[int, ...] = ()
    """Key positions that are never removed, such as 0."""
    tile: int | None = None
    """Side of the tiles in which cells are removed (default: single cells)."""
    tile_keys: int | None = None
    """Keys of a tile that is not square; --tile are its queries then. The CPU kernel computes tiles of 16 and 1."""
    tiles: Literal["round", "rank"] = "round"
    """Keep a tile when any of its cells is kept, or rank tiles by their average attention."""
    unseen: Literal["keep", "prune", "offset"] = "keep"
    """What becomes of cells that the averages do not have, of longer texts too."""
    empty: Literal["zero", "strongest", "uniform"] = "zero"
    """What a row gives that has no cell left: nothing, its strongest cell, or the mean of all."""
    as_coded: Literal["no", "transformer-xl", "fairseq", "bert", "llama"] = "no"
    """Rank cells as one of the released programs does."""
    window_first: tuple[int, ...] = (1, 2, 3, 4)
    """How many first tokens a window may keep; the number that makes it most nearly as sparse as ap is taken."""
    head_examples: int = 32
    """Prune one head at a time and see how the loss of so many examples rises, by the dense model of the first seed;
    0 leaves it out."""
    head_tau: float | None = None
    """The tau that single heads are pruned with (default: the largest)."""
    cost_examples: int = 0
    """Measure seconds and peak memory of evaluating so many examples, each model in a process of its own."""
    match: Literal["cells", "use"] = "cells"
    """What random cells and windows have in common with ap: the share of cells, or the share of weights that the
    averaged texts lose (a cell that few texts are long enough for counts little)."""
    evaluate_every: int | None = None
    """Evaluate after every so many steps of training (default: once at the end)."""
    keep_best: bool = False
    """Keep the weights with the best evaluation instead of the last ones."""
    seed: int = 123
    """Chooses the examples."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number type of the computation; the weights are trained in float32 either way."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.average_data is not None or self.average_option:
            object.__setattr__(self, "kinds", tuple(dict.fromkeys((*self.kinds, "out-of-domain"))))
        elif "out-of-domain" in self.kinds:
            raise ParameterError("The kind out-of-domain needs other data for averages: --average-data FILE.")
        for name in ("taus", "kinds", "seeds", "roles", "normaliser", "window_first", "entmax_roles"):
            given = getattr(self, name)
            if not given or len({*given}) < len(given):
                flag = name.replace("_", "-")
                raise ParameterError(f"--{flag} needs at least one entry, each of them once, not {list(given)}.")
        for tau in (*self.taus, *self.retrain_taus, *(() if self.head_tau is None else (self.head_tau,))):
            if not (math.isfinite(tau) and 0 <= tau <= 1):
                raise ParameterError(f"A tau is a share of the cells from 0 to 1, not {tau}.")
        unknown = [tau for tau in self.retrain_taus if tau not in self.taus]
        if unknown:
            raise ParameterError(f"--retrain-taus has {unknown[0]}, which is not one of --taus.")
        object.__setattr__(self, "taus", tuple(sorted({0.0, *self.taus})))
        self._check_steps()
        self.check()

    def _check_steps(self) -> None:
        if len(self.dense) not in (0, 1, len(self.seeds)):
            raise ParameterError(
                f"--dense takes one folder, or one for each of {len(self.seeds)} seeds, not {len(self.dense)}."
            )
        if self.retrain == "never":
            given = {"--dense": self.dense, "--retrain-taus": self.retrain_taus, "--initial": self.initial == "drawn"}
            for flag, value in given.items():
                if value:
                    raise ParameterError(f"With --retrain never MODEL is the dense model; leave {flag} out.")
            if self.normaliser != ("softmax",):
                raise ParameterError("A model must be trained with entmax; choose another --retrain than never.")
        if self.dense and "entmax" in self.normaliser:
            raise ParameterError("--dense is of models with softmax; leave it out to train dense models with entmax.")
        least_of = {"average_examples": 1, "keep_row": 0, "evaluate_every": 1, "head_examples": 0, "cost_examples": 0}
        for name, least in least_of.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ParameterError(f"--{name.replace('_', '-')} must be at least {least}, not {value}.")
        if min(self.window_first) < 0:
            raise ParameterError("--window-first are numbers of tokens, never negative.")

    def recipe(self, seed: int) -> Recipe:
        """How the models of one seed are trained."""
        own = {item.name: getattr(self, item.name) for item in dataclasses.fields(Recipe)}
        return Recipe(**{**own, "seed": seed})

    def pattern_options(self) -> dict[str, Any]:
        """How cells are chosen, as :class:`~attrim.edits.pattern.SparsePattern` takes it."""
        names = (
            "scope", "keep_row", "keep_diagonal", "keep_keys", "tile", "tile_keys", "tiles", "unseen", "empty",
            "as_coded",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def identity(self) -> dict[str, Any]:
        """How models are trained; everything else only says what to try, under names of its own."""
        if self.retrain == "never":
            return {"trained": False}
        recipe = record.dump(self.recipe(self.seed).described())
        return {
            "trained": True,
            "recipe": {name: value for name, value in recipe.items() if name != "seed"},  # results have names with it
            "initial": self.initial,
            "evaluate_every": self.evaluate_every,
            "keep_best": self.keep_best,
        }

    def prepare(self, bench: Bench) -> Bench:
        """The bench; one whose model must have its head where MODEL is the dense model, and a new one elsewhere.

        Refuses what would fail after the long steps: a selection without heads, averages of another model or length, a
        dense model that is not there.
        """
        from .checking import check

        if not isinstance(bench, TrainingBench):
            raise ParameterError(f"The study prune needs a TrainingBench, not a {type(bench).__name__}.")
        kind = TrainingBench if self.retrain == "never" else FinetuningBench
        fields = {item.name: getattr(bench, item.name) for item in dataclasses.fields(TrainingBench)}
        prepared = kind(**fields)
        check(prepared, self)
        return prepared

    def work(self, bench: Bench) -> PruneFindings:
        """Train, average, remove, evaluate and train again, for every seed; the run keeps each when it is done."""
        from .driver import Pruning

        assert isinstance(bench, TrainingBench)
        return Pruning(bench, self).work()

    @classmethod
    def findings(cls) -> type[PruneFindings]:
        """See :meth:`Study.findings`."""
        from .findings import PruneFindings

        return PruneFindings
