"""Services that draw the curves of a training while it runs: TensorBoard, Weights & Biases, MLflow (Accelerate's).

Nothing is read from them: the run keeps all numbers itself, and a resumed training repeats the steps since its last
checkpoint to its tracker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, get_available_trackers

from ..errors import ParameterError, UnknownName
from ..runs.run import Run

TRACKERS = ("tensorboard", "wandb", "mlflow")
"""Each is the name of the package that it needs, too."""


def require_tracker(name: str) -> None:
    """Raise an error for a tracker that is not known or whose package is not installed."""
    if name not in TRACKERS:
        raise UnknownName("tracker", name, TRACKERS)
    if name not in map(str, get_available_trackers()):
        raise ParameterError(f"The tracker {name} needs a package; 'pip install {name}', or leave the tracker out.")


@contextmanager
def tracking(
    tracker: str | GeneralTracker | None, run: Run, recipe: Mapping[str, Any]
) -> Iterator[GeneralTracker | None]:
    """A tracker that is started and told the recipe, and that is closed afterwards; None where none is wanted.

    Parameters
    ----------
    tracker : one of :data:`TRACKERS`, an object of a class of your own, or None.
    run : gives its name to that of the service; TensorBoard writes into its folder.
    """
    if tracker is None:
        yield None
        return
    started: Any = _made(tracker, run) if isinstance(tracker, str) else tracker
    started.start()
    try:
        plain = (bool, int, float, str)
        started.store_init_configuration(
            {name: value if isinstance(value, plain) else str(value) for name, value in recipe.items()}
        )
        yield started
    finally:
        started.finish()


def _made(name: str, run: Run) -> GeneralTracker:
    require_tracker(name)
    kind: Any = LOGGER_TYPE_TO_CLASS[name]
    if name == "tensorboard":
        return kind("tensorboard", run.folder)
    if name == "wandb":  # a run that was killed goes on under its name
        return kind("attrim", id=run.folder.name, name=run.folder.name, resume="allow")
    return kind("attrim", run_name=run.folder.name)
