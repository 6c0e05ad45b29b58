"""The dynamics studies: how attention learns to point (Snell et al. 2021, https://arxiv.org/abs/2103.07601).

A network first learns, with attention that is still even, which input word implies which output (beta). Only then does
more weight on that word lower the loss, and attention (alpha) follows. Each experiment is a study of its own, written
as two words on the command line: ``attrim dynamics copy``.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...errors import ParameterError
from ..base import Study, register
from ..bench import RunKeeper

if TYPE_CHECKING:
    from .copying import Training
    from .copying_findings import CopyFindings, MultiheadFindings
    from .generated import Copying

Intervention = Literal["none", "uniform", "uniform-first", "taught", "supervised"]


@dataclass(frozen=True)
class GeneratedBench(RunKeeper):
    """A bench for studies that make their networks and their data themselves."""

    _: KW_ONLY
    workers: int | None = None
    """Trainings at a time, each with one thread (default: one for each core)."""
    output: Path | None = Path("runs")
    """Folder of runs; work that was interrupted resumes there."""
    quiet: bool = False
    """Show no progress, only the result."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ParameterError(f"There must be at least one worker, not {self.workers}.")

    @cached_property
    def processes(self) -> int:
        """How many trainings run at a time."""
        from .pool import cores

        return self.workers or cores()


def parse_condition(text: str) -> Copying:
    """The data that ``24-of-36`` or ``24-of-24-repeated`` means."""
    from .generated import Copying

    found = re.fullmatch(r"(\d{1,5})-of-(\d{1,5})(-repeated)?", text.strip())
    if found is None:
        raise ParameterError(
            f"A condition of copying is LENGTH-of-SYMBOLS, such as 24-of-36, or 24-of-24-repeated, not {text!r}."
        )
    return Copying(int(found[2]), int(found[1]), found[3] is not None)


