"""The same probes for the heads of any model whose checkpoints were kept while it was trained."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...errors import DataError, ParameterError, shorten
from ..base import Study, register
from ..bench import Bench

if TYPE_CHECKING:
    from .checkpoint_findings import CheckpointFindings


def find_checkpoints(folder: str | Path) -> dict[int, Path]:
    """The checkpoints in a folder by step: ``step-000100`` (attrim) or ``checkpoint-100`` (``Trainer``)."""
    from ...core.paths import home_path

    place = home_path(str(folder), "folder of checkpoints")
    named = (
        (re.fullmatch(r"(?:step|checkpoint)-(\d{1,12})", path.name), path)
        for path in (place.iterdir() if place.is_dir() else ())
    )
    found = {int(match[1]): path for match, path in named if match and (path / "config.json").is_file()}
    if len(found) < 2:
        raise DataError(
            f"{place} holds {len(found) or 'no'} checkpoints named step-NUMBER or checkpoint-NUMBER, and at least 2 "
            "are needed; keep some with 'attrim train --save-every' or attrim's DynamicsCallback."
        )
    return dict(sorted(found.items()))


def _listed(found: dict[int, Path]) -> str:
    return shorten(", ".join(map(str, found)), str)


@register("dynamics-checkpoints")
@dataclass(frozen=True)
class DynamicsCheckpoints(Study):
    """Read alpha, beta and delta of every head at each checkpoint in a folder, and see which foretells the last alpha.

    MODEL is the folder that holds the checkpoints.
    """

    probes: tuple[Literal["alpha", "beta", "delta"], ...] = ("alpha", "beta", "delta")
    """What to read; beta costs a forward pass for each head and each key."""
    beta_limit: int = 64
    """Read beta on so many of the examples, from the first."""
    other_heads: Literal["as-they-are", "ablated"] = "as-they-are"
    """What the other heads of a site do while one attends to a single key."""
    other_folders: tuple[str, ...] = ()
    """Folders with the same checkpoints of further runs, such as other seeds: how far their attention agrees with the
    last one of MODEL, and when that is further than beta and delta agree with it (xi)."""
    resamples: int = 1000
    """Resamples of the intervals of agreements."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "alpha" not in self.probes or len({*self.probes}) < len(self.probes):
            raise ParameterError("--probes needs alpha, which everything is compared with, and each name once.")
        if self.beta_limit < 1 or self.resamples < 1:
            raise ParameterError("--beta-limit and --resamples must be at least 1.")
        if len({*self.other_folders}) < len(self.other_folders):
            raise ParameterError("--other-folders has each folder once.")

    def prepare(self, bench: Bench) -> Bench:
        """The bench with the last checkpoint as its model."""
        if bench.live:
            raise ParameterError("The dynamics of a training need a folder of checkpoints, not a live model.")
        found = find_checkpoints(bench.model)
        prepared: Bench = super().prepare(dataclasses.replace(bench, model=str(list(found.values())[-1])))
        others = {folder: find_checkpoints(folder) for folder in self.other_folders}
        for folder, one in others.items():
            if list(one) != list(found):
                raise DataError(
                    f"{folder} holds checkpoints of the steps {_listed(one)}, and {bench.model} of {_listed(found)}; "
                    "keep the same steps of every run."
                )
        vars(prepared)["checkpoints"], vars(prepared)["other_checkpoints"] = found, others
        return prepared

    def work(self, bench: Bench) -> CheckpointFindings:
        """Read every checkpoint that the run does not have yet, and compare."""
        from .checkpoint_runs import compare, read_checkpoints

        checkpoints: dict[int, Path] = vars(bench)["checkpoints"]
        further: dict[str, dict[int, Path]] = vars(bench)["other_checkpoints"]
        read = read_checkpoints(checkpoints, bench, self.probes, self)
        others = [read_checkpoints(one, bench, ("alpha",), self, folder) for folder, one in further.items()]
        found = compare(self, read, others)
        return self.findings()(
            folder=bench.run_folder, study=self, model=str(Path(bench.name).parent), task=bench.task_name, **found
        )

    @classmethod
    def findings(cls) -> type[CheckpointFindings]:
        """See :meth:`Study.findings`."""
        from .checkpoint_findings import CheckpointFindings

        return CheckpointFindings

    def identity(self) -> dict[str, Any]:
        """What the probes depend on; how they are compared does not."""
        return {"beta_limit": self.beta_limit, "other_heads": self.other_heads}
