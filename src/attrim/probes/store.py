"""Save and load probes: one JSON file that names everything, one safetensors file with the weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..artefacts import Artefact
from ..errors import ArtefactError
from .base import Probe
from .make import embeddings_of
from .masked import MaskedProbe
from .sequence import SequenceProbe
from .token import TokenProbe

STORE = Artefact("probes", source="a folder of save_probe", remedy="save it again")
KINDS: dict[str, type[Probe]] = {kind.kind: kind for kind in (SequenceProbe, TokenProbe, MaskedProbe)}
_TIED = "embeddings"


def save_probe(probe: Probe, folder: str | Path, about: Mapping[str, Any] | None = None) -> Path:
    """Write a probe to ``folder`` and return it.

    Parameters
    ----------
    about : JSON values to keep with it, such as the model, the task and the order of the constant heads.
    """
    # A tied decoder is part of the model, and much larger than the probe.
    tensors = {name: tensor for name, tensor in probe.state_dict().items() if name != _TIED}
    entries = {"kind": probe.kind, "options": probe.options(), "about": dict(about or {})}
    return STORE.save(folder, entries, tensors)


def load_probe(folder: str | Path, backbone: nn.Module | None = None) -> tuple[Probe, dict[str, Any]]:
    """The probe that :func:`save_probe` wrote to ``folder``, and what it kept with it.

    Parameters
    ----------
    backbone : the model that the probe is for; the decoder of a masked probe is tied to it.
    """
    index, tensors = STORE.read(folder)
    try:
        kind, options = KINDS[index["kind"]], dict(index["options"])
        if kind is MaskedProbe:
            if backbone is None:
                raise ArtefactError(f"The probe in {str(folder)!r} is tied to its model; give it as backbone=.")
            options[_TIED] = embeddings_of(backbone)
            tensors[_TIED] = options[_TIED]
        probe = kind(**options)
        probe.load_state_dict(tensors)
        about = dict(index["about"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise STORE.damaged(folder, " ".join(str(error).split())) from error
    if backbone is not None:
        probe.to(next(backbone.parameters()).device)
    return probe, about
