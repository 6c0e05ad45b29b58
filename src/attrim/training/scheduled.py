"""Steps of a training at which something is looked at or kept, step 0 included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ParameterError
from .callbacks import Callback
from .data import Step

if TYPE_CHECKING:
    from .loop import Loop

Action = Callable[[int, "Loop"], None]
"""What to do after so many updates."""


def scheduled(steps: int, every: int | None = None, extra: Sequence[int] = ()) -> tuple[int, ...]:
    """The steps of a schedule in order: 0, every so many, those asked for, and the last one.

    Parameters
    ----------
    steps : how many updates the training has.
    every : distance of regular steps; None has none.
    extra : further ones.
    """
    if every is not None and every < 1:
        raise ParameterError(f"The distance of checkpoints must be at least 1 step, not {every}.")
    for step in extra:
        if not 0 <= step <= steps:
            raise ParameterError(f"A checkpoint at step {step} is none of the {steps} steps of this training.")
    regular = range(0, steps + 1, every) if every is not None else ()
    return tuple(sorted({0, *regular, *extra, steps}))


class AtSteps(Callback):
    """Do something after chosen numbers of updates; what is done twice after a kill must give the same.

    Parameters
    ----------
    every, extra : as in :func:`scheduled`.
    """

    def __init__(self, action: Action, every: int | None = None, extra: Sequence[int] = ()) -> None:
        self.action = action
        self.every, self.extra = every, tuple(extra)

    def before_first_step(self, loop: Loop) -> None:
        """See :meth:`Callback.before_first_step`; refuses a schedule past the last step before anything is trained."""
        scheduled(loop.steps, self.every, self.extra)
        self.action(0, loop)

    def after_step(self, step: Step, loop: Loop) -> None:
        """Act when it is time."""
        if step.number in scheduled(loop.steps, self.every, self.extra):
            self.action(step.number, loop)


def keep_models(folder: Path, tokenizer: Any, *, every: int | None = None, extra: Sequence[int] = ()) -> AtSteps:
    """Keep the model of every scheduled step, as ``save_pretrained`` writes it, in ``folder/step-000100`` and so on."""
    from .finetuning import save_model

    def keep(step: int, loop: Loop) -> None:
        if loop.is_main:
            save_model(loop.model, tokenizer, folder / f"step-{step:06d}")

    return AtSteps(keep, every, extra)
