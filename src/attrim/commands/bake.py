"""``attrim bake``: edits made permanent, in a model folder of its own."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.wording import counted
from ..studies.bench import Source
from .base import Chain, Command, Outcome, register

if TYPE_CHECKING:
    from rich.table import Table

    from ..baking import Cost, Speed


@register("bake")
@dataclass(frozen=True, kw_only=True)
class Bake(Command, Source):
    """Make edits permanent: what constant and switched-off heads do not need leaves the model, masks stay with it."""

    edit: Chain
    """What to bake: constant:FOLDER, gate:0,heads=0/3+5/11, pattern:FOLDER,tau=0.8, or several: 'EDIT then EDIT'."""
    output: Path
    """Folder to write the new model to."""
    kind: str = "saved"
    """Which head the model is loaded with: saved (the one it was saved with), auto, sequence-classification, ..."""
    length: int | None = None
    """Tokens of the texts that are timed and counted (default: 128, or as many as the constants cover)."""
    batch_size: int = 8
    """Texts of a forward pass that is timed."""
    rounds: int = 7
    """How often to time both models, in turns (up to five times as often where it is unclear); 0 does not."""
    even_if_slower: bool = False
    """Write the model although it takes longer than before."""

    def run(self) -> Outcome:
        """Load, bake, time and save, and count what it costs before and after."""
        from ..baking import bake, cost
        from ..baking.model import SIDECAR, WEIGHTS
        from ..core.text import describe, parse_one_chain
        from ..evaluation import check_stats
        from ..models.loading import quiet
        from ..runs.files import fill_folder, storage

        self._check()
        edits = parse_one_chain(self.edit, self.select())
        model = self.loaded_model
        tokenizer = self._tokenizer()
        check_stats(self.edit, model, tokenizer)
        baked = bake(model, *edits)
        notes = [f"The model is in {self.output}; load it with attrim.load, or give the folder to any attrim command."]
        length = self._length(model, baked)
        before, after = cost(model, length), cost(baked, length)
        carried = any(edit.carried for edit in edits)
        timed = self._timed(model, baked, length, carried)
        if timed is not None and timed.uncertain:
            notes.append(
                f"It may have become slower: {timed.rounds} rounds do not tell; time it again on a machine without "
                "other work."
            )
        notes += [f"{describe(edit)}: {note}" for edit in edits if (note := edit.note())]
        if carried:
            notes.append(
                "The model carries the edits wherever it goes. On a CPU, without gradients, removed cells are left out "
                "in blocks of 16 queries; elsewhere every score is computed."
            )
        if tokenizer is None:
            notes.append("The model came without a tokenizer, so none is saved.")

        def write(part: Path) -> None:
            baked.save_pretrained(part)
            if tokenizer is not None:
                tokenizer.save_pretrained(part)

        with quiet(), storage(self.output):
            fill_folder(self.output, write, last=SIDECAR, stale=WEIGHTS)
        counts = {"before": dataclasses.asdict(before), "after": dataclasses.asdict(after)}
        data = {"model": self.model, "edits": list(self.edit), "folder": str(self.output), "length": length}
        data |= {"speed": None if timed is None else dataclasses.asdict(timed)}
        return Outcome(
            data | counts, [_table(before, after, timed, f"{self.model}, baked, {counted(length, 'token')}"), *notes]
        )

    def _check(self) -> None:
        from ..errors import ParameterError
        from ..runs.files import require_fillable

        for name, value, least in (
            ("length", self.length, 1),
            ("batch-size", self.batch_size, 1),
            ("rounds", self.rounds, 0),
        ):
            if value is not None and value < least:
                raise ParameterError(f"{name} must be at least {least}, not {value}.")
        require_fillable(self.output)

    def _tokenizer(self) -> Any:
        """The tokenizer of the model, if it came with one."""
        from ..errors import ArtefactError

        try:
            return self.loaded_tokenizer
        except ArtefactError:
            return None

    def _length(self, model: Any, baked: Any) -> int:
        """The length of the texts that are timed and counted; refuses one that the model cannot take."""
        from ..baking.cost import longest
        from ..errors import ParameterError
        from ..models.loading import longest_input

        most = min(filter(None, (longest(baked), longest_input(model))), default=None)
        if most is not None and self.length is not None and self.length > most:
            raise ParameterError(f"length cannot be {self.length}: the model and its constants take {most} tokens.")
        return self.length or min(128, most or 128)

    def _timed(self, model: Any, baked: Any, length: int, carried: bool) -> Speed | None:
        """Time both models; one that was cut and became slower is refused, so that the model stays as it was."""
        from ..baking import speed
        from ..errors import ParameterError

        if self.rounds == 0:
            return None
        timed = speed(model, baked, length, self.batch_size, self.rounds)
        if timed.slower and not carried and not self.even_if_slower:
            raise ParameterError(
                f"Baked, {self.batch_size} texts of {length} tokens take longer than before ({timed.ratio:.2f} x as "
                "fast), so nothing is written: keep the model, bake more heads, or give --even-if-slower."
            )
        return timed


def _table(before: Cost, after: Cost, timed: Speed | None, title: str) -> Table:
    from rich.table import Table

    table = Table("", "before", "after", "after / before", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for name in ("parameters", "constants", "flops"):
        old, new = getattr(before, name), getattr(after, name)
        table.add_row(name, f"{old:,}", f"{new:,}", f"{new / old:.3f}" if old else "")
    if timed is not None:
        table.add_row("milliseconds", f"{1e3 * timed.before:.1f}", f"{1e3 * timed.after:.1f}", f"{1 / timed.ratio:.3f}")
    return table
