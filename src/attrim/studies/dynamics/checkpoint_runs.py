"""Read probes of checkpoints, head by head, and compare them with the attention of the last one."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...attention.discover import find_sites
from ...core.modes import device_of
from ...core.progress import track
from ...core.site import Site
from ...errors import ArtefactError
from ...models.loading import check_fit, longest_input
from ...runs.files import file_digest
from ...runs.run import Run
from . import probes
from .readings import Course, Overtaken, ProbeAgreement, Readings, agree, chances, overtaken
from .summary import MATCH, mean_agreement

if TYPE_CHECKING:
    from ..bench import Bench
    from .checkpoint_study import DynamicsCheckpoints


@dataclass(frozen=True)
class HeadCourse:
    """How the probes of one head come to agree with its attention in the last checkpoint.

    Attributes
    ----------
    site, role, layer, head : which head it is.
    courses : ``alpha``, ``beta`` and ``delta`` as rankers of the last alpha, over the checkpoints.
    first : the first step at which each is half way between chance and the highest alpha before the last checkpoint.
    last : beta and delta of the last checkpoint as rankers, with intervals.
    chance : of the last alpha as ranker.
    xi : where alpha of other runs agrees better than beta and delta ever do; nothing without other runs. Their mean
        course is ``others`` of the courses.
    """

    site: str
    role: str
    layer: int
    head: int
    courses: dict[str, Course]
    first: dict[str, int | None]
    last: dict[str, ProbeAgreement]
    chance: float
    xi: dict[str, Overtaken] = field(default_factory=dict)


def labelled_batches(bench: Bench, model: Any) -> list[dict[str, Tensor]]:
    """The examples of the task with their labels, as the model takes them."""
    task, tokenizer = bench.loaded_task, bench.loaded_tokenizer
    device = device_of(model)
    found = []
    for batch in task.batches(tokenizer, longest_input(model, tokenizer)):
        inputs = {**batch.inputs, **task.evaluation_labels(batch, model)}
        placed = {name: tensor.to(device) for name, tensor in task.arguments(inputs, model).items()}
        found.append({**placed, "index": torch.as_tensor(batch.index)})
    return found


def limited(batches: Sequence[Mapping[str, Tensor]], limit: int) -> list[dict[str, Tensor]]:
    """The examples that are the first so many of the task."""
    chosen = []
    for batch in batches:
        kept = batch["index"] < limit
        if bool(kept.any()):
            chosen.append({name: tensor[kept.to(tensor.device)] for name, tensor in batch.items()})
    return chosen


def read_checkpoints(
    checkpoints: Mapping[int, Path], bench: Bench, kinds: Sequence[str], study: DynamicsCheckpoints, folder: str = ""
) -> dict[int, Probes]:
    """The probes of every checkpoint by step; those that the run has are not read again.

    Parameters
    ----------
    folder : that of another run than the first, whose probes are kept under a name of its own.
    """
    run = bench.require_run()
    prefix = f"{hashlib.sha256(str(Path(folder).resolve()).encode()).hexdigest()[:12]}/" if folder else ""
    found: dict[int, Probes] = {}
    for step in track(list(checkpoints), "reading the checkpoint of step {}".format, bench.progress):
        found[step] = Probes(study, kinds, f"{prefix}{{}}/{step:06d}", checkpoints[step], bench, run)
        found[step].read()
    return found


class Probes:
    """The probes of one checkpoint, kept in the run: a file of tensors for each kind.

    Parameters
    ----------
    kinds : what to read.
    name : what each kind is kept under, with ``{}`` for the kind.
    """

    def __init__(
        self, study: DynamicsCheckpoints, kinds: Sequence[str], name: str, folder: Path, bench: Bench, run: Run
    ) -> None:
        self.study, self.kinds, self.name, self.folder, self.bench, self.run = study, kinds, name, folder, bench, run
        self.tensors: dict[str, dict[str, Any]] = {}

    def read(self) -> None:
        """Read what the run does not have."""
        digest = file_digest(self.folder / "model.safetensors") if (self.folder / "model.safetensors").is_file() else ""
        missing = []
        for kind in self.kinds:
            fields = self.run.fields(self._name(kind))
            if fields is None:
                missing.append(kind)
            elif fields.get("digest") != digest:
                raise ArtefactError(
                    f"The checkpoint {self.folder} has changed since its probes were read; remove {self.run.folder} to "
                    "read them again."
                )
            else:
                self.tensors[kind] = self.run.load_arrays(self._name(kind))
        if not missing:
            return
        place = dataclasses.replace(self.bench, model=str(self.folder))
        model = place.load_model()
        check_fit(model, self.bench.loaded_tokenizer)
        batches = labelled_batches(self.bench, model)
        for kind in missing:
            readings = self._readings(kind, model, batches)
            self.tensors[kind] = _as_tensors(readings)
            metrics = {"accuracy": probes.performance(model, batches)["acc"]} if kind == "alpha" else {}
            self.run.store(self._name(kind), metrics, fields={"digest": digest}, arrays=self.tensors[kind])

    def _readings(self, kind: str, model: Any, batches: list[dict[str, Tensor]]) -> dict[str, Readings]:
        select = self.bench.select()
        if kind == "alpha":
            return {_key(*head): one for head, one in probes.alphas(model, batches, select).items()}
        if kind == "delta":
            return {"all": probes.delta(model, batches)}
        heads = [(site, head) for site, some in select.resolve(find_sites(model)).items() for head in some]
        some = limited(batches, self.study.beta_limit)
        return {_key(*head): one for head, one in probes.betas(model, some, heads, self.study.other_heads).items()}

    def heads(self) -> list[str]:
        """The keys of the heads that were read."""
        return [name.removeprefix("scores/") for name in self.tensors["alpha"] if name.startswith("scores/")]

    def get(self, kind: str, head: str) -> Readings:
        """A probe of a head; delta is that of all."""
        tensors = self.tensors[kind]
        name = "all" if kind == "delta" else head
        scores = np.asarray(tensors[f"scores/{name}"], dtype=np.float64)
        return Readings(scores, np.asarray(tensors["lengths"]), np.asarray(tensors["sentences"]))

    def accuracy(self) -> float:
        """The accuracy of the checkpoint."""
        return self.run.metrics()[self._name("alpha")]["accuracy"]

    def _name(self, kind: str) -> str:
        return self.name.format(kind)


def _key(site: Site, head: int) -> str:
    return f"{site.role}|{site.layer}|{site.name}|{head}"


def _as_tensors(readings: Mapping[str, Readings]) -> dict[str, Tensor]:
    one = next(iter(readings.values()))
    shared = {"lengths": torch.from_numpy(one.lengths), "sentences": torch.from_numpy(one.sentences)}
    return {
        **shared,
        **{f"scores/{name}": torch.from_numpy(item.scores.astype(np.float32)) for name, item in readings.items()},
    }


def _first_part(readings: Readings, other: Readings) -> Readings:
    """The readings of the examples that the other ones have, which are the first."""
    if len(readings) == len(other):
        return readings
    predictions = len(other)
    return Readings(
        readings.scores[: int(readings.lengths[:predictions].sum())],
        readings.lengths[:predictions],
        readings.sentences[:predictions],
    )


def compare(
    study: DynamicsCheckpoints, read: Mapping[int, Probes], others: Sequence[Mapping[int, Probes]] = ()
) -> dict[str, Any]:
    """The courses of every head, and the accuracy over the checkpoints.

    Parameters
    ----------
    others : the probes of further runs at the same steps.
    """
    steps = tuple(read)
    final = read[steps[-1]]
    performances = [_accuracies(other) for other in others]
    heads = []
    for key in final.heads():
        role, layer, name, head = key.split("|")
        alpha = final.get("alpha", key)

        def course(chooser: Readings, rankers: Sequence[Readings]) -> Course:
            return Course(steps, tuple(mean_agreement(chooser, one, MATCH) for one in rankers))

        courses: dict[str, Course] = {}
        last: dict[str, ProbeAgreement] = {}
        for kind in study.probes:
            rankers = [read[step].get(kind, key) for step in steps]
            chooser = _first_part(alpha, rankers[-1])
            courses[kind] = course(chooser, rankers)
            if kind != "alpha":
                last[kind] = agree(chooser, rankers[-1], resamples=study.resamples)
        xi: dict[str, Overtaken] = {}
        if others:
            found = [course(alpha, [one.get("alpha", key) for one in other.values()]) for other in others]
            xi = {kind: overtaken(found, performances, courses[kind].maximum) for kind in last}
            courses["others"] = Course.mean(found)
        chance = float(chances(alpha).mean())
        # The last alpha agrees with itself, so that the bar comes from the checkpoints before it.
        bar = (chance + max(courses["alpha"].values[:-1])) / 2
        first = {kind: one.crossing(bar) for kind, one in courses.items()}
        heads.append(HeadCourse(name, role, int(layer), int(head), courses, first, last, chance, xi))
    return {"heads": heads, "accuracies": _accuracies(read)}


def _accuracies(read: Mapping[int, Probes]) -> Course:
    return Course(tuple(read), tuple(one.accuracy() for one in read.values()))
