"""What leaving removed cells out saves: ``python benchmarks/sparse.py``.

The attention operation alone, one call after the other in interleaved rounds, against torch's SDPA without a mask and
with one (which computes every score):

- ``band``: each token sees its neighbours, as many as leave the share of removed cells of the row;
- ``window``: the same number, all but the first four of them before the token (causal, against causal SDPA);
- ``random``: cells drawn at random, the worst case: blocks of 16 queries then need nearly all keys.

``limit`` is how many times fewer cells the plan computes than there are: no kernel that computes blocks of 16 queries
can gain more. Times are medians of CPU seconds (wall seconds with several threads).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from attrim.kernels import team
from attrim.kernels.sparse import SparsePlan, attend_sparse

WIDTH = 64


def pattern(kind: str, length: int, removed: float) -> Tensor:
    """Bool ``[length, length]``, the cells that are kept."""
    places = torch.arange(length)
    distance = places[:, None] - places
    if kind == "band":
        return distance.abs() <= round(length * (1 - removed) / 2)
    if kind == "window":
        # Half of the cells are of the future, which a causal model never computes.
        kept = (distance < max(1, round(length * (1 - removed) / 2) - 4)) | (places < 4)
        return kept & (distance >= 0)
    generator = torch.Generator().manual_seed(0)
    return torch.rand(length, length, generator=generator) >= removed


def seconds(ways: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """The median of each way, in rounds that take turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            begun = clock()
            way()
            if number:  # the first round warms up
                times[name].append(clock() - begun)
    return {name: statistics.median(own) for name, own in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[384, 1024, 2048, 4096])
    parser.add_argument("--removed", type=float, nargs="+", default=[0.5, 0.8, 0.9, 0.95])
    parser.add_argument("--kinds", nargs="+", default=["band", "window", "random"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    console = Console()
    if not team.available() or team.PATHS[team.path()] == "torch":
        console.print("The compiled passes are not there, so nothing is left out on this machine.")
        return
    title = f"attention with {WIDTH} numbers a head, kernel {team.PATHS[team.path()]}, threads {options.threads}"
    columns = ("pattern", "tokens", "removed", "SDPA ms", "SDPA + mask, x SDPA", "attrim, x SDPA", "gain", "limit")
    table = Table(*columns, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for kind in options.kinds:
        for length in options.lengths:
            batch, heads = (2, 12) if length <= 1024 else (1, 4)
            query, key, value = (torch.randn(batch, length, heads, WIDTH).transpose(1, 2) for _ in range(3))
            for removed in options.removed:
                kept = pattern(kind, length, removed)
                plan = SparsePlan.of(kept.expand(heads, -1, -1), reorder=kind == "random" and length <= 1024)
                additive = torch.zeros(length, length).masked_fill(~kept, float("-inf"))
                start = torch.zeros(batch, length, dtype=torch.int64)
                causal = kind == "window"
                stop = (torch.arange(1, length + 1) if causal else torch.full((length,), length)).expand(batch, -1)
                attend = partial(functional.scaled_dot_product_attention, query, key, value)
                ways: dict[str, Callable[[], object]] = {
                    "sdpa": partial(attend, is_causal=causal),
                    "masked": partial(attend, attn_mask=additive),
                    "sparse": partial(attend_sparse, query, key, value, WIDTH**-0.5, plan, start, stop),
                }
                times = seconds(ways, options.rounds, clock)
                computed = plan.computed().sum()
                every = heads * length * (length + 1) / 2 if causal else heads * length**2
                table.add_row(
                    kind,
                    f"{length}",
                    f"{1 - float(kept.sum()) * heads / every:.0%}",
                    f"{1e3 * times['sdpa']:.2f}",
                    f"{times['masked'] / times['sdpa']:.2f}",
                    f"{times['sparse'] / times['sdpa']:.2f}",
                    f"{times['sdpa'] / times['sparse']:.2f}",
                    f"{every / computed:.2f}",
                )
    console.print(table)


if __name__ == "__main__":
    main()
