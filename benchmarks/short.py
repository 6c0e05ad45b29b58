"""What short texts cost in a model that carries a pattern: ``OMP_NUM_THREADS=1 python benchmarks/short.py``.

A pattern saves nothing at 16 tokens, so what counts there is that a baked model does nothing that the stock model does
not do. Both run in turns, and *x faster* is the median of the ratios of CPU seconds of the stock model (SDPA without a
mask) to those of the baked one. Models of two shapes with random weights (``base``: 12 layers of 768 numbers,
``small``: 6 of 384, as MiniLM) and these patterns:

- ``none``: a copy of the stock model takes the place of a baked one, and shows how much is noise;
- ``window``: a window of 64 tokens and the first 4, which keeps everything of the shortest texts;
- ``band``: 8 neighbours on each side, which removes a part of every text here;
- ``minilm``: the weakest 90 % of the cells of MiniLM's average attention (from ``benchmarks/sparse.py``).
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from sparse import averages, for_twelve_layers
from transformers import BertConfig, BertModel, logging

import attrim
from attrim.edits.base import Edit
from attrim.edits.mask import Mask
from attrim.edits.pattern import SparsePattern
from attrim.edits.window import Window

SHAPES = {
    "base": BertConfig(),
    "small": BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
}
PATTERNS = ("none", "window", "band", "minilm")


def edit_of(pattern: str, layers: int) -> Edit:
    """The edit that a model of so many layers carries."""
    if pattern == "minilm":
        found: Mask = SparsePattern(averages(128), 0.9, unseen="offset").mask
        return found if layers == 6 else for_twelve_layers(found)
    return Window(64, 4) if pattern == "window" else Window(9)


def ratio(stock: Any, baked: Any, inputs: dict[str, torch.Tensor], rounds: int) -> tuple[float, float]:
    """Milliseconds of the stock model, and how many times faster the baked one is."""
    times: dict[Any, list[float]] = {stock: [], baked: []}
    with torch.inference_mode():
        for number in range(rounds + 2):
            # There and back again, because a model inherits the caches of the one before it.
            for model in (stock, baked) if number % 2 else (baked, stock):
                begun = time.process_time()
                model(**inputs)
                if number > 1:
                    times[model].append(time.process_time() - begun)
    pairs = zip(times[stock], times[baked], strict=True)
    return 1e3 * statistics.median(times[stock]), statistics.median(a / b for a, b in pairs)


def main() -> None:
    """Time, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--patterns", nargs="+", default=list(PATTERNS), choices=PATTERNS)
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--padded", action="store_true", help="the second half of the texts is shorter by a quarter")
    options = parser.parse_args()
    logging.set_verbosity_error()
    table = Table("shape", "pattern", *(f"{n} x {length}" for n in options.batches for length in options.lengths))
    for name in options.shapes:
        torch.manual_seed(0)
        stock = BertModel(SHAPES[name], add_pooling_layer=False).eval()
        stock.set_attn_implementation("sdpa")
        for pattern in options.patterns:
            layers = SHAPES[name].num_hidden_layers
            baked = copy.deepcopy(stock) if pattern == "none" else attrim.bake(stock, edit_of(pattern, layers))
            found = []
            for batch in options.batches:
                for length in options.lengths:
                    real = torch.ones(batch, length, dtype=torch.long)
                    if options.padded:
                        real[batch // 2 :, -length // 4 :] = 0
                    inputs = {"input_ids": torch.randint(1000, 30000, (batch, length)), "attention_mask": real}
                    # Batches of long texts take a second in a large model.
                    milliseconds, gain = ratio(stock, baked, inputs, max(5, options.rounds // max(1, batch // 2)))
                    found.append(f"{gain:.3f} ({milliseconds:.1f} ms)")
            table.add_row(name, pattern, *found)
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
