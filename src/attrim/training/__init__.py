"""The one training loop of the project (on Accelerate), with checkpoints and resume; names are imported when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import make_lazy

if TYPE_CHECKING:
    from .callbacks import Callback as Callback
    from .callbacks import Record as Record
    from .callbacks import Validate as Validate
    from .finetuning import Finetuned as Finetuned
    from .finetuning import finetune as finetune
    from .loop import Loop as Loop
    from .recipe import Recipe as Recipe
    from .step import Step as Step

# The command line reads Recipe before anything needs torch, so nothing is imported here.
_PLACES = {
    "Callback": "callbacks",
    "Record": "callbacks",
    "Validate": "callbacks",
    "Finetuned": "finetuning",
    "finetune": "finetuning",
    "Loop": "loop",
    "Recipe": "recipe",
    "Step": "step",
}
__all__ = list(_PLACES)

make_lazy(__name__, _PLACES)
