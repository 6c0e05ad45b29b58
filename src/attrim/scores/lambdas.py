"""Order heads by how much of their attention a task keeps (PAPA, Hassid et al. 2022, https://arxiv.org/abs/2211.03495)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..attention.discover import find_sites
from ..core.site import Select, Site
from ..edits.mix import Mix
from ..errors import ParameterError
from ..probing.probe import make_probe
from ..probing.probed import Probed, train_probed
from ..tasks.base import Task
from ..training.callbacks import Callback
from ..training.recipe import ProbeRecipe
from .base import Score, ScoreInputs, Scores, register

# Adam moves a lambda by about the learning rate in a step; at the probe's own rate all of them stay near 0.
RATE = 1e-2


def train_lambdas(
    backbone: nn.Module,
    task: Task,
    tokenizer: Any,
    constants: Mapping[str, Tensor],
    recipe: ProbeRecipe | None = None,
    *,
    rate: float | None = RATE,
    as_coded: bool = False,
    compact: bool = True,
    callbacks: Sequence[Callback] = (),
    folder: Path | None = None,
    progress: bool = False,
    select: Select | None = None,
) -> dict[str, Tensor]:
    """Train one lambda for each head, from 0, together with a probe; everything else is frozen.

    Each head attends with ``sigmoid(lambda)`` of its attention and the rest of its constant. A small lambda says that
    the task prefers the constant.

    Parameters
    ----------
    backbone : an ``AutoModel``.
    task : with its training data, laid out as for the constants.
    constants : site name to ``[H, N, N]``; sites that are not named keep their attention.
    recipe : by default that of the paper.
    rate : learning rate of the lambdas; None takes the probe's.
    as_coded : as the released code: the probe's learning rate, and the model's dropout while training.
    folder : for checkpoints, to resume after a kill.
    select : the heads to mix, among those of the sites that have constants (default: all).

    Returns
    -------
    site name to float32 ``[H]``; the lambdas of heads that are not selected stay 0.
    """
    recipe = recipe or ProbeRecipe()
    if rate is not None and not as_coded:
        recipe = dataclasses.replace(recipe, own_rate=(f"lambdas={rate!r}", *recipe.own_rate))
    sites = [site for site in find_sites(backbone) if site.name in constants]
    unknown = sorted({*constants} - {site.name for site in sites})
    if unknown or not sites:
        raise ParameterError(
            f"The constants are for the site {unknown[0] if unknown else 'of no name'!r}, which the model does not "
            "have; measure them on this model."
        )
    device = next(backbone.parameters()).device
    probed = Probed(
        backbone,
        make_probe(backbone, task, seed=recipe.seed),
        trained="lambdas",
        lambdas={site.name: torch.zeros(site.heads, device=device) for site in sites},
        as_coded=as_coded,
        compact=compact,
    )
    assert probed.lambdas is not None
    chosen = (select or Select()).resolve(find_sites(backbone))
    heads = [(site.name, head) for site, numbers in chosen.items() if site.name in constants for head in numbers]
    mix = Mix(dict(constants), probed.lambdas.by_site(), heads=heads)
    train_probed(probed, task, tokenizer, recipe, mix, callbacks=callbacks, folder=folder, progress=progress)
    return probed.lambdas.copied()


@register("lambdas")
@dataclass(frozen=True, kw_only=True)
class Lambdas(Score):
    """How much of its attention each head keeps when a probe is trained with a mixture of attention and constant.

    Parameters
    ----------
    recipe : how to train; by default that of the paper.
    seed : of the training, in place of the recipe's; None leaves it.
    rate : learning rate of the lambdas; None takes the probe's.
    as_coded : as the released code (:func:`train_lambdas`).
    """

    needs = frozenset({"constants", "task", "tokenizer"})
    recipe: ProbeRecipe | None = None
    seed: int | None = None
    rate: float | None = RATE
    as_coded: bool = False

    def compute(self, given: ScoreInputs) -> Scores:
        """See :meth:`Score.compute`; the model is an ``AutoModel``, which gets a new probe."""
        assert given.task is not None
        recipe = self.recipe or ProbeRecipe()
        lambdas = train_lambdas(
            given.model,
            given.task,
            given.tokenizer,
            given.constants,
            recipe if self.seed is None else dataclasses.replace(recipe, seed=self.seed),
            rate=self.rate,
            as_coded=self.as_coded,
            folder=given.folder,
            progress=given.progress,
            select=given.select,
        )
        sites = [site for site in find_sites(given.model) if site.name in lambdas]
        return self.scores(lambdas, sites)


def lambda_scores(
    runs: Sequence[Mapping[str, Tensor]], sites: Sequence[Site], heads: Mapping[str, Sequence[int]] | None = None
) -> Scores:
    """Scores of heads from the lambdas of one or several trainings: the smallest is replaced first.

    Parameters
    ----------
    runs : of each seed site name to ``[H]``, from :func:`train_lambdas`.
    sites : those of the model; the ones that have no lambdas are left out.
    heads : site name to the heads that the lambdas are of (default: all).

    Returns
    -------
    the lambdas of a single training; of several the mean rank of each head, from 0, where equal lambdas share a rank.
    """
    if not runs:
        raise ParameterError("There are no lambdas to rank; train them for at least one seed.")
    chosen = [site for site in sites if site.name in runs[0]]
    if len(runs) == 1:
        return Scores({site.name: runs[0][site.name] for site in chosen}, chosen, "lambdas", heads=heads)
    from scipy.stats import rankdata

    ranks = [rankdata(torch.cat([run[site.name] for site in chosen]).numpy(), method="average") - 1 for run in runs]
    parts = torch.from_numpy(np.mean(ranks, axis=0)).split([len(runs[0][site.name]) for site in chosen])
    values = {site.name: part for site, part in zip(chosen, parts, strict=True)}
    return Scores(values, chosen, "lambdas", heads=heads)
