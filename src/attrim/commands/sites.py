"""``attrim sites``: where a model's attention is."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ..core.wording import counted
from ..studies.bench import Source
from .base import Command, Outcome, register


@register("sites")
@dataclass(frozen=True, kw_only=True)
class Sites(Command, Source):
    """List the attention sites of a model: name, role, layer, heads and route."""

    def run(self) -> Outcome:
        """Load the model and find its sites."""
        from rich.table import Table

        from ..attention.discover import find_sites

        model = self.loaded_model
        chosen = self.select().resolve(find_sites(model))
        table = Table("site", "role", "layer", "heads", "route", title=f"{self.name} ({type(model).__name__})")
        for site, heads in chosen.items():
            picked = str(site.heads) if len(heads) == site.heads else ", ".join(map(str, heads))
            table.add_row(site.name, site.role, str(site.layer), picked, site.route)
        total = sum(len(heads) for heads in chosen.values())
        rows = [{**dataclasses.asdict(site), "chosen": list(heads)} for site, heads in chosen.items()]
        data = {"model": self.name, "class": type(model).__name__, "sites": rows, "heads": total}
        return Outcome(data, [table, f"{counted(len(chosen), 'site')}, {counted(total, 'head')}"])
