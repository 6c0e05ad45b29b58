"""``attrim sites``: a table of the model's attention."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from .base import OnModel, Outcome


@dataclass(kw_only=True)
class Sites(OnModel):
    """List every attention computation of a model: where it is, its role, its heads and how it is reached."""

    kind: str = "auto"
    """Which head the model is loaded with: auto, sequence-classification, causal-lm, seq2seq-lm, ..."""

    def run(self) -> Outcome:
        """Load the model and find its sites."""
        from rich.table import Table

        from ..attention.discover import find_sites

        model = self.load_model(self.kind)
        chosen = self.select().resolve(find_sites(model))
        table = Table("site", "role", "layer", "heads", "route", title=f"{self.model} ({type(model).__name__})")
        for site, heads in chosen.items():
            picked = str(site.heads) if len(heads) == site.heads else ", ".join(map(str, heads))
            table.add_row(site.name, site.role, str(site.layer), picked, site.route)
        total = sum(len(heads) for heads in chosen.values())
        rows = [{**dataclasses.asdict(site), "chosen": list(heads)} for site, heads in chosen.items()]
        data = {"model": self.model, "class": type(model).__name__, "sites": rows, "heads": total}
        return Outcome(data, [table, f"{len(chosen)} sites, {total} heads"])
