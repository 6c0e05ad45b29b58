"""``attrim bake``: edits made permanent, in a model folder of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.wording import counted
from ..studies.bench import Source
from .base import Chain, Command, Outcome, register

if TYPE_CHECKING:
    from rich.table import Table

    from ..baking import Cost, SiteHeads, Speed
    from ..edits.base import Edit

LAYER_TYPES = "--layer-types"


@register("bake")
@dataclass(frozen=True, kw_only=True)
class Bake(Command, Source):
    """Make edits permanent: what constant and switched-off heads do not need leaves the model, masks stay with it."""

    edit: Chain
    """What to bake: constant:FOLDER, gate:0,heads=0/3+5/11, mask:FOLDER, pattern:FOLDER,tau=0.8, window:256,first=4,
    mask-outside-window:FOLDER,size=256, entmax:1.5, or several: 'EDIT then EDIT'."""
    output: Path | None = None
    """Folder to write the new model to; not needed with --dry-run."""
    dry_run: bool = False
    """Say what the model would cost and how each of its heads would be computed, and write nothing."""
    layer_types: Path | None = None
    """Folder for a stock model, too, with windows of whole layers as layer types, which other engines can load."""
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
        from ..baking import bake, cost, site_heads
        from ..baking.model import SIDECAR, WEIGHTS
        from ..baking.stock_windows import stock_windows
        from ..core.text import describe, parse_one_chain
        from ..evaluation import check_stats
        from ..models.loading import quiet
        from ..runs.files import fill_folder, storage

        self._check()
        edits = parse_one_chain(self.edit, self.select())
        model = self.loaded_model
        tokenizer = self._tokenizer()
        check_stats(self.edit, model, tokenizer)
        stock = None if self.layer_types is None else stock_windows(model, edits)
        baked = bake(model, *edits)
        length = self._length(model, baked)
        before, after = cost(model, length), cost(baked, length)
        carried = any(edit.carried for edit in edits)
        heads = site_heads(model, baked, length, self.batch_size) if carried or self.dry_run else []
        timed = self._timed(model, baked, length, carried)
        notes = self._notes(timed, carried, heads)
        notes += [f"{describe(edit)}: {note}" for edit in edits if (note := edit.note())]
        notes += [
            f"{describe(edit)} covers {most} positions, and beyond these every cell is kept; unseen=offset goes by "
            "the distance of query and key there."
            for edit in edits
            if (most := _kept_beyond(edit, length))
        ]
        if tokenizer is None and not self.dry_run:
            notes.append("The model came without a tokenizer, so none is saved.")

        if stock is not None:
            notes.append(f"{'Without --dry-run, ' * self.dry_run}{self.layer_types} has {stock}.")

        def write(written: Any, part: Path) -> None:
            written.save_pretrained(part)
            if tokenizer is not None:
                tokenizer.save_pretrained(part)

        if self.output is not None and not self.dry_run:
            with quiet(), storage(self.output):
                fill_folder(self.output, partial(write, baked), last=SIDECAR, stale=WEIGHTS)
        if self.layer_types is not None and stock is not None and not self.dry_run:
            with quiet(), storage(self.layer_types, LAYER_TYPES):
                stale = (*WEIGHTS, SIDECAR)
                fill_folder(self.layer_types, partial(write, stock), last="config.json", stale=stale)
        counts = {"before": dataclasses.asdict(before), "after": dataclasses.asdict(after)}
        folder = None if self.dry_run else str(self.output)
        data = {"model": self.model, "edits": list(self.edit), "folder": folder, "length": length}
        data |= {"speed": None if timed is None else dataclasses.asdict(timed)}
        data |= {"sites": [{**dataclasses.asdict(site), "gain": site.gain} for site in heads]}
        title = f"{self.model}, baked, {counted(length, 'token')}"
        tables = [_table(before, after, timed, title), *([_site_table(heads)] if heads else [])]
        return Outcome(data | counts, [*tables, *notes])

    def _notes(self, timed: Speed | None, carried: bool, heads: Sequence[SiteHeads]) -> list[str]:
        """What is to be said beside the tables."""
        from ..kernels.rates import source

        if self.dry_run:
            notes = ["Nothing is written: this is a dry run."]
        else:
            notes = [
                f"The model is in {self.output}; load it with attrim.load, or give the folder to any attrim command."
            ]
        if timed is not None and timed.uncertain:
            notes.append(
                f"It may have become slower: {timed.rounds} rounds do not tell; time it again on a machine without "
                "other work."
            )
        if timed is not None and timed.slower:
            notes.append(f"It became slower ({timed.ratio:.2f} x as fast).")
        if not carried:
            return notes
        carries = "The model carries the edits wherever it goes."
        if any(site.sparse for site in heads):
            carries += (
                " On a CPU, without gradients, removed cells are left out in blocks of 16 queries; elsewhere every "
                "score is computed."
            )
        notes.append(carries)
        if any((site.union_density or 0.0) > 1 for site in heads):
            notes.append(
                "Computed is counted in cells that a query may see, and blocks of 16 queries compute later ones, too, "
                "so that it can exceed 1."
            )
        known = [site for site in heads if site.gain is not None]
        if known:
            gain = sum(site.dense_seconds or 0.0 for site in known) / sum(site.seconds or 0.0 for site in known)
            notes.append(f"Attention at the sites above should be {gain:.2f} x as fast as dense on this machine.")
            notes += filter(None, [source()])
        if not any(site.sparse for site in heads):
            notes.append(
                "Leaving cells out gains nothing here, so the model runs dense, with a mask."
                if any(site.masked for site in heads)
                else "No kernel leaves anything out here: every score is computed, and then edited."
            )
        return notes

    def _check(self) -> None:
        from ..baking.model import holds_model, is_baked
        from ..edits.saving import holds_edits
        from ..errors import ParameterError
        from ..runs.files import require_fillable

        for name, value, least in (
            ("length", self.length, 1),
            ("batch-size", self.batch_size, 1),
            ("rounds", self.rounds, 0),
        ):
            if value is not None and value < least:
                raise ParameterError(f"{name} must be at least {least}, not {value}.")
        if self.dry_run:
            return
        if self.output is None:
            raise ParameterError("There is no folder to write the model to; give --output FOLDER, or --dry-run.")
        require_fillable(self.output)
        for folder, flag in ((self.output, "--output"), (self.layer_types, LAYER_TYPES)):
            if folder is not None and folder.resolve() == Path(self.model).resolve():
                raise ParameterError(
                    f"{flag} is the folder of the model, which would be replaced; give another folder."
                )
        if not is_baked(self.output) and holds_model(self.output):
            raise ParameterError(
                f"The folder {str(self.output)!r} holds a model or tokenizer that was not baked, which would be "
                "replaced; give another folder with --output."
            )
        if holds_edits(self.output):
            raise ParameterError(
                f"The folder {str(self.output)!r} holds edits of save_edits, which mask:FOLDER would not find beside a "
                "baked model; give another folder with --output."
            )
        if self.layer_types is not None and holds_model(self.layer_types):
            raise ParameterError(
                f"The folder {str(self.layer_types)!r} holds a model, which would be replaced; give another folder "
                f"with {LAYER_TYPES}, or remove it."
            )
        if self.layer_types is not None:
            if self.layer_types.resolve() == self.output.resolve():
                raise ParameterError(
                    "--output and --layer-types are two models and need two folders, because the second would replace "
                    "the first."
                )
            require_fillable(self.layer_types, LAYER_TYPES)

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
        if timed.slower and not carried and not self.even_if_slower and not self.dry_run:
            raise ParameterError(
                f"Baked, {self.batch_size} texts of {length} tokens take longer than before ({timed.ratio:.2f} x as "
                "fast), so nothing is written: keep the model, bake more heads, or give --even-if-slower."
            )
        return timed


def _kept_beyond(edit: Edit, length: int) -> int | None:
    """The positions of a mask that keeps everything in the rest of a text of that length; None where there is none."""
    from ..baking.make import covered_length

    covered = covered_length(edit)
    kept = getattr(edit, "unseen", None) in (None, "keep")
    return covered if kept and covered is not None and covered < length else None


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


def _site_table(sites: Sequence[SiteHeads]) -> Table:
    """The heads of each site; the densities are those of heads with a pattern."""
    from rich.table import Table

    table = Table("site", "heads", "density", "computed", "MFLOP", "MiB", "expected gain", title="a text, by site")
    for column in table.columns[2:]:
        column.justify = "right"
    for site in sites:
        shares = ("" if share is None else f"{share:.3f}" for share in (site.density, site.union_density))
        table.add_row(
            site.site,
            str(site),
            *shares,
            "" if site.flops is None else f"{site.flops / 1e6:.2f}",
            "" if site.bytes is None else f"{site.bytes / 2**20:.2f}",
            "" if site.gain is None else f"{site.gain:.2f} x",
        )
    return table
