"""Step 3 of the constant study: make heads constant, train a probe, evaluate it; once for each seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ...attention.context import edit
from ...attention.discover import find_sites
from ...edits.base import Edit
from ...edits.constant import Constant
from ...errors import ParameterError
from ...evaluation import evaluate
from ...models.loading import longest_input
from ...probing.hidden_states import CachedStates, extract, remove_features
from ...probing.probe import Probe, load_probe, make_probe, save_probe
from ...probing.probed import Probed, train_probed
from ...probing.trainer import evaluate_probe, train_probe
from ...runs.result import Result
from ...scores import budget_size
from ...scores.orders import given_order
from ...tasks.base import Task
from ...tasks.layouts import SHORTEST
from ..bench import Bench
from ..findings import Setting
from .ordering import Replacement
from .study import ConstantHeads

Epochs = tuple[dict[str, float], ...]
"""The metrics after each epoch."""
MOST_SLOTS = 65_536
"""For a model that does not say how many tokens it takes: the averages have this many squared cells a head."""


def check(bench: Bench, study: ConstantHeads) -> None:
    """Refuse what would fail after the long steps: a task without a probe, budgets without heads, a bad order."""
    task = bench.training_task()
    most = longest_input(bench.loaded_model, bench.loaded_tokenizer) or MOST_SLOTS
    if not SHORTEST <= task.max_length <= most:
        raise ParameterError(f"--max-length must be from {SHORTEST} to {most} slots here, not {task.max_length}.")
    make_probe(bench.loaded_model, task)
    sites = find_sites(bench.loaded_model)
    heads = sum(len(chosen) for chosen in bench.select().resolve(sites).values())
    if study.order is not None:
        given_order(study.order, sites, bench.select().resolve(sites))
    for wanted in study.budgets:
        budget_size(wanted, heads)


@dataclass(frozen=True, eq=False)
class TrainedProbe:
    """The probe of one seed, and how good it is.

    Attributes
    ----------
    epochs : the metrics after each epoch; none where the model runs in every step.
    """

    seed: int
    probe: Probe
    result: Result
    epochs: Epochs = ()


def train_probes(
    bench: Bench, study: ConstantHeads, setting: Setting, seeds: Sequence[int], scratch: Path | None = None
) -> Iterator[TrainedProbe]:
    """One point of work: one setting with some seeds, which share the hidden states of the frozen model.

    It may run in another process. It stores no results: whoever drives it keeps each probe as soon as it is given.

    Parameters
    ----------
    scratch : folder for hidden states that do not fit into memory, and for checkpoints, to resume after a kill.
    """
    training, validation = bench.training_task(), bench.validation_task()
    learned = any(isinstance(one, Constant) and one.train_constants for one in setting.edits)
    if learned or study.as_coded or not training.trains_as_evaluated:
        for seed in seeds:
            yield _with_model(bench, study, setting, seed, checkpoints(scratch, setting.name, seed))
        return
    with (
        _hidden_states(bench, training, setting.edits, scratch, "training") as training_states,
        _hidden_states(bench, validation, setting.edits, scratch, "validation") as validation_states,
    ):
        for seed in seeds:
            probe = make_probe(bench.loaded_model, training, seed=seed)
            epochs = train_probe(
                training_states,
                probe,
                training,
                study.recipe(seed),
                validation=(validation_states, validation),
                folder=checkpoints(scratch, setting.name, seed),
                progress=bench.progress,
            )
            yield TrainedProbe(seed, probe, evaluate_probe(validation_states, probe, validation), tuple(epochs))


@contextmanager
def _hidden_states(
    bench: Bench, task: Task, edits: Sequence[Edit], scratch: Path | None, part: str
) -> Iterator[CachedStates]:
    """The model runs once; states that went to a file are removed afterwards, for they are large."""
    folder = None if scratch is None else scratch / "features" / part
    yield extract(bench.loaded_model, task, bench.loaded_tokenizer, edits, folder=folder)
    if folder is not None:
        remove_features(folder)


def _with_model(bench: Bench, study: ConstantHeads, setting: Setting, seed: int, folder: Path | None) -> TrainedProbe:
    """The model runs in every step: for trained constants, the dropout of the released code, and masked tokens."""
    training, tokenizer = bench.training_task(), bench.loaded_tokenizer
    probe = make_probe(bench.loaded_model, training, seed=seed)
    edits: tuple[Edit, ...] = setting.edits
    options: dict[str, Any] = {"names": getattr(training, "labels", ()), "as_coded": study.as_coded}
    (constant,) = edits or (None,)
    if isinstance(constant, Constant) and constant.train_constants:
        options |= {"trained": "constants", "constants": constant.matrix}
    probed = Probed(bench.loaded_model, probe, **options)
    if probed.constants is not None:
        assert isinstance(constant, Constant)
        # The edit of this training has the parameters of the probed model in place of what they begin with.
        edits = (Constant(probed.constants.by_site(), heads=constant.select.heads, train_constants=True),)
    train_probed(probed, training, tokenizer, study.recipe(seed), edits, folder=folder, progress=bench.progress)
    with edit(probed, *edits) if edits else nullcontext():
        result = evaluate(probed, bench.validation_task(), tokenizer)
    return TrainedProbe(seed, probe, result)


def probe(
    bench: Bench, study: ConstantHeads, replaced: Replacement, constants: Mapping[str, Tensor]
) -> tuple[tuple[Result, ...], dict[str, Epochs]]:
    """A result for each seed, and the epochs by name of the result; from the run, or computed now and kept there.

    Parameters
    ----------
    constants : the matrices ``[H, N, N]`` of the family by site name.
    """
    run = bench.require_run()
    names = {seed: f"{replaced.name}/seed-{seed}" for seed in study.seeds}
    missing = [seed for seed, name in names.items() if run.fields(name) is None]
    if missing:
        about = {"family": replaced.family, "order": replaced.order, "heads": [list(head) for head in replaced.heads]}
        for trained in train_probes(bench, study, replaced.setting(constants), missing, run.folder):
            known = {**about, "seed": trained.seed, "epochs": list(trained.epochs)}
            save_probe(trained.probe, _folder(run.folder, names[trained.seed]), known)
            trained.result.store(run, names[trained.seed])  # last: a seed that the run knows is complete
    results: list[Result] = []
    epochs: dict[str, Epochs] = {}
    for seed, name in names.items():
        result, finished = Result.load(run, name), checkpoints(run.folder, replaced.name, seed)
        assert result is not None
        assert finished is not None
        results.append(result)
        remove_features(finished)  # also where a kill came between the result and this
        kept = load_probe(_folder(run.folder, name), bench.loaded_model)[1]
        epochs[name] = tuple(kept["epochs"])
    return tuple(results), epochs


def baseline_probe(bench: Bench, study: ConstantHeads) -> Probe:
    """The trained probe of the first seed on the unedited model."""
    baseline = Replacement()
    probe(bench, study, baseline, {})
    folder = _folder(bench.run_folder, f"{baseline.name}/seed-{study.seeds[0]}")
    return load_probe(folder, bench.loaded_model)[0]


def checkpoints(scratch: Path | None, name: str, seed: int) -> Path | None:
    """Where the training of one seed of a setting keeps its checkpoints."""
    return None if scratch is None else scratch / "checkpoints" / f"{name}/seed-{seed}".replace("/", "-")


def _folder(run: Path, name: str) -> Path:
    """Where the run keeps the probe of a result."""
    return run / "probes" / name.replace("/", "-")
