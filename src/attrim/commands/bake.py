"""``attrim bake``: edits made permanent, in a model folder of its own."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import UseAppendAction

from .base import OnModel, Outcome

if TYPE_CHECKING:
    from rich.table import Table

    from ..bake import Cost


@dataclass(kw_only=True)
class Bake(OnModel):
    """Make edits permanent: weights that constant and switched-off heads do not need leave the model."""

    edit: UseAppendAction[tuple[str, ...]]
    """An edit to bake (repeatable, in order): constant:FOLDER, gate:0,heads=0/3+5/11, gate:0.5,layers=2."""
    output: Path
    """Folder to write the new model to."""
    kind: str = "saved"
    """Which head the model is loaded with: saved (the one it was saved with), auto, sequence-classification, ..."""
    length: int | None = None
    """Number of tokens of the text whose operations are counted (default: 128, or as many as the constants cover)."""

    def run(self) -> Outcome:
        """Load, bake, save, and count what it costs before and after."""
        from ..bake import bake, cost
        from ..bake.costs import longest
        from ..errors import ArtefactError
        from ..loading import quiet, saved_kind
        from ..studies.settings import parse_settings

        settings = parse_settings(self.edit, self.select())
        kind = saved_kind(self.model, **self.source_options()) if self.kind == "saved" else self.kind
        model = self.load_model(kind)
        baked = bake(model, *(edit for edits in settings.values() for edit in edits))
        notes = [f"The model is in {self.output}; load it with attrim.load, or give the folder to any attrim command."]
        if self.output.is_file():
            raise ArtefactError(f"{self.output} is a file; give a folder with --output.")
        with quiet():
            baked.save_pretrained(self.output)
        try:
            self.load_tokenizer().save_pretrained(self.output)
        except ArtefactError:
            notes.append("The model came without a tokenizer, so none is saved.")
        length = self.length or min(128, longest(baked) or 128)
        before, after = cost(model, length), cost(baked, length)
        counts = {"before": dataclasses.asdict(before), "after": dataclasses.asdict(after)}
        data = {"model": self.model, "edits": list(self.edit), "folder": str(self.output), "length": length}
        return Outcome(data | counts, [_table(before, after, f"{self.model}, baked, {length} tokens"), *notes])


def _table(before: Cost, after: Cost, title: str) -> Table:
    from rich.table import Table

    table = Table("", "before", "after", "after / before", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for name in ("parameters", "constants", "flops"):
        old, new = getattr(before, name), getattr(after, name)
        table.add_row(name, f"{old:,}", f"{new:,}", f"{new / old:.3f}" if old else "")
    return table
