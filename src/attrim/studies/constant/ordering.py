"""Step 2 of the constant study: which heads to make constant first, and which of them each budget takes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from torch import Tensor

from ...attention.discover import find_sites
from ...core.registry import FAMILIES, SCORES
from ...edits.families import constant_edits
from ...probing.hidden_states import remove_features
from ...probing.probe import Probe
from ...probing.probed import Probed
from ...runs.run import Run
from ...scores import Scores, budget
from ...scores.lambdas import Lambdas, lambda_scores
from ...scores.orders import GIVEN, given_order, write_order
from ...stats.mean import Mean
from ..bench import Bench
from ..findings import Setting
from .study import ConstantHeads

ORDERS = "orders"
"""The folder of a run with the orders, and the scores of single seeds."""


def order_heads(
    bench: Bench, study: ConstantHeads, mean: Mean, constants: Mapping[str, Tensor], probe: Callable[[], Probe]
) -> dict[str, Scores]:
    """The scores of every order, from the run or computed now and kept there.

    Parameters
    ----------
    mean : the averages, which say which heads there are.
    constants : the matrices by site name that the heads would get, those of the study's first family.
    probe : gives a trained probe on the unedited model, for scores that need a loss.
    """
    found = {}
    if study.order is not None:
        sites = find_sites(bench.loaded_model)
        return {GIVEN: given_order(study.order, sites, bench.select().resolve(sites))}
    for order in study.orders:
        if SCORES[order] is Lambdas:
            each = [_stored(bench, study, order, seed, constants, None) for seed in study.seeds]
            heads = {record.site.name: record.heads for record in mean.records.values()}
            found[order] = lambda_scores([scores.values for scores in each], mean.sites, heads)
        else:
            found[order] = _stored(bench, study, order, study.seeds[0], constants, probe)
    return found


def write_orders(run: Run, orders: Mapping[str, Scores]) -> None:
    """Write every order as JSON and CSV, from which edits and other studies take their first heads."""
    for name, scores in orders.items():
        write_order(run.folder / ORDERS / name, scores)


def score_heads(
    bench: Bench,
    study: ConstantHeads,
    order: str,
    seed: int,
    constants: Mapping[str, Tensor],
    probe: Probe | None = None,
    scratch: Path | None = None,
) -> Scores:
    """One point of work: the scores of the selected heads for one seed.

    It may run in another process, and stores nothing.

    Parameters
    ----------
    probe : trained on the unedited model; only lambdas do without, which train one of their own.
    scratch : folder for checkpoints, to resume after a kill.
    """
    task, kind = bench.training_task(), SCORES[order]
    if issubclass(kind, Lambdas):
        recipe = study.recipe(seed, epochs=study.lambda_epochs)
        lambdas = kind(recipe=recipe, rate=study.lambda_rate, as_coded=study.as_coded)
        return lambdas(
            bench.loaded_model,
            constants=constants,
            task=task,
            tokenizer=bench.loaded_tokenizer,
            folder=scratch,
            progress=bench.progress,
            select=bench.select(),
        )
    assert probe is not None
    # Not the model alone: the labels are numbered as the probe has them.
    probed = Probed(bench.loaded_model, probe, names=getattr(task, "labels", ()))
    batches = islice(task.train_batches(bench.loaded_tokenizer, probed, seed=seed), study.score_batches)
    score = kind().with_seed(seed)
    options = {"task": task, "tokenizer": bench.loaded_tokenizer, "folder": scratch, "progress": bench.progress}
    return score(probed, batches, constants, select=bench.select(), **options)


def _stored(
    bench: Bench,
    study: ConstantHeads,
    order: str,
    seed: int,
    constants: Mapping[str, Tensor],
    probe: Callable[[], Probe] | None,
) -> Scores:
    """The scores of one seed from the run; a training that was stopped resumes from its last checkpoint."""
    run = bench.require_run()
    # With all that it was worked out with: another family, seed or number of batches gives another order.
    parts = [order, study.constants_name(study.families[0]), f"seed-{seed}"]
    name = "_".join(parts if probe is None else [*parts, f"batches-{study.score_batches}"])
    scratch = run.folder / "checkpoints" / f"order_{name}"
    if not (run.folder / ORDERS / f"{name}.json").exists():
        scores = score_heads(bench, study, order, seed, constants, None if probe is None else probe(), scratch)
        run.write(f"{ORDERS}/{name}.json", scores.to_json())
    remove_features(scratch)  # also where a kill came between the order and this
    return Scores.from_json(run.read_json(f"{ORDERS}/{name}.json"))


@dataclass(frozen=True)
class Replacement:
    """Some heads made constant.

    Attributes
    ----------
    family, order : what they are replaced by, and which come first; empty where neither matters.
    label : the budget as it was asked for.
    heads : site name and head of each.
    constants : what the constants are called in the run (:meth:`ConstantHeads.constants_name`).
    """

    family: str = ""
    order: str = ""
    label: str = "0"
    heads: tuple[tuple[str, int], ...] = ()
    constants: str = ""

    @property
    def name(self) -> str:
        """The name in the run; it hashes the heads themselves, because more seeds give another order."""
        digest = hashlib.sha256(json.dumps(sorted(self.heads)).encode()).hexdigest()[:12] if self.order else ""
        parts = ("probe", self.constants, self.order, str(len(self.heads)), digest)
        return "/".join(part for part in parts if part)

    def setting(self, constants: Mapping[str, Tensor]) -> Setting:
        """It as a setting with its edits.

        Parameters
        ----------
        constants : the matrices ``[H, N, N]`` of the family by site name.
        """
        trained = bool(self.heads) and FAMILIES[self.family].trained
        edits = constant_edits(constants, self.heads, train_constants=trained)
        return Setting(self.name, self.family, len(self.heads), edits, self.label)


def replacements(study: ConstantHeads, orders: Mapping[str, Scores]) -> list[Replacement]:
    """Everything to try once, the unedited model first; at 0 and at all heads the order does not matter."""
    names = list(orders)
    pairs = [(study.families[0], order) for order in names]
    pairs += [(family, names[0]) for family in study.families[1:]]
    found = {(baseline := Replacement()).name: baseline}
    for family, order in pairs:
        sequence = orders[order].order()
        for wanted in study.budgets:
            heads = tuple(budget(sequence, wanted))
            if heads:
                own = "" if len(heads) == len(sequence) else order
                one = Replacement(family, own, wanted, heads, study.constants_name(family))
                found.setdefault(one.name, one)
    return list(found.values())
