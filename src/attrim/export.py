"""Export a tensor, or everything that one head computes, as test vectors for a hardware design."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .atomic import replace_file, replace_tensors, storage
from .call import Call
from .edits.base import Edit
from .errors import DataError, SelectionError
from .select import Select, Site
from .sites.context import attach
from .sites.discover import find_sites
from .stats.base import Stat
from .words import Format, to_lines

PIPELINE = ("query", "key", "value", "scores", "weights", "output")


class _Probe(Stat):
    """Keeps one moment of one head for the first example, real tokens only."""

    def __init__(self, moment: str) -> None:
        self.moment = moment
        self.tensor: Tensor | None = None

    def watch(self, tensor: Tensor, call: Call) -> None:
        if self.tensor is not None:
            raise DataError("The model attended more than once at this site; export one forward pass at a time.")
        queries, keys = call.queries[0], call.keys[0]
        rows = tensor[0, 0][queries]
        self.tensor = rows[:, keys] if self.moment in ("scores", "weights") else rows


def export_head(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    select: Select,
    folder: str | Path,
    form: str = "float32",
    edits: Iterable[Edit] = (),
) -> dict[str, Tensor]:
    """Write query, key, value, scores, weights and output of one head for one example.

    Parameters
    ----------
    inputs : arguments of one forward pass; the first example is exported.
    select : must choose exactly one head.
    folder : gets one ``NAME.hex`` a tensor (a line a row, comma-separated words), ``tensors.safetensors`` with the same
        numbers and ``export.json`` with site, head, shapes and format.
    form : ``float32``, or fixed point such as ``q8.8``.
    edits : change the attention first.

    Returns
    -------
    the tensors by name: ``[n, D]``, and ``[n, m]`` for scores (minus infinity on forbidden cells is written as the
    most negative number) and weights.
    """
    site, head = _one_head(select, find_sites(model, dict(inputs)))
    probes = [_Probe(moment) for moment in PIPELINE]
    chosen = Select(names=site.name, heads=head)
    with torch.inference_mode(), attach(model, edits, probes, chosen):
        model(**inputs)
    tensors = {probe.moment: probe.tensor for probe in probes if probe.tensor is not None}
    tensors["scores"] = tensors["scores"].clamp(min=torch.finfo(torch.float32).min)
    about = {"site": site.name, "role": site.role, "layer": site.layer, "head": head}
    write_words(tensors, folder, form, about)
    return tensors


def write_words(
    tensors: Mapping[str, Tensor], folder: str | Path, form: str = "float32", about: Mapping[str, Any] | None = None
) -> None:
    """Write tensors of any shape as words; see :func:`export_head` for the files."""
    word_format, folder = Format.parse(form), Path(folder)
    texts = {name: to_lines(tensor, word_format) for name, tensor in tensors.items()}
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            replace_file(folder / f"{name}.hex", text.encode())
        replace_tensors(folder / "tensors.safetensors", {name: tensor.float() for name, tensor in tensors.items()})
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        replace_file(
            folder / "export.json", json.dumps({**(about or {}), "format": form, "shapes": shapes}, indent=2).encode()
        )


def _one_head(select: Select, sites: list[Site]) -> tuple[Site, int]:
    chosen = [(site, head) for site, heads in select.resolve(sites).items() for head in heads]
    if len(chosen) != 1:
        raise SelectionError(
            f"{len(chosen)} heads are chosen, but one is exported at a time; choose a layer and a head, as in "
            "--select-layers 2 --select-heads 0 (and a role where a model has several)."
        )
    return chosen[0]
