"""Whether two models attend alike: hashes of the weights of their attention modules."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from ..artefacts import content
from .discover import map_of


def attention_digests(model: nn.Module) -> dict[str, str]:
    """A hash of the attention module's parameters for every site, by the site's name.

    It is the same in float32 and bfloat16 and does not depend on the model's head. In float16, whose rounding differs
    from both, and for modules without parameters there is none.
    """
    modules = dict(getattr(model, "attention_root", model).named_modules())
    known: dict[str, str] = {}
    for site in map_of(model).sites:
        parameters = list(modules[site.path].parameters())
        if site.path not in known and parameters and all(tensor.dtype != torch.float16 for tensor in parameters):
            known[site.path] = _digest(parameters)
    return {site.name: known[site.path] for site in map_of(model).sites if site.path in known}


def _digest(tensors: list[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(content(tensor.detach().to(torch.bfloat16)))
    return digest.hexdigest()[:32]
