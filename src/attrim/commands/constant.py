"""``attrim constant``: how many heads can be replaced by one fixed matrix, in which order, and what a probe loses."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import ParameterError
from ..training.recipe import ProbeRecipe
from .base import Outcome
from .training import OnTraining

if TYPE_CHECKING:
    from rich.table import Table

    from ..studies.constant import Design, Findings


@dataclass(kw_only=True)
class Constant(OnTraining, ProbeRecipe):
    """Replace more and more heads of a frozen model by a fixed matrix, and see what a probe loses."""

    output: Path = Path("runs")
    """Folder of runs; a study that was interrupted goes on, and other budgets and so on are added to the same run."""
    layout: Literal["grid", "papa"] = "grid"
    """Fixed slots for the tokens: corrected, or as in the paper."""
    max_length: int | None = 64
    """Slots of a text."""
    budgets: tuple[str, ...] = ("0", "1/2", "7/8", "15/16", "all")
    """How many heads are constant: numbers, shares or all."""
    families: tuple[str, ...] = ("average",)
    """What they are replaced by: average, offset, uniform, identity, previous, next, random, learned."""
    orders: tuple[str, ...] = ("lambdas",)
    """Which heads come first: lambdas, divergence, gradient, random."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """A probe for each of them."""
    seed: int = 123
    """Chooses the examples."""
    order_epochs: float = 2.0
    """Passes over the training data for lambdas (the paper: as many as for the probe)."""
    lambda_rate: float = 1e-2
    """Learning rate of lambdas (the paper: that of the probe)."""
    score_batches: int = 32
    """Batches of training data for the other orders."""
    as_coded: bool = False
    """Train as the released code, with the model's dropout and one learning rate; many times slower."""
    until: Literal["average", "order", "probe"] = "probe"
    """The last step to do; steps that are done are not repeated."""
    batch_size: int = 16
    """Examples a step, and a forward pass."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number type of the computation."""
    formats: tuple[Literal["png", "svg", "pdf"], ...] = ("png", "svg", "pdf")
    """Formats of the figures."""

    def run(self) -> Outcome:
        """Load everything, run the study and show what it found."""
        from ..studies.constant import constant

        if self.select_roles or self.select_layers or self.select_heads or self.select_names:
            raise ParameterError(
                "The constant study orders all heads of a model and takes no --select flags; leave them out, and say "
                "with --budgets how many heads become constant."
            )
        design = self.design()
        training, validation = (dataclasses.replace(task, layout=self.layout) for task in self.tasks())
        model, tokenizer = self.load_model(), self.load_tokenizer()
        found = constant(
            model,
            training,
            validation,
            tokenizer,
            design,
            until=self.until,
            formats=self.formats,
            identity={"model": self.model, "revision": self.revision, "dtype": self.dtype},
            output=self.output,
            progress=self.progress,
        )
        shown: list[Any] = [_facts(found)]
        if found.rows:
            shown += [
                results_table(found, f"{self.model} on {self.task}, {len(design.seeds)} seeds"),
                *found.sentences(),
            ]
        shown += [
            f"  {one} and {other}: rank correlation rho {rho:+.2f}, tau {tau:+.2f}"
            for one, other, rho, tau in (found.correlation.rows() if found.correlation else [])
        ]
        pictures = [f"  {path}" for path in found.figures if path.suffix == f".{self.formats[0]}"]
        shown += [f"Figures ({', '.join(self.formats)}):", *pictures] if pictures else []
        return Outcome(self._data(found), [*shown, f"Everything is in {found.folder}"])

    def design(self) -> Design:
        """What the flags describe."""
        from ..studies.constant import Design

        recipe = {item.name: getattr(self, item.name) for item in dataclasses.fields(ProbeRecipe)}
        same = ("budgets", "families", "orders", "seeds", "lambda_rate", "score_batches", "as_coded")
        return Design(
            **{name: getattr(self, name) for name in same},
            recipe=ProbeRecipe(**{**recipe, "seed": self.seeds[0] if self.seeds else 0}),
            order_epochs=None if self.as_coded else self.order_epochs,
        )

    def _data(self, found: Findings) -> dict[str, Any]:
        return {
            "model": self.model,
            "folder": str(found.folder),
            "metric": found.metric,
            "averages": found.averages.summary(),
            "orders": {name: scores.to_json() for name, scores in found.orders.items()},
            "correlation": [list(row) for row in found.correlation.rows()] if found.correlation else [],
            "rows": [row.to_json() for row in found.rows],
            "figures": [str(path) for path in found.figures],
        }


def _facts(found: Findings) -> str:
    facts = found.averages.summary()
    text = f"Average attention: {100 * facts['unseen_share']:.1f} % of the cells were never seen"
    if "half_correlation" in facts:
        text += (
            f"; two halves of the data correlate by {facts['half_correlation']:.4f} "
            f"(lowest head {facts['lowest_half_correlation']:.4f})"
        )
    return f"{text}."


def results_table(found: Findings, title: str) -> Table:
    """One row for each setting."""
    from rich.table import Table

    table = Table("family", "order", "budget", "heads", found.metric, "seeds", "drop, % of the baseline", title=title)
    for row in found.rows:
        table.add_row(
            row.setting.family,
            row.setting.order,
            row.setting.label,
            str(len(row.setting.heads)),
            f"{row.score:.2f}",
            ", ".join(f"{score:.2f}" for score in row.scores),
            "" if row.drop is None else str(row.drop),
        )
    return table