@dataclass(frozen=True)
class CopyingStudy(Study):
    """What the two experiments on copying share."""

    bench: ClassVar[type[RunKeeper]] = GeneratedBench

    steps: int = 200
    """Updates of each training."""
    hidden_dim: int = 64
    """Size of the network (the paper: 256)."""
    batch_size: int = 64
    """Sequences a step, fresh ones each time (the paper: 128)."""
    learning_rate: float = 1e-3
    """Learning rate of Adam, constant."""
    save_every: int = 10
    """Steps between evaluations; step 0 and the last one are always evaluated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "hidden_dim", "batch_size", "learning_rate", "save_every"):
            if not 0 < getattr(self, name) < 10**9:
                raise ParameterError(f"--{name.replace('_', '-')} must be above 0, not {getattr(self, name)}.")
        if self.save_every > self.steps:
            raise ParameterError(f"An evaluation every {self.save_every} steps is past the last of {self.steps} steps.")

    def _training(self, data: Copying, **options: Any) -> Training:
        from .copying import Training

        shared = {name: getattr(self, name) for name in ("steps", "hidden_dim", "batch_size", "learning_rate")}
        return Training(**{"data": data, "evaluate_every": self.save_every, **shared, **options})

    def _shared_identity(self) -> dict[str, Any]:
        names = ("steps", "hidden_dim", "batch_size", "learning_rate", "save_every")
        return {name: getattr(self, name) for name in names}


@register("dynamics-copy")
@dataclass(frozen=True)
class DynamicsCopy(CopyingStudy):
    """Train networks to copy sequences whose symbols do, or do not, tell which output goes with which input."""

    conditions: tuple[str, ...] = ("24-of-24", "24-of-36", "24-of-24-repeated")
    """Data as LENGTH-of-SYMBOLS, without repetition unless it ends in -repeated (the paper: 40-of-40, 40-of-60)."""
    ratios: tuple[float, ...] = ()
    """Further conditions by their co-occurrence ratio, with the length of the first condition: 1 is a permutation."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)
    """One training each, of every condition and intervention."""
    interventions: tuple[Intervention, ...] = ("none",)
    """What is done to attention: nothing; uniform throughout; uniform for the first steps (--uniform-steps); knowledge
    of single symbols taught before (--taught-steps); supervised by the right symbol (--supervision)."""
    uniform_steps: int = 50
    """For uniform-first: steps with uniform attention."""
    taught_steps: int = 100
    """For taught: steps with uniform attention on sequences with repetition before the training itself."""
    supervision: float = 0.5
    """For supervised: weight of the penalty on the distance of attention from the right symbol."""
    bidirectional: bool = False
    """Let the encoder read backwards too (--bi of the released code)."""
    no_context: bool = False
    """Keep the context from the decoder: what can be learnt without attention."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("conditions", "seeds", "interventions"):
            given = getattr(self, name)
            if not given or len({*given}) < len(given):
                raise ParameterError(f"--{name} needs at least one entry, each of them once, not {list(given)}.")
        if "uniform-first" in self.interventions and not 0 < self.uniform_steps < self.steps:
            raise ParameterError(f"--uniform-steps must be from 1 to {self.steps - 1}, not {self.uniform_steps}.")
        if "taught" in self.interventions and self.taught_steps < 1:
            raise ParameterError(f"--taught-steps must be at least 1, not {self.taught_steps}.")
        if "supervised" in self.interventions and not 0 < self.supervision < 10**9:
            raise ParameterError(f"--supervision must be above 0, not {self.supervision}.")
        self.data()

    def data(self) -> dict[str, Copying]:
        """The data of each condition, by name."""
        from .generated import Copying

        found = {condition: parse_condition(condition) for condition in self.conditions}
        length = next(iter(found.values())).seq_length
        for ratio in self.ratios:
            symbols = round(ratio * (length - 1)) + 1
            if symbols < length:
                raise ParameterError(f"A co-occurrence ratio without repetition is at least 1, not {ratio}.")
            found.setdefault(f"{length}-of-{symbols}", Copying(symbols, length))
        return found

    def trainings(self) -> dict[str, Training]:
        """Every training under the name that its result is stored under."""
        found = {}
        for condition, data in self.data().items():
            for intervention in self.interventions:
                changes = self._changes(intervention)
                named = ",".join([intervention, *(f"{value:g}" for value in changes.values() if value != -1)])
                for seed in self.seeds:
                    options = {"seed": seed, "bidirectional": self.bidirectional, "context": not self.no_context}
                    found[f"{condition}/{named}/{seed}"] = self._training(data, **options, **changes)
        return found

    def _changes(self, intervention: Intervention) -> dict[str, Any]:
        """What an intervention changes in a training."""
        every: dict[Intervention, dict[str, Any]] = {
            "none": {},
            "uniform": {"uniform_steps": -1},
            "uniform-first": {"uniform_steps": self.uniform_steps},
            "taught": {"taught": self.taught_steps},
            "supervised": {"supervise": self.supervision},
        }
        return every[intervention]

    def identity(self) -> dict[str, Any]:
        """How networks are trained; conditions, interventions and seeds only say what to try."""
        return {**self._shared_identity(), "bidirectional": self.bidirectional, "no_context": self.no_context}

    def work(self, bench: GeneratedBench) -> CopyFindings:
        """Train what the run does not have yet."""
        from .copying_runs import train_all

        courses = train_all(self.trainings(), bench)
        ratios = {condition: data.ratio for condition, data in self.data().items()}
        return self.findings()(
            folder=bench.run_folder,
            study=self,
            model="recurrent copier",
            task="copying",
            courses=courses,
            ratios=ratios,
        )

    @classmethod
    def findings(cls) -> type[CopyFindings]:
        """See :meth:`Study.findings`."""
        from .copying_findings import CopyFindings

        return CopyFindings


@register("dynamics-multihead")
@dataclass(frozen=True)
class DynamicsMultihead(CopyingStudy):
    """Screen heads that do and do not learn to copy permutations, and see what one good head does among seven bad."""

    condition: str = "24-of-24"
    """Data as LENGTH-of-SYMBOLS, without repetition unless it ends in -repeated (the paper: 40-of-40)."""
    base_seed: int = 0
    """Draws everything of the networks but their heads, and the heads by their numbers."""
    data_seeds: tuple[int, ...] = (0, 1, 2)
    """A head is good or bad only if trainings with all of these agree."""
    good: int = 1
    """Stop screening when there are so many good heads, and so many bad ones as --bad says (the paper: 20 of each)."""
    bad: int = 8
    """See --good; at least 8."""
    most_heads: int = 40
    """Screen so many heads at most."""
    heads: int = 8
    """Heads of the networks that are compared."""
    combinations: int = 4
    """Networks of each kind: all bad, one good among bad, and random heads (the paper: 50)."""
    arm_steps: int = 300
    """Updates of these networks (the paper, with larger ones: 200)."""
    evaluate_on: int = 400
    """Sequences of an evaluation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data_seeds or len({*self.data_seeds}) < len(self.data_seeds):
            raise ParameterError("--data-seeds needs at least one number, each of them once.")
        if self.heads < 2 or self.good < 1 or self.bad < self.heads or self.combinations < 1:
            raise ParameterError(
                f"Networks of {self.heads} heads need at least 2 heads, 1 good one, {self.heads} bad ones and 1 "
                "combination."
            )
        if self.most_heads < self.good + self.bad:
            raise ParameterError(
                f"--most-heads must be at least {self.good + self.bad}, for the good and the bad ones."
            )
        parse_condition(self.condition)

    def identity(self) -> dict[str, Any]:
        """How networks are trained; the numbers of heads and combinations only say how many."""
        names = ("condition", "base_seed", "data_seeds", "heads", "arm_steps", "evaluate_on")
        return {**self._shared_identity(), **{name: _plain(getattr(self, name)) for name in names}}

    def single(self, head: int, data_seed: int) -> Training:
        """The training that screens a head."""
        return self._headed((head,), data_seed, self.steps, stop=True)

    def several(self, heads: tuple[int, ...]) -> Training:
        """The training of a network with several heads."""
        return self._headed(heads, self.data_seeds[0], self.arm_steps)

    def _headed(self, heads: tuple[int, ...], data_seed: int, steps: int, *, stop: bool = False) -> Training:
        from .copying import GOOD

        options = {"heads": heads, "data_seed": data_seed, "steps": steps, "evaluate_on": self.evaluate_on}
        return self._training(
            parse_condition(self.condition), seed=self.base_seed, **options, **({"stop": GOOD} if stop else {})
        )

    def work(self, bench: GeneratedBench) -> MultiheadFindings:
        """Screen heads, then compare the three kinds of networks."""
        from .copying_runs import compare_arms, screen

        screened = screen(self, bench)
        return self.findings()(
            folder=bench.run_folder,
            study=self,
            model="recurrent copier with several heads",
            task="copying",
            screened=screened,
            arms=compare_arms(self, screened, bench),
        )

    @classmethod
    def findings(cls) -> type[MultiheadFindings]:
        """See :meth:`Study.findings`."""
        from .copying_findings import MultiheadFindings

        return MultiheadFindings


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
