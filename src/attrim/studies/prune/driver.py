"""The work of the prune study, step by step; whatever the run has is read and not repeated."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...core import record
from ...core.progress import progress_bar
from ...core.site import Select
from ...edits.mask import Mask
from ...edits.saving import fingerprint
from ...evaluation import Prepared
from ...runs.result import Result
from ...stats.mean import Mean
from ..bench import TrainingBench
from .checking import roles_of, sites_of
from .comparison import Comparing, PruneOutcome, PruneOutcomes, PrunePoint
from .findings import PointFootprint, PruneFindings
from .footprint import Footprint, measure_footprint
from .headwise import PrunedHeads, prune_heads
from .removal import Removal, given_averages, make_removal
from .retraining import Retraining, TrainedModel, normaliser_edits
from .sets import OWN, averaged_task, data_sets, task_key
from .study import DENSE, TOGETHER, Normaliser, Prune


def points_of(study: Prune, normaliser: str, roles: Sequence[str]) -> Iterator[PrunePoint]:
    """The points of a normaliser, the dense model first and what needs no training next."""
    trained = study.retrain != "never"
    yield PrunePoint(retrained=trained, normaliser=normaliser)
    taus = [tau for tau in study.taus if tau > 0]
    again = [tau for tau in taus if trained and (not study.retrain_taus or tau in study.retrain_taus)]
    plain = taus if study.retrain != "always" else []
    for retrained, some in ((False, plain), (True, again)):
        for role in roles:
            own = role == TOGETHER and normaliser == "softmax"
            kinds = study.kinds if own else [kind for kind in study.kinds if kind in study.ablation_kinds]
            for kind in kinds:
                for tau in some:
                    yield PrunePoint(kind, tau, retrained, normaliser, role)


class Pruning:
    """Goes through normalisers, seeds and points, and keeps what is found so far in the run."""

    def __init__(self, bench: TrainingBench, study: Prune) -> None:
        self.bench, self.study, self.run = bench, study, bench.require_run()
        self.models = Retraining(bench, study)
        self.sets = data_sets(bench, study)
        sites = sites_of(bench)
        self.roles = {"softmax": roles_of(study.roles, sites), "entmax": roles_of(study.entmax_roles, sites)}
        self.comparison = Comparing(self.sets[0].task)
        self.outcomes: PruneOutcomes = {}
        self.heads: PrunedHeads | None = None
        self.footprints: tuple[PointFootprint, ...] = ()

    def work(self) -> PruneFindings:
        """Everything, for every seed."""
        plan = {
            normaliser: list(points_of(self.study, normaliser, self.roles[normaliser]))
            for normaliser in self.study.normaliser
        }
        total = len(self.study.seeds) * sum(map(len, plan.values()))
        for points in plan.values():
            self.outcomes |= {point: {} for point in points}
        with progress_bar(total, "pruning", self.bench.progress) as bar:
            for seed in self.study.seeds:
                for normaliser, points in plan.items():
                    seeded = _Seed(self, seed, normaliser)
                    for point in points:
                        bar.describe(f"{point.name}, seed {seed}")
                        outcome = seeded.outcome(point)
                        if outcome is not None:
                            self.outcomes[point][seed] = outcome
                            if point.retrained:
                                self.found(complete=False).save(self.run)  # to look at while the rest is trained
                        bar.advance()
        one = _Seed(self, self.study.seeds[0], self.study.normaliser[0])
        self.heads = one.heads() if self.study.head_examples and max(self.study.taus) > 0 else None
        self.footprints = one.footprints(plan[one.normaliser]) if self.study.cost_examples else ()
        return self.found(complete=True)

    def found(self, complete: bool) -> PruneFindings:
        """The findings so far."""
        task = self.sets[0].task
        metric = next(iter(task.metrics))
        return PruneFindings(
            folder=self.bench.run_folder,
            study=self.study,
            model=self.bench.name,
            task=self.bench.task_name,
            metric=metric,
            smaller_is_better=metric in task.smaller_is_better,
            rows=self.comparison.rows({point: own for point, own in self.outcomes.items() if own}),
            heads=self.heads,
            footprints=self.footprints,
            whole=complete,
        )


class _Seed:
    """The work of one seed with one normaliser: one dense model, its averages, and what is made of them."""

    def __init__(self, pruning: Pruning, seed: int, normaliser: Normaliser) -> None:
        self.pruning, self.seed, self.normaliser = pruning, seed, normaliser
        self.study, self.run = pruning.study, pruning.run
        self.dense = pruning.models.dense(seed, normaliser)
        self._means: dict[bool, Mean] = {}
        self._prepared: dict[str, Prepared] = {}

    def outcome(self, point: PrunePoint) -> PruneOutcome | None:
        """The results of a point on every set; None where another seed has the same ones."""
        if point.kind == DENSE:
            return None if self._repeats else PruneOutcome(self._results(point.name, self.dense), shared=self._shared)
        drawn = point.kind.startswith("random")
        if not point.retrained and not drawn and self._repeats:
            return None
        removal = self._removal(point)
        edits = [removal.edit]
        model = self._trained(point, removal) if point.retrained else self.dense
        # The digest stands for all that the removal depends on: averages, options and seed.
        name = f"{point.name}/{fingerprint(edits)[:8]}"
        results = self._results(name, model, [] if point.retrained else edits)
        return PruneOutcome(results, removal.facts, removal.window, self._shared and not point.retrained and not drawn)

    def _trained(self, point: PrunePoint, removal: Removal) -> TrainedModel:
        """The model that is trained with what a point removes."""
        label = "-".join((point.normaliser, point.role, point.kind, f"{point.tau:g}")).replace(">", "-to-")
        edits = [removal.edit, *normaliser_edits(point.normaliser)]
        return self.pruning.models.trained(label, edits, self.seed)

    def heads(self) -> PrunedHeads:
        """What single heads cost."""
        bench, study = self.dense.bench, self.study
        tau = max(study.taus) if study.head_tau is None else study.head_tau
        removal = self._removal(PrunePoint("ap", tau, normaliser=self.normaliser))
        assert isinstance(removal.edit, Mask)
        averaged = replace(averaged_task(self.pruning.bench, study), limit=study.head_examples)
        evaluated = replace(self.pruning.sets[0].task, limit=study.head_examples)
        chosen = bench.select().resolve(sites_of(bench))
        key = f"{self.normaliser}-{self.dense.key}"
        return prune_heads(bench, self.run, self._mean(False), removal.edit, tau, averaged, evaluated, chosen, key)

    def footprints(self, points: Sequence[PrunePoint]) -> tuple[PointFootprint, ...]:
        """What the dense model takes, and each kind at its largest tau, trained with it where it is."""
        study = self.study
        largest = {(point.kind, point.retrained): point for point in points if point.role == TOGETHER}
        jobs = {}
        for kind in dict.fromkeys(point.kind for point in points if point.role == TOGETHER):
            point = largest.get((kind, True)) or largest[kind, False]
            model, edits = self.dense, []
            if kind != DENSE:
                removal = self._removal(point)
                model = self._trained(point, removal) if point.retrained else self.dense
                edits = [] if point.retrained else [removal.edit]
            jobs[f"footprint/{study.cost_examples}/{point.name}/{fingerprint(edits)[:8]}/{model.key}"] = (
                point,
                model,
                edits,
            )
        if any(self.run.fields(name) is None for name in jobs):
            # All of them again, because only seconds of one time on one machine can be compared.
            for name, (_, model, edits) in jobs.items():
                cost = measure_footprint(model.bench, edits, study.cost_examples)
                self.run.store(name, {}, fields=record.dump(cost))
        what = f"footprint of {self.run.folder}"
        return tuple(
            PointFootprint(point, record.load(Footprint, self.run.fields(name), what))
            for name, (point, _, _) in jobs.items()
        )

    @property
    def _shared(self) -> bool:
        """Whether all seeds have the same dense model."""
        return self.study.retrain == "never" or len(self.study.dense) == 1

    @property
    def _repeats(self) -> bool:
        """Whether an earlier seed has the same dense model."""
        return self._shared and self.seed != self.study.seeds[0]

    def _results(self, name: str, model: TrainedModel, edits: Sequence[Any] = ()) -> dict[str, Result]:
        """The results of a model on every set, from the run, from its training, or computed now."""
        found = {}
        for data in self.pruning.sets:
            setting = f"{data.key}/{name}/{model.key}"
            result = Result.load(self.run, setting)
            if result is None:
                if data.name == OWN and not edits and model.result is not None:
                    result = model.result
                else:
                    result = self._ready(data.key, model).point(setting, edits)
                result = result.store(self.run, setting)
            # What intervals are computed from is enough to keep in memory.
            found[data.name] = replace(result, outputs=np.empty(0), labels=np.empty(0), texts=[])
        return found

    def _ready(self, key: str, model: TrainedModel) -> Prepared:
        """A model with the tokenised examples of a set; that of the dense model is used again."""
        if model is self.dense and key in self._prepared:
            return self._prepared[key]
        task = next(data.task for data in self.pruning.sets if data.key == key)
        prepared = Prepared(model.bench.loaded_model, task, model.bench.loaded_tokenizer)
        if model is self.dense:
            self._prepared[key] = prepared
        return prepared

    def _removal(self, point: PrunePoint) -> Removal:
        mean = self._mean(point.kind == "out-of-domain")
        seed = self.seed if point.kind.startswith("random") else 0
        return make_removal(self.study, mean, point.kind, point.tau, self._select(point.role), seed)

    def _select(self, role: str) -> Select:
        chosen = self.pruning.bench.select()
        return chosen if role == TOGETHER else dataclasses.replace(chosen, roles=(role,))

    def _mean(self, elsewhere: bool) -> Mean:
        """Average attention of the dense model, or that which was given."""
        if elsewhere not in self._means:
            if self.study.averages and not elsewhere:
                self._means[elsewhere] = given_averages(self.study.averages)
            else:
                task = averaged_task(self.pruning.bench, self.study, elsewhere)
                part = f"averages-{self.normaliser}-{self.dense.key}-{task_key(task)}"
                self._means[elsewhere] = self.dense.bench.measure(Mean(), part, task=task)[Mean]
        return self._means[elsewhere]
