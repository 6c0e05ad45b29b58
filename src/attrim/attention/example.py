"""One small input for a model, made up from its configuration, to see its attention without any data."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..core.modes import device_of

TEXT, TARGET = 6, 4  # different lengths, so that cross-attention shows
TARGET_MASKS = ("decoder_attention_mask", "target_mask", "trg_mask")
"""What models call the argument ``[B, T]`` that is 1 at their real target steps."""


def make_example(model: nn.Module) -> dict[str, Any]:
    """Arguments for ``model.forward`` from its signature and configuration; empty when nothing is known.

    Text is a few token ids, images and audio are random numbers of the configured size.
    """
    config = getattr(model, "config", None)
    if config is None:
        return {}
    wanted = inspect.signature(model.forward).parameters
    parameter = next(model.parameters(), torch.zeros(()))
    makers = {
        "input_ids": lambda: _tokens(config, TEXT),
        "decoder_input_ids": lambda: _tokens(config, TARGET),
        "pixel_values": lambda: _image(config),
        "input_values": lambda: torch.randn(1, 4000),
        "input_features": lambda: _spectrum(config),
        "visual_feats": lambda: torch.randn(1, 3, config.visual_feat_dim),
        "visual_pos": lambda: torch.rand(1, 3, config.visual_pos_dim),
        "visual_embeds": lambda: torch.randn(1, 3, config.visual_embedding_dim),
    }
    example = {}
    for name in wanted:
        if name in makers and (value := makers[name]()) is not None:
            example[name] = value
    if "input_ids" in example and "attention_mask" in wanted:
        example["attention_mask"] = torch.ones_like(example["input_ids"])
    if not getattr(config, "is_encoder_decoder", False):
        example.pop("decoder_input_ids", None)
    inputs: dict[str, Any] = {
        name: value.to(device_of(model), parameter.dtype if value.is_floating_point() else None)
        for name, value in example.items()
    }
    if "use_cache" in wanted:
        inputs["use_cache"] = False  # with a cache some decoders look at the last token only
    return inputs


def run_example(model: nn.Module, inputs: Any) -> Any:
    """One forward pass on a tensor, on a tuple of positional arguments or on a dict of keyword arguments."""
    if isinstance(inputs, torch.Tensor):
        return model(inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(**inputs)


def shortened(inputs: Any, length: int) -> Iterator[Any]:
    """The inputs with one of their sequences of ``length`` cut by its last entry, for each sequence in turn.

    None where there is only one: a tensor that is given twice is one sequence. The sequence axis is the second, or else
    the first.
    """
    named = inputs if isinstance(inputs, dict) else dict(enumerate(inputs)) if isinstance(inputs, (tuple, list)) else {}
    axes = {
        id(value): next((axis for axis in (1, 0) if value.shape[axis] == length), None)
        for value in named.values()
        if isinstance(value, torch.Tensor) and value.ndim > 1
    }
    found = [key for key, axis in axes.items() if axis is not None]
    for key in found if len(found) > 1 and length > 1 else ():
        changed = {
            name: value.narrow(axes[key] or 0, 0, length - 1) if id(value) == key else value
            for name, value in named.items()
        }
        yield changed if isinstance(inputs, dict) else tuple(changed.values())


def _part(config: Any, name: str) -> Any:
    """A part of a composite configuration, or the configuration itself."""
    return getattr(config, name, None) or config


def _tokens(config: Any, length: int) -> torch.Tensor | None:
    text = _part(config, "text_config")
    size = getattr(text, "vocab_size", None) or getattr(text, "src_vocab_size", None)
    if not isinstance(size, int):
        return None
    special = {token for kind in ("pad", "bos", "eos") for token in _numbers(getattr(text, f"{kind}_token_id", None))}
    ordinary = [token for token in range(min(size, 4 * length)) if token not in special] or [0]
    tokens = (ordinary * length)[:length]
    ends = [token for token in _numbers(getattr(text, "eos_token_id", None)) if 0 <= token < size]
    if ends:
        tokens[-1] = ends[0]  # some models pool the end token and others require one
    return torch.tensor([tokens])


def _numbers(value: Any) -> list[int]:
    """A token id of a configuration, which may be missing or a list, as a list."""
    return [value] if isinstance(value, int) else list(value or ())


def _image(config: Any) -> torch.Tensor | None:
    vision = _part(config, "vision_config")
    size = getattr(vision, "image_size", None)
    if size is None:
        if not hasattr(vision, "num_channels"):
            return None
        size = 64  # convolutional stems take any size
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
    return torch.randn(1, channels, height, width)


def _spectrum(config: Any) -> torch.Tensor | None:
    bins, positions = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
    return None if bins is None or positions is None else torch.randn(1, bins, 2 * positions)
