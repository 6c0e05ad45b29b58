"""What a cache of windows saves while text is generated: ``python benchmarks/decoding.py``.

SmolLM2 (or any causal model by name) is baked with a window and some first tokens for a share of its groups of heads,
and steps of one token are timed in turns with

- ``dense``: the stock model with transformers' ``DynamicCache``;
- ``masked``: the baked model with ``DynamicCache``, which keeps all keys and masks them;
- ``freed``: the baked model with the cache that ``generate`` gives it.

Caches are filled with random numbers, because what is in them does not change the time. Targets at 8,192 tokens with
75 % of the groups windowed: 1.2 x at batch 1, 1.8 x at batch 8, and bytes within 3 % of the plan.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin while they wait disturb on a shared machine

import torch
from rich.console import Console
from rich.table import Table
from transformers import DynamicCache

import attrim
from attrim.baking.carrying import carrying
from attrim.baking.window_cache import WindowCache, group_heads, window_cache
from attrim.edits import Window
from attrim.models.loading import load_model

BATCHES, TARGETS = (1, 8), {1: 1.2, 8: 1.8}


def baked(model: Any, share: float, size: int, first: int) -> Any:
    """The model with windows in the first groups of every layer, or of every few layers: as many as the share says."""
    config = model.config
    groups, heads = config.num_key_value_heads, config.num_attention_heads
    chosen = round(share * groups * config.num_hidden_layers)
    # One group of each layer before the second of any, so that all layers have a part of them.
    order = [(layer, group) for group in range(groups) for layer in range(config.num_hidden_layers)][:chosen]
    width = heads // groups
    pairs = [(layer, group * width + place) for layer, group in order for place in range(width)]
    return attrim.bake(model, Window(size, first, select=attrim.Select(heads=pairs)))


def fill(cache: Any, model: Any, length: int, batch: int) -> None:
    """Put so many random tokens into the cache of a model."""
    config = model.config
    size = config.hidden_size // config.num_attention_heads
    query = torch.zeros(batch, config.num_attention_heads, 1, size)
    for number in range(config.num_hidden_layers):
        key, value = torch.randn(2, batch, config.num_key_value_heads, length, size).unbind()
        if not isinstance(cache, WindowCache):
            cache.update(key, value, number)
            continue
        layer: Any = cache.layers[number]
        with cache.serving(model):
            layer.update(key, value)
            layer.begin(query, key, value, torch.ones(batch, 1, 1, length, dtype=torch.bool))


def share_weights(model: Any, other: Any) -> None:
    """Let a model use the weights of another one: where they are in memory can change a step by more than a cache."""
    for own, given in zip(model.parameters(), other.parameters(), strict=True):
        own.data = given.data


def step(model: Any, cache: Any, batch: int) -> float:
    """Seconds of one token; of one thread that is those in which it ran, so that others on its core do not matter."""
    now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begun = now()
    model(torch.ones(batch, 1, dtype=torch.long), past_key_values=cache, use_cache=True)
    return now() - begun


def held(cache: Any) -> int:
    """Bytes of keys and values."""
    if isinstance(cache, WindowCache):
        return cache.nbytes
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def planned(model: Any, length: int, batch: int) -> int:
    """Bytes that the windows leave."""
    config = model.config
    kept = sum(
        len(groups.numbers) * groups.kept(length)
        for layer in window_cache(model).layers
        for groups in group_heads(config.num_attention_heads, config.num_key_value_heads, layer.windows)  # type: ignore[union-attr]
    )
    return 2 * 4 * batch * kept * (config.hidden_size // config.num_attention_heads)


def main() -> None:
    """Time, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 8192])
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--share", type=float, default=0.75, help="groups with a window")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--first", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = load_model(options.model, kind="causal-lm").eval()
    windowed = baked(model, options.share, options.size, options.first)
    share_weights(model, windowed)
    table = Table(
        "tokens",
        "batch",
        "dense ms",
        "masked ms",
        "freed ms",
        "dense / freed",
        "target",
        "dense MiB",
        "freed MiB",
        "/ plan",
    )
    with torch.inference_mode(), carrying(windowed, whole=False):
        for length in options.lengths:
            for batch in options.batches:
                ways = {
                    "dense": (model, DynamicCache()),
                    "masked": (windowed, DynamicCache()),
                    "freed": (windowed, window_cache(windowed)),
                }
                for one, cache in ways.values():
                    fill(cache, one, length, batch)
                times: dict[str, list[float]] = {name: [] for name in ways}
                for number in range(options.rounds + 2):
                    for name, (one, cache) in random.sample(list(ways.items()), len(ways)):
                        taken = step(one, cache, batch)
                        if number > 1:
                            times[name].append(taken)
                ratio = statistics.median(a / b for a, b in zip(times["dense"], times["freed"], strict=True))
                target = TARGETS.get(batch) if length == max(options.lengths) else None
                bytes_ = {name: held(cache) for name, (_, cache) in ways.items()}
                plan = planned(windowed, length + options.rounds + 2, batch)
                table.add_row(
                    f"{length:,}",
                    str(batch),
                    *(f"{1e3 * statistics.median(own):.1f}" for own in times.values()),
                    f"{ratio:.2f}",
                    "" if target is None else f"{target:g} {'met' if ratio >= target else 'MISSED'}",
                    f"{bytes_['dense'] / 2**20:.1f}",
                    f"{bytes_['freed'] / 2**20:.1f}",
                    f"{bytes_['freed'] / plan:.3f}",
                )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
