"""Step 3 of the constant study: make heads constant, train a probe, evaluate it; once for each seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...attention.context import edit
from ...core.registry import FAMILIES
from ...edits.base import Edit
from ...edits.constant import Constant
from ...edits.families import constant_edits
from ...evaluation import evaluate
from ...probing.hidden_states import CachedStates, extract, remove_features
from ...probing.probe import Probe, load_probe, make_probe, save_probe
from ...probing.probed import Probed, train_probed
from ...probing.trainer import evaluate_probe, train_probe
from ...runs.result import Result
from ...runs.run import Run
from ...tasks import Task
from ...training.recipe import ProbeRecipe
from .design import Design, Setting


@dataclasses.dataclass(frozen=True)
class Probing:
    """What every setting is tried with.

    Attributes
    ----------
    training, validation : the same task with its training and its validation data.
    """

    run: Run
    design: Design
    model: nn.Module
    training: Task
    validation: Task
    tokenizer: Any
    progress: bool = False

    def results(self, setting: Setting, constants: Mapping[str, Tensor]) -> list[Result]:
        """A result for each seed, from the run or computed now and kept there."""
        missing = [seed for seed in self.design.seeds if Result.load(self.run, self._name(setting, seed)) is None]
        if missing:
            learned = bool(setting.heads) and FAMILIES[setting.family].trained
            if learned or self.design.as_coded or not self.training.trains_as_evaluated:
                for seed in missing:
                    self._with_model(setting, constants, seed, learned)
            else:
                self._on_features(setting, constant_edits(constants, setting.heads), missing)
        found = [Result.load(self.run, self._name(setting, seed)) for seed in self.design.seeds]
        return [result for result in found if result is not None]

    def probe(self, setting: Setting) -> Probe:
        """The trained probe of the first seed."""
        return load_probe(self._folder(setting, self.design.seeds[0]), self.model)[0]

    def probed(self, probe: Probe, **options: Any) -> Probed:
        """The model with a probe, which answers like a model with a head."""
        return Probed(self.model, probe, names=getattr(self.training, "labels", ()), **options)

    def _on_features(self, setting: Setting, edits: Sequence[Edit], seeds: Sequence[int]) -> None:
        """The frozen model runs once; every epoch of every seed reads its hidden states."""
        with self._features(self.training, edits) as training, self._features(self.validation, edits) as validation:
            for seed in seeds:
                probe, recipe = self._start(seed)
                epochs = train_probe(
                    training,
                    probe,
                    self.training,
                    recipe,
                    validation=(validation, self.validation),
                    folder=self._checkpoints(setting, seed),
                    progress=self.progress,
                )
                self._keep(setting, seed, probe, evaluate_probe(validation, probe, self.validation), epochs)

    def _with_model(self, setting: Setting, constants: Mapping[str, Tensor], seed: int, learned: bool) -> None:
        """The model runs in every step: for trained constants, the dropout of the released code, and masked tokens."""
        probe, recipe = self._start(seed)
        options: dict[str, Any] = {"as_coded": self.design.as_coded}
        edits: Sequence[Edit] = constant_edits(constants, setting.heads)
        probed = self.probed(probe, **options, **({"trained": "constants", "constants": constants} if learned else {}))
        if learned:
            assert probed.constants is not None
            edits = (Constant(probed.constants.by_site(), heads=setting.heads, train_constants=True),)
        folder = self._checkpoints(setting, seed)
        train_probed(probed, self.training, self.tokenizer, recipe, edits, folder=folder, progress=self.progress)
        with edit(probed, *edits) if edits else nullcontext():
            result = evaluate(probed, self.validation, self.tokenizer)
        self._keep(setting, seed, probe, result, [])

    def _start(self, seed: int) -> tuple[Probe, ProbeRecipe]:
        """A new probe and how to train it, both as the seed says."""
        recipe = dataclasses.replace(self.design.recipe, seed=seed)
        return make_probe(self.model, self.training, seed=seed), recipe

    @contextmanager
    def _features(self, task: Task, edits: Sequence[Edit]) -> Iterator[CachedStates]:
        """The hidden states of a task; those that went to a file are removed afterwards, for they are large."""
        folder = self.run.folder / "features" / ("training" if task is self.training else "validation")
        yield extract(self.model, task, self.tokenizer, edits, folder=folder)
        remove_features(folder)

    def _keep(
        self, setting: Setting, seed: int, probe: Probe, result: Result, epochs: Sequence[Mapping[str, float]]
    ) -> None:
        about = {"family": setting.family, "order": setting.order, "heads": [list(head) for head in setting.heads]}
        save_probe(probe, self._folder(setting, seed), {**about, "seed": seed})
        name = self._name(setting, seed)
        for number, metrics in enumerate(epochs, start=1):
            self.run.store(f"{name}/epoch-{number:03d}", metrics)
        result.store(self.run, name)  # last: a seed that the run knows is complete
        remove_features(self._checkpoints(setting, seed))

    def _name(self, setting: Setting, seed: int) -> str:
        return f"{setting.name}/seed-{seed}"

    def _folder(self, setting: Setting, seed: int) -> Path:
        return self.run.folder / "probes" / self._name(setting, seed).replace("/", "-")

    def _checkpoints(self, setting: Setting, seed: int) -> Path:
        return self.run.folder / "checkpoints" / self._name(setting, seed).replace("/", "-")
