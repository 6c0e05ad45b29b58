"""Several edit settings of one model: read from text, evaluated one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from ..edits import Edit, parse_edit
from ..evaluate import UNEDITED, Result, evaluate_settings
from ..progress import track
from ..runs import Run
from ..select import Select
from ..tasks import Task


def parse_settings(texts: Sequence[str], select: Select | None = None) -> dict[str, list[Edit]]:
    """Read every text as edits joined by ``then``; ``select`` is for those that select nothing themselves."""
    settings: dict[str, list[Edit]] = {}
    for text in texts:
        edits = [parse_edit(part) for part in text.split(" then ")]
        settings[text] = [
            dataclasses.replace(edit, select=select) if select is not None and edit.select == Select() else edit
            for edit in edits
        ]
    return settings


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
