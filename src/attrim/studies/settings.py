"""Several edit settings of one model: read from text, evaluated one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

from torch import nn

from ..core.progress import track
from ..core.site import Select
from ..core.text import folders, parse_chain
from ..edits import Edit
from ..evaluation import UNEDITED, Result, evaluate_settings
from ..models.digests import attention_digests, tokenizer_digest
from ..runs.run import Run
from ..stats.bundle import Stats
from ..tasks import Task


def parse_settings(texts: Sequence[str], select: Select | None = None) -> dict[str, list[Edit]]:
    """Read every text as edits joined by ``then``; ``select`` is for those that select nothing themselves."""
    return {text: parse_chain(text, select) for text in texts}


def check_stats(texts: Iterable[str], model: nn.Module, tokenizer: Any = None) -> None:
    """Refuse edits that read stats (averages, histograms) of another model or tokenizer, whatever their shape."""
    known = "" if tokenizer is None else tokenizer_digest(tokenizer)
    for text in texts:
        for folder in folders(text):
            origin = Stats.origin_of(folder)
            remedy = f"so {text!r} does not fit this model: measure {folder!r} on it"
            origin.require_same_source(attention_digests(model), known, remedy)


def evaluate_each(
    model: Any,
    task: Task,
    tokenizer: Any,
    settings: Mapping[str, Sequence[Edit]],
    run: Run | None = None,
    progress: bool = False,
) -> dict[str, Result]:
    """Evaluate the unedited model and every setting, with a bar that advances by settings.

    Parameters
    ----------
    run : keeps every setting as soon as it is done; settings that it already has are read, not repeated.
    """
    with closing(track([UNEDITED, *settings], "evaluating {}".format, progress)) as steps:

        def announce(name: str) -> None:
            # Settings that the run already has are passed over.
            next(step for step in steps if step == name)

        return evaluate_settings(model, task, tokenizer, settings, run=run, announce=announce)
