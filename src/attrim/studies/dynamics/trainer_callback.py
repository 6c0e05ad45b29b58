"""Keep checkpoints of a stock ``Trainer`` for ``attrim dynamics checkpoints``, from before the first step on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ...errors import ParameterError
from ...training.finetuning import save_model


class DynamicsCallback(TrainerCallback):
    """Save the model of chosen steps, step 0 and the last one included, which ``Trainer`` itself cannot.

    Parameters
    ----------
    folder : gets ``step-000100`` and so on, each with model and tokenizer.
    every : distance of regular steps; None has none.
    steps : further ones.

    Examples
    --------
    >>> trainer = Trainer(model, arguments, ..., callbacks=[DynamicsCallback("checkpoints", every=100, steps=(10, 50))])
    """

    def __init__(self, folder: str | Path, *, every: int | None = None, steps: Sequence[int] = ()) -> None:
        if every is not None and every < 1:
            raise ParameterError(f"The distance of checkpoints must be at least 1 step, not {every}.")
        self.folder, self.every, self.steps = Path(folder), every, frozenset(steps)

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Save step 0, and refuse steps that the training does not have."""
        late = [step for step in self.steps if step > state.max_steps]
        if late:
            raise ParameterError(
                f"A checkpoint at step {late[0]} is none of the {state.max_steps} steps of this training."
            )
        if state.global_step == 0:
            self._save(state, given)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Save when it is time."""
        step = state.global_step
        if step in self.steps or step == state.max_steps or (self.every is not None and step % self.every == 0):
            self._save(state, given)

    def _save(self, state: Any, given: dict[str, Any]) -> None:
        if state.is_world_process_zero:
            folder = self.folder / f"step-{state.global_step:06d}"
            folder.parent.mkdir(parents=True, exist_ok=True)
            save_model(given["model"], given.get("processing_class"), folder)
