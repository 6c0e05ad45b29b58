"""A model and a probe as one module that trains and answers like any model with a head (PAPA, arXiv 2211.03495).

What an edit learns for every site (lambdas, constants) is in it as parameters, so that the training loop finds,
checkpoints and resumes them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, Self, get_args

from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from ..attention.context import edit
from ..edits.base import Edit
from ..errors import ParameterError
from ..models.loading import check_fit
from ..tasks.base import Task
from ..training.callbacks import Callback
from ..training.checkpoint import Checkpoints
from ..training.data import Epochs
from ..training.loop import Loop
from ..training.recipe import ProbeRecipe
from .backbone import Backbone, unpack
from .probe import Probe

Trained = Literal["probe", "lambdas", "constants", "everything"]
"""What is trained: the probe alone, with the lambdas, with the constants, or with the whole model."""


class PerSite(nn.Module):
    """One parameter a site.

    Parameters
    ----------
    values : site name to the tensor that the parameter begins with.
    """

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = tuple(values)
        # A list, because the name of a parameter must not have the dots of a site's name.
        self.values = nn.ParameterList(nn.Parameter(value.detach().clone()) for value in values.values())

    def by_site(self) -> dict[str, Tensor]:
        """The parameters themselves by site name, for an edit."""
        return dict(zip(self.names, self.values, strict=True))

    def copied(self) -> dict[str, Tensor]:
        """Copies of the present values by site name."""
        return {name: value.detach().cpu().clone() for name, value in self.by_site().items()}


class Probed(nn.Module):
    """A model and a probe that answer like any model of ``transformers`` with a head.

    Tasks, ``evaluate`` and the training loop take it as it is. Its sites are those of the model under their own names,
    so that ``attrim.edit(probed, Constant(...))`` takes constants that were measured on the model.

    Parameters
    ----------
    backbone : an ``AutoModel``. Its parameters are frozen in place, or not, as ``trained`` says.
    probe : see :func:`attrim.probing.make_probe`.
    names : of the labels, in the task's order; without them they are numbered.
    trained : what is trained. Constants are trained only where they are asked for.
    lambdas : site name to ``[H]``, to train with ``trained="lambdas"`` (for the ``Mix`` edit).
    constants : site name to ``[H, N, N]``, to train with ``trained="constants"`` (for ``Constant`` with
        ``train_constants=True``) or along with everything.
    as_coded : train with the model's dropout, as the released code does; the default keeps a frozen model in
        evaluation mode.
    compact : see :class:`Backbone`.
    """

    def __init__(
        self,
        backbone: nn.Module,
        probe: Probe,
        *,
        names: Sequence[str] = (),
        trained: Trained = "probe",
        lambdas: Mapping[str, Tensor] | None = None,
        constants: Mapping[str, Tensor] | None = None,
        as_coded: bool = False,
        compact: bool = True,
    ) -> None:
        super().__init__()
        _check(trained, lambdas, constants)
        self.trained = trained
        self.as_coded = as_coded
        self.backbone = backbone
        self.probe = probe
        self.lambdas = None if lambdas is None else PerSite(lambdas)
        self.constants = None if constants is None else PerSite(constants)
        self.config = _config(backbone, probe, names)
        self._run = Backbone(backbone, compact)
        self.probe.requires_grad_(True)
        # Last: the decoder of a masked probe is part of the model.
        self.backbone.requires_grad_(trained == "everything")
        self.train(self.training)

    @property
    def attention_root(self) -> nn.Module:
        """The module whose attention it is; sites are named from there."""
        return self.backbone

    def get_input_embeddings(self) -> nn.Module:
        """Those of the model."""
        return self.backbone.get_input_embeddings()  # type: ignore[operator]

    def train(self, mode: bool = True) -> Self:
        """Training mode is for the probe; the model follows only when it is trained, or ``as_coded``."""
        super().train(mode)
        if self.trained != "everything" and not self.as_coded:
            self.backbone.eval()
        return self

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **inputs: Tensor,
    ) -> SequenceClassifierOutput:
        """Logits ``[B, labels]``, or ``[B, N, labels]`` from a probe of tokens, and the loss when labels are given."""
        given = {"input_ids": input_ids, **({} if attention_mask is None else {"attention_mask": attention_mask})}
        packed, mask = self._run({**given, **inputs})
        logits = self.probe(packed)
        by_token = self.probe.by_token
        loss = None if labels is None else self.probe.loss(logits, labels[mask] if by_token else labels)
        output: dict[str, Any] = {"loss": loss, "logits": unpack(logits, mask) if by_token else logits}
        return SequenceClassifierOutput(**output)


def _check(trained: str, lambdas: object, constants: object) -> None:
    if trained not in get_args(Trained):
        raise ParameterError(f"What is trained must be one of {', '.join(get_args(Trained))}, not {trained!r}.")
    if (lambdas is not None) != (trained == "lambdas"):
        raise ParameterError("Lambdas are trained with trained='lambdas' and nothing else; give both or neither.")
    if constants is None and trained == "constants":
        raise ParameterError("To train constants, give them: constants={site name: [H, N, N]}.")
    if constants is not None and trained not in ("constants", "everything"):
        raise ParameterError(
            f"With trained={trained!r} constants stay as they are: leave them to the Constant edit, or use "
            "trained='constants'."
        )


def _config(backbone: nn.Module, probe: Probe, names: Sequence[str]) -> Any:
    """The model's configuration with the labels of the probe."""
    config: Any = copy.deepcopy(backbone.config)
    if probe.kind != "masked-lm":
        if len(names) > 1 and len(names) != probe.labels:
            raise ParameterError(f"The probe has {probe.labels} labels but {len(names)} names; give one for each.")
        # Never those of the model, which may have been trained for something else.
        names = names if len(names) > 1 else [f"LABEL_{number}" for number in range(probe.labels)]
        config.id2label = dict(enumerate(names))
        config.label2id = {name: number for number, name in enumerate(names)}
    return config


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

    When only the probe is trained, :func:`~attrim.probing.hidden_states.extract` and
    :func:`~attrim.probing.trainer.train_probe` do the same at a fraction of the cost.

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
