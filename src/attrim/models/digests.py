"""Hashes that tell one model, or one tokenizer, from another."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.discover import map_of, root_of
from ..runs.artefact import content


def tokenizer_digest(tokenizer: Any) -> str:
    """A hash of a tokenizer's class and vocabulary, or of the settings of what prepares images."""
    if hasattr(tokenizer, "get_vocab"):
        described = repr((type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())))
    else:
        words = tokenizer_digest(tokenizer.tokenizer) if hasattr(tokenizer, "tokenizer") else ""
        images = getattr(tokenizer, "image_processor", tokenizer)
        described = f"{type(tokenizer).__name__} {images.to_json_string()} {words}"
    return hashlib.sha256(described.encode()).hexdigest()


def weights_digest(model: nn.Module) -> str:
    """A hash of a model's class, configuration and weights, so that a trained copy is not taken for the model."""
    config: Any = getattr(model, "config", None)  # plain modules have none
    described = config.to_json_string(use_diff=False) if hasattr(config, "to_json_string") else ""
    digest = hashlib.sha256(f"{type(model).__name__} {described}".encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(content(tensor))
    return digest.hexdigest()


def attention_digests(model: nn.Module) -> dict[str, str]:
    """A hash of the attention module's parameters for every site, by the site's name.

    It is the same in float32 and bfloat16 and does not depend on the model's head. In float16, whose rounding differs
    from both, for weights that are offloaded and for modules without parameters there is none.
    """
    modules = dict(root_of(model).named_modules())
    known: dict[str, str] = {}
    for site in map_of(model).sites:
        parameters = list(modules[site.path].parameters())
        hidden = any(tensor.dtype == torch.float16 or tensor.is_meta for tensor in parameters)
        if site.path not in known and parameters and not hidden:
            known[site.path] = _digest(parameters)
    return {site.name: known[site.path] for site in map_of(model).sites if site.path in known}


def comparable_digests(model: nn.Module) -> dict[str, str]:
    """The hashes of :func:`attention_digests` under both names of each site: with a head and without one."""
    known = attention_digests(model)
    sites = [site for site in map_of(model).sites if site.name in known]
    return {alias: known[site.name] for site in sites for alias in site.aliases} | known


def _digest(tensors: list[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(content(tensor.detach().to(torch.bfloat16)))
    return digest.hexdigest()[:32]
