"""Measuring takes memory that does not grow with the number of batches."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

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
