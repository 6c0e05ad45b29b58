"""Train a probe while the model runs in every step: for lambdas, trained constants and fine-tuning."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..edits.base import Edit
from ..loading import check_fit
from ..sites.context import edit
from ..tasks.base import Task
from ..training.callbacks import Callback
from ..training.checkpoint import Checkpoints
from ..training.loop import Loop
from ..training.stream import Epochs
from .probed import Probed
from .recipe import ProbeRecipe


def train_probed(
    probed: Probed,
    task: Task,
    tokenizer: Any,
    recipe: ProbeRecipe | None = None,
    edits: Sequence[Edit] | Edit = (),
    *,
    epochs: Epochs | None = None,
    callbacks: Sequence[Callback] = (),
    folder: Path | None = None,
    progress: bool = False,
) -> Loop:
    """Train what ``probed.trained`` says; returns the loop, which knows the last step.

    When only the probe is trained, :func:`attrim.features.extract` and :func:`train_probe` do the same at a fraction of
    the cost.

    Parameters
    ----------
    task : with its training data; batches have the size of the recipe.
    edits : switched on for the whole training, found once and not in every step.
    epochs : other batches than those of the task.
    folder : for checkpoints; see :class:`attrim.training.Loop`.
    """
    recipe = recipe or ProbeRecipe()
    edits = (edits,) if isinstance(edits, Edit) else tuple(edits)
    check_fit(probed, tokenizer)
    task = dataclasses.replace(task, batch_size=recipe.batch_size)
    task.check(probed)
    batches: Epochs = lambda epoch: task.train_batches(tokenizer, probed, seed=recipe.seed, epoch=epoch)
    loop = Loop(probed, epochs or batches, recipe, callbacks=callbacks, folder=folder, progress=progress)
    # A training that is done only reads its last checkpoint; no site would fire then.
    done = folder is not None and Checkpoints(folder).latest() == loop.steps
    with edit(probed, *edits) if edits and not done else nullcontext():
        loop.run()
    return loop
