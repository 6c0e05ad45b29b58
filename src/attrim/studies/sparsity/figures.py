"""All figures of the sparsity study, from what it found to files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from ...plots import save
from .closeups import distance_figures, hidden_figures, matrix_figures, token_figures
from .compare import Earlier, distinct
from .comparisons import chosen_heads, comparisons
from .panels import panel_figures
from .scores import score_figures
from .weights import weight_figures

if TYPE_CHECKING:
    from .study import Findings


def draw(
    found: Findings,
    folder: Path,
    tokenizer: Any,
    runs: Sequence[Earlier],
    heads: Sequence[tuple[int, int]],
    formats: Sequence[str],
) -> list[Path]:
    """Write every figure that the findings allow to the folder; returns the files.

    Parameters
    ----------
    runs : this run, then those to draw beside it.
    heads : pairs of layer and head that get figures of their own.
    """
    written: list[Path] = []
    # One at a time, for many figures at once take much memory.
    for name, figure in _every(found, tokenizer, distinct(runs), heads):
        written += save(figure, folder / name, formats)
    return written


def _every(
    found: Findings, tokenizer: Any, runs: Sequence[Earlier], heads: Sequence[tuple[int, int]]
) -> Iterator[tuple[str, Figure]]:
    yield from weight_figures(found.stats["weights"])
    if "tokens" in found.stats:
        yield from token_figures(found.stats["tokens"], tokenizer, heads)
    if "hidden" in found.stats:
        yield from hidden_figures(found.stats["hidden"])
    if "distances" in found.stats:
        yield from distance_figures(found.stats["distances"], heads)
    if "matrices" in found.stats:
        yield from matrix_figures(found.stats["matrices"])
    yield from chosen_heads(runs, heads)
    if len(runs) > 1:
        yield from comparisons(runs)
    if found.results:
        yield from score_figures(runs)
    yield from panel_figures(runs)
