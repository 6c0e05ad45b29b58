"""``attrim sparsity``: how attention is distributed, how much of it can be zeroed, how few levels the rest needs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import UseAppendAction

from ..errors import ParameterError
from .base import OnData, Outcome

if TYPE_CHECKING:
    from ..studies.sparsity import Findings, Setting, Sweep


@dataclass(kw_only=True)
class Sparsity(OnData):
    """Measure a model's attention, threshold and quantise it at several levels, and compare with controls."""

    output: Path = Path("runs")
    """Folder of runs; a study that was interrupted goes on, and new settings are added to the same run."""
    bars: tuple[float, ...] = (1e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1)
    """Thresholds: weights that are not above the bar become zero."""
    relative_to: Literal["one", "uniform", "row-maximum"] = "one"
    """What the bars are a multiple of."""
    renormalize: bool = False
    """Divide each row by what a threshold leaves of it."""
    target: float = 0.8
    """Also try the threshold that zeroes about this share of the weights; 0 leaves it out."""
    methods: tuple[str, ...] = (
        "linear-slinear-midval",
        "linear-slinear-clamped-midval",
        "linear-slog-midval",
        "linear-slog-clamped-midval",
        "binarization",
    )
    """Quantising methods, with options as in linear-slog,prune=0.01 (docs/quantize.md)."""
    bits: tuple[int, ...] = (2, 3, 4, 8)
    """Numbers of bits to try each method with."""
    as_coded: bool = False
    """Quantise as the paper's released functions do, oddities included."""
    prunes: tuple[float, ...] = ()
    """Pruning constants to try with --prune-method and --prune-bits."""
    prune_method: str = "linear-slog-clamped-midval"
    """The method whose pruning constant is varied."""
    prune_bits: int = 3
    """Its number of bits."""
    hidden_bars: tuple[float, ...] = ()
    """Thresholds for hidden states."""
    hidden_bits: tuple[int, ...] = ()
    """Numbers of bits for hidden states."""
    hidden_method: Literal["fixed-point", "linear", "log"] = "fixed-point"
    """How hidden states are quantised."""
    edit: UseAppendAction[tuple[str, ...]] = ()
    """Further row of the table, as in attrim evaluate (repeatable)."""
    layer_edit: str = ""
    """An edit to try in every layer alone, such as threshold:0.01."""
    no_controls: bool = False
    """Leave out attention off, uniform attention, and random drop at the sparsity of each threshold."""
    no_scores: bool = False
    """Only measure and draw; evaluate nothing."""
    parts: tuple[Literal["tokens", "distances", "hidden", "matrices"], ...] = ("tokens", "distances")
    """What to measure beside the weights: sparsity of tokens, JS distances, hidden states and probes, heat maps."""
    row_bar: float = 1e-3
    """Row and token sparsity count the weights that are not above it (the paper: 1e-8)."""
    show_heads: tuple[str, ...] = ()
    """Heads to draw in figures of their own, such as 0/2 for head 2 of layer 0."""
    examples: int = 3
    """Single examples that get a table and a figure of their tokens' sparsity."""
    compare: tuple[Path, ...] = ()
    """Folders of earlier runs of this command, to draw beside this one."""
    formats: tuple[Literal["png", "svg", "pdf"], ...] = ("png", "svg", "pdf")
    """Formats of the figures."""

    def run(self) -> Outcome:
        """Load everything, run the study and show what it found."""
        from ..studies.sparsity import check_row_bar, sparsity
        from .tables import CAPTION, results_table, shares_table

        check_row_bar(self.row_bar)
        sweep, heads = self.sweep(), [parse_head(text) for text in self.show_heads]
        task = self.load_task()
        model, tokenizer = self.load_model(task.kind), self.load_tokenizer()
        self.check_stats([*self.edit, *filter(None, [self.layer_edit])], model, tokenizer)
        found = sparsity(
            model,
            task,
            tokenizer,
            sweep,
            parts=self.parts,
            evaluate=not self.no_scores,
            row_bar=self.row_bar,
            heads=heads,
            examples=self.examples,
            compare=self.compare,
            formats=self.formats,
            identity={"model": self.model, "revision": self.revision, "dtype": self.dtype},
            output=self.output,
            progress=self.progress,
        )
        shown: list[Any] = [shares_table(found.histogram, f"{self.model}: how small the attention weights are")]
        shown += [layers_table(found), *([distances_table(found)] if "distances" in found.stats else [])]
        if found.results:
            names = {item.name: display(item) for item in found.settings}
            examples = found.results["unedited"].to_json()["examples"]
            title = f"{self.model} on {self.task}, {examples} examples"
            shown += [results_table(found.results, title, names), CAPTION]
        pictures = [f"  {path}" for path in found.figures if path.suffix == f".{self.formats[0]}"]
        shown += ["", f"Figures ({', '.join(self.formats)}):", *pictures]
        shown += ["Tables:", *(f"  {path}" for path in found.tables), f"Results are in {found.folder}", ""]
        shown += [claim.sentence for claim in found.claims]
        return Outcome(self._data(found), shown)

    def sweep(self) -> Sweep:
        """The settings that the flags describe."""
        from ..studies.sparsity import Sweep

        same = ("bars", "relative_to", "renormalize", "methods", "bits", "as_coded", "prunes", "prune_method",
                "prune_bits", "hidden_bars", "hidden_bits", "hidden_method", "layer_edit")  # fmt: skip
        return Sweep(
            **{name: getattr(self, name) for name in same},
            target=self.target or None,
            edits=self.edit,
            controls=not self.no_controls,
            select=self.select(),
        )

    def _data(self, found: Findings) -> dict[str, Any]:
        return {
            "model": self.model,
            "folder": str(found.folder),
            "shares": found.histogram.shares(),
            "layers": found.layers(),
            "distances": found.distances(),
            "settings": {item.name: {"group": item.group, "value": item.value} for item in found.settings},
            "results": {name: result.to_json() for name, result in found.results.items()},
            "claims": [claim.to_json() for claim in found.claims],
            "figures": [str(path) for path in found.figures],
            "tables": [str(path) for path in found.tables],
        }


def display(setting: Setting) -> str:
    """What the table calls a setting; the long names of methods need the room."""
    return f"control: {setting.label}" if setting.label else setting.name.removeprefix("quantize:")


def parse_head(text: str) -> tuple[int, int]:
    """``5/11`` as layer 5 and head 11."""
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if match is None:
        raise ParameterError(f"A head to show is written LAYER/HEAD, such as 5/11, not {text!r}.")
    return int(match[1]), int(match[2])


def layers_table(found: Findings) -> Any:
    """What single rows are like, one row of the table for each layer."""
    from rich.table import Table

    columns = found.layers()
    table = Table("role", "layer", *columns, title="Query rows, mean over the heads of each layer")
    for place, site in enumerate(found.histogram.sites):
        table.add_row(site.role, str(site.layer), *(f"{values[place]:.3g}" for values in columns.values()))
    return table


def distances_table(found: Findings) -> Any:
    """How far quantised rows are from the original ones."""
    from rich.table import Table

    table = Table("edit", "JS distance", "row sum", title="Quantised against original rows, mean over rows and heads")
    for edit, facts in found.distances().items():
        table.add_row(edit, f"{facts['distance']:.4f}", f"{facts['row_sum']:.3f}")
    return table
