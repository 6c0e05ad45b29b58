"""``attrim export``: one head's numbers as words for a hardware test bench."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import UseAppendAction

from .base import OnModel, Outcome


@dataclass(kw_only=True)
class Export(OnModel):
    """Write query, key, value, scores, weights and output of one head as hexadecimal words.

    Choose the head with --select-layers and --select-heads.
    """

    text: str
    """The text that the model reads."""
    output: Path
    """Folder to write to."""
    format: str = "float32"
    """float32, or fixed point such as q8.8 (8 integer bits with the sign, 8 fraction bits)."""
    edit: UseAppendAction[tuple[str, ...]] = ()
    """Edits that are active meanwhile, in order (repeatable)."""

    def run(self) -> Outcome:
        """Run the text through the model and write the files."""
        from rich.table import Table

        from ..edits import parse_edit
        from ..export import export_head
        from ..loading import check_fit

        edits = [parse_edit(text) for text in self.edit]
        model, tokenizer = self.load_model(), self.load_tokenizer()
        self.check_stats(self.edit, model, tokenizer)
        check_fit(model, tokenizer)
        inputs = {name: value.to(self.device) for name, value in tokenizer(self.text, return_tensors="pt").items()}
        tensors = export_head(model, inputs, self.select(), self.output, self.format, edits)
        table = Table("file", "rows x columns", title=f"{self.model}: {self.format} words of one head")
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        for name, shape in shapes.items():
            table.add_row(str(self.output / f"{name}.hex"), " x ".join(map(str, shape)))
        return Outcome({"folder": str(self.output), "format": self.format, "shapes": shapes}, [table])
