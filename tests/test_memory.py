"""Measuring takes memory that does not grow with the number of batches; a baked pattern makes no squares of a text."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import BertConfig, BertModel

from attrim.baking import bake
from attrim.edits.mask import Mask
from attrim.edits.window import Window
from attrim.kernels import team
from attrim.measurement import measure
from attrim.stats import Histogram, Mean, Sample, Stat

LENGTH, EXAMPLES, HEADS, LAYERS = 160, 8, 4, 2
ATTENTION = 4 * EXAMPLES * HEADS * LENGTH**2 * LAYERS
"""Bytes of the attention weights of one batch."""
FEW, MANY = 3, 15


def live_bytes() -> int:
    """The bytes of all tensors that something in Python holds."""
    gc.collect()
    tensors = (thing for thing in gc.get_objects() if issubclass(type(thing), Tensor))
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def stat_bytes(stats: Sequence[Stat]) -> int:
    return sum(tensor.nbytes for stat in stats for tensor in stat.state()[0].values())


def growth(stats: Sequence[Stat]) -> dict[str, int]:
    """By how many bytes the process grows between the third batch and the fifteenth."""
    sizes = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 32, "max_position_embeddings": LENGTH}
    model = BertModel(BertConfig(**sizes, num_hidden_layers=LAYERS, num_attention_heads=HEADS)).eval()
    seen: list[dict[str, int]] = []

    def batches() -> Iterator[dict[str, Tensor]]:
        for number in range(MANY + 1):
            if number in (FEW, MANY):
                found = {"stats": stat_bytes(stats), "live": live_bytes(), "resident": resident_bytes()}
                seen.append(found)
            generator = torch.Generator().manual_seed(number)
            yield {"input_ids": torch.randint(5, 60, (EXAMPLES, LENGTH), generator=generator)}

    measure(model, batches(), stats, progress=False)
    first, last = seen
    return {name: last[name] - first[name] for name in first}


@pytest.mark.parametrize("rows", [False, True], ids=["compiled", "reference"])
def test_memory_does_not_grow_with_the_number_of_batches(rows: bool) -> None:
    grown = growth([Histogram(rows=rows), Mean()])
    assert grown["stats"] == 0
    assert grown["live"] <= ATTENTION // 100
    if Path("/proc/self/statm").exists():
        assert grown["resident"] < (MANY - FEW) * ATTENTION // 4


def test_what_grows_is_seen() -> None:
    """The same count for a stat that is told to keep everything."""
    grown = growth([Sample(EXAMPLES * (MANY + 1))])
    # The tokens of queries and keys are kept beside the weights, to name rows and columns.
    tokens = 2 * LAYERS * EXAMPLES * LENGTH * torch.int64.itemsize
    assert grown["stats"] == (MANY - FEW) * (ATTENTION + tokens)
    assert grown["live"] >= grown["stats"]


class Squares(TorchDispatchMode):
    """Notes the bytes of every tensor that is made and has at least a number of bytes.

    Parameters
    ----------
    least : that number.
    """

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.made = least, list[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        found = func(*args, **(kwargs or {}))
        storages = [leaf.untyped_storage() for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        new = [storage.nbytes() for storage in storages if storage.data_ptr() not in given]
        self.made += [size for size in new if size >= self.least]
        return found


def squares_of(edit: Window | Mask, causal: bool, padded: bool, length: int) -> float:
    """The squares ``[length, length]``, in bytes a cell, that a pass of a model with a baked pattern makes."""
    sizes = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 32, "max_position_embeddings": length}
    config = BertConfig(**sizes, num_hidden_layers=LAYERS, num_attention_heads=HEADS, is_decoder=causal)
    model = BertModel(config, add_pooling_layer=False).eval()
    model.set_attn_implementation("sdpa")
    model.config.use_cache = False
    baked = bake(model, edit)
    batch = {"input_ids": torch.randint(5, 60, (2, length), generator=torch.Generator().manual_seed(0))}
    if padded:
        batch["attention_mask"] = (torch.arange(length) < torch.tensor([[length], [length // 2]])).long()
    with torch.inference_mode():
        baked(**batch)  # plans are made once
        with Squares(length**2) as squares:
            baked(**batch)
    return sum(squares.made) / length**2


@pytest.mark.skipif(not team.available(), reason="needs the compiled passes")
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize(("causal", "most"), [(False, 0), (True, 1)], ids=["encoder", "decoder"])
def test_a_baked_pattern_makes_no_squares_of_a_text(causal: bool, most: int, padded: bool) -> None:
    # 1,536 tokens, because what reads a boolean mask may copy a million of its cells.
    made = squares_of(Window(32, 4), causal, padded, 1536)
    # transformers' own boolean mask of a causal text, which is of each example where texts are padded, and two steps
    # on the way to it.
    assert made <= (most if not padded else 4 * most)


@pytest.mark.skipif(not team.available(), reason="needs the compiled passes")
def test_a_square_is_seen() -> None:
    """The same count for a pattern that no kernel takes, because of what it does with empty rows."""
    cells = torch.zeros(1, 256, 256, dtype=torch.bool)
    assert squares_of(Mask(cells, empty="uniform"), causal=False, padded=False, length=256) > LAYERS * HEADS
