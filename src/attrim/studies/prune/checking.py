"""What the prune study needs before it begins, so that nothing fails after hours of training."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...baking.model import BakedModel
from ...core.site import Site
from ...edits.pattern import SparsePattern
from ...errors import ArtefactError, DataError, ParameterError
from ...evaluation import Prepared, check_evaluable
from ...models.loading import longest_input
from ...tasks.base import Task
from ..bench import TrainingBench
from .removal import check_averages, given_averages
from .retraining import bench_of
from .sets import averaged_task, data_sets
from .study import TOGETHER, Prune


def check(bench: TrainingBench, study: Prune) -> None:
    """Refuse roles that the model does not have, and averages and dense models that do not fit it."""
    sites = sites_of(bench)
    bench.select().resolve(sites)
    roles_of(study.roles, sites)
    roles_of(study.entmax_roles, sites)
    if study.retrain != "never" and isinstance(bench.loaded_model, BakedModel):
        raise ParameterError(f"{bench.name} carries edits already; begin with the model that it was baked from.")
    for tau in study.taus:
        SparsePattern(torch.zeros(1, 1, 1), tau, **study.pattern_options())  # says which options do not go together
    for data in data_sets(bench, study):
        check_evaluable(data.task)
        next(iter(data.task.examples()))
    if "out-of-domain" in study.kinds:
        next(iter(averaged_task(bench, study, elsewhere=True).examples()))
    _check_held_out(bench)
    labelled = type(bench.loaded_task).train_labels is not Task.train_labels
    if study.head_examples and not labelled and type(bench.loaded_task).train_batches is Task.train_batches:
        raise ParameterError(
            f"The task {bench.task_name} has no loss that single heads could be compared by; give --head-examples 0."
        )
    for folder in study.dense:
        if not (folder / "config.json").is_file():
            raise ArtefactError(f"There is no dense model in {folder}; give a folder that 'attrim train' wrote.")
        found = sites_of(bench_of(bench, folder))
        if shape_of(found) != shape_of(sites):
            raise ArtefactError(
                f"The dense model in {folder} has another shape than {bench.name} ({len(found)} sites of attention, "
                f"not {len(sites)}, or other heads); give a trained model of the same one."
            )
    if study.averages:
        tasks = [bench.training_task(), *(data.task for data in data_sets(bench, study))]
        # Positions count from the beginning of a full memory.
        memory = getattr(getattr(bench.loaded_model, "config", None), "mem_len", None) or 0
        longest = memory + max(longest_text(bench, task) for task in tasks)
        check_averages(given_averages(study.averages), sites, bench.select(), longest, study.unseen)


def _check_held_out(bench: TrainingBench) -> None:
    """Refuse training data that is evaluated on, which a task without splits takes where no other is given."""
    training, validation = (
        {**task.options(), "limit": None} for task in (bench.training_task(), bench.validation_task())
    )
    if training == validation:
        raise ParameterError(
            "The training data is the data that is evaluated on, so nothing would be held out; give other training "
            "data as --train-option data=FILE (or another option of the task)."
        )


def sites_of(bench: TrainingBench) -> list[Site]:
    """The sites of the bench's model."""
    return Prepared(bench.loaded_model, bench.validation_task(), bench.loaded_tokenizer).sites()


def shape_of(sites: Sequence[Site]) -> list[tuple[str, int, int]]:
    """What two models must have in common for one to have the pattern of the other."""
    return [(site.role, site.layer, site.heads) for site in sites]


def roles_of(wanted: Sequence[str], sites: Sequence[Site]) -> tuple[str, ...]:
    """The roles to try, ``each`` replaced by all of them."""
    known = list(dict.fromkeys(site.role for site in sites))
    found: list[str] = []
    for role in wanted:
        if role not in (TOGETHER, "each", *known):
            raise ParameterError(f"The model has no role {role!r}; choose of {', '.join([TOGETHER, 'each', *known])}.")
        # A role that is the only one is the same as all together.
        found += [TOGETHER, *(known if len(known) > 1 else ())] if role == "each" else [role]
    return tuple(dict.fromkeys(found))


def longest_text(bench: TrainingBench, task: Task) -> int:
    """The most tokens that an example of a task has."""
    longest = longest_input(bench.loaded_model, bench.loaded_tokenizer)
    sizes = [
        tensor.shape[1]
        for batch in task.batches(bench.loaded_tokenizer, longest)
        for name, tensor in {**batch.inputs, **batch.targets}.items()
        if name in ("input_ids", "labels") and tensor.ndim == 2
    ]
    if not sizes:
        raise DataError(f"The task {task.registered_name} has no texts, so averages cannot be compared with them.")
    return max(sizes)
