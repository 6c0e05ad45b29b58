"""``attrim export``: the numbers of one head, or of a tensor, as words for a hardware test bench."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from ..errors import ParameterError
from ..studies.bench import Source
from .base import Chain, Command, Outcome, register

if TYPE_CHECKING:
    from torch import Tensor

    from ..edits import Edit


@register("export")
@dataclass(frozen=True, kw_only=True)
class Export(Command, Source):
    """Write query, key, value, scores, weights and output of one head, or one tensor, as hexadecimal words.

    Choose the head with --select-layers and --select-heads. A quantize edit with a fixed codebook adds the codebook
    and the codes.
    """

    model: Positional[Annotated[Any, arg(metavar="MODEL", constructor=str)]] = ""
    """Hub name, local folder, or built-in name (attrim ls models); not with --tensor."""
    text: str = ""
    """The text that the model reads."""
    tensor: str | None = None
    """Export this tensor instead of a head: FILE.safetensors:NAME, or FILE.safetensors if it holds one tensor."""
    output: Path
    """Folder to write to."""
    format: str = "float32"
    """float32, or fixed point such as q8.8 (8 integer bits with the sign, 8 fraction bits)."""
    edit: Chain = ()
    """Edits that are switched on meanwhile, several in order with then; a tensor takes one quantize edit."""

    def run(self) -> Outcome:
        """Write the files."""
        from rich.table import Table

        from ..core.text import parse_one_chain

        edits = parse_one_chain(self.edit)
        tensors = self._head(edits) if self.tensor is None else self._tensor(self.tensor, edits)
        what = f"{self.model}: {self.format} words of one head" if self.tensor is None else f"{self.format} words"
        table = Table("file", "rows x columns", title=what)
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        for name, shape in shapes.items():
            table.add_row(str(self.output / f"{name}.hex"), " x ".join(map(str, shape)))
        return Outcome({"folder": str(self.output), "format": self.format, "shapes": shapes}, [table])

    def _head(self, edits: list[Edit]) -> dict[str, Tensor]:
        """Run the text through the model."""
        from ..export import export_head
        from ..models.loading import check_fit

        if not self.model or not self.text:
            raise ParameterError(
                "Give MODEL and --text to export a head, or --tensor FILE.safetensors:NAME to export a tensor."
            )
        model, tokenizer = self.loaded_model, self.loaded_tokenizer
        self.check_stats(self.edit)
        check_fit(model, tokenizer)
        inputs = {name: value.to(self.device) for name, value in tokenizer(self.text, return_tensors="pt").items()}
        return export_head(model, inputs, self.select(), self.output, self.format, edits)

    def _tensor(self, source: str, edits: list[Edit]) -> dict[str, Tensor]:
        """Read the tensor from its file."""
        from ..export import export_tensor, read_tensor

        if self.model or self.text or self.select_roles or self.select_layers or self.select_heads or self.select_names:
            raise ParameterError("--tensor exports a tensor of a file; leave out MODEL, --text and --select-... .")
        tensor, about = read_tensor(source)
        return export_tensor(tensor, self.output, self.format, edits, about)
