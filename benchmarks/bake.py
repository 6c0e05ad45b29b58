"""What baking saves, against the dense model with SDPA: ``python benchmarks/bake.py``.

Rows: (a) BERT-base shape, dense, SDPA; (b) every head constant; (c) half of the heads of every layer removed; (d) two
constant heads a layer, where little can be saved. The rows take turns within every round, there and back again, and the
table shows the median over rounds of the ratio of (a) to each row. Peak memory is that of a process that does nothing
else. There is no padding; the weights and constants are random, which does not matter to the time.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import BertConfig, BertModel, logging

ROWS = {
    "dense": "(a) dense, SDPA",
    "constant": "(b) all heads constant",
    "half": "(c) half of the heads removed",
    "few": "(d) two constant heads a layer",
}
LENGTHS = {64: 16, 128: 8, 384: 4, 1024: 2}
"""Lengths to the size of a batch."""
TARGETS = {
    ("constant", 64): 1.15,
    ("constant", 128): 1.15,
    ("constant", 1024): 1.3,
    ("half", 128): 1.12,
    ("half", 1024): 1.25,
    ("few", 64): 1.0,
    ("few", 128): 1.0,
    ("few", 384): 1.0,
    ("few", 1024): 1.0,
}


def build(row: str, length: int) -> torch.nn.Module:
    """One of the models; matrices are as long as the texts, as after a study with that layout."""
    import attrim

    torch.manual_seed(0)
    model = BertModel(BertConfig(max_position_embeddings=1024, attn_implementation="sdpa"), add_pooling_layer=False)
    model = model.eval()
    if row == "dense":
        return model
    if row == "half":
        return attrim.bake(model, attrim.Gate(0, select=attrim.Select(heads=list(range(0, 12, 2)))))
    heads = list(range(12)) if row == "constant" else [3, 7]
    matrices = {site.name: torch.rand(12, length, length) for site in attrim.sites(model)}
    return attrim.bake(model, attrim.Constant(matrices, select=attrim.Select(heads=heads)))


def inputs(length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(1000, 30000, (LENGTHS[length], length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def run(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> None:
    with torch.inference_mode():
        model(**batch)


def time_rows(models: dict[str, torch.nn.Module], length: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of every row in every round."""
    from attrim.baking.cost import in_turns

    batch = inputs(length)
    return in_turns({row: functools.partial(run, model, batch) for row, model in models.items()}, rounds)


def peak(folder: str, length: int) -> float:
    """Peak memory in MiB of this process, which loads a saved model and runs three batches.

    Linux counts the memory of the parent in ``ru_maxrss`` of a process that it starts, but not in ``VmHWM``.
    """
    import attrim

    model = attrim.load(folder) if (Path(folder) / "baked.json").exists() else BertModel.from_pretrained(folder)
    for _ in range(3):
        run(model.eval(), inputs(length))
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def peak_apart(model: torch.nn.Module, length: int) -> float:
    """Peak memory of a model in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        command = [sys.executable, __file__, "--peak", folder, str(length)]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def report(length: int, rounds: int, rows: list[str], memory: bool) -> bool:
    """Print the table of one length; whether all targets are met."""
    from rich.console import Console
    from rich.table import Table

    import attrim

    models = {row: build(row, length) for row in rows}
    seconds = time_rows(models, length, rounds)
    ratio = {row: statistics.median(a / b for a, b in zip(seconds["dense"], seconds[row], strict=True)) for row in rows}
    table = Table(title=f"{LENGTHS[length]} x {length} tokens, {rounds} rounds, {torch.get_num_threads()} threads")
    for column in ("", "seconds", "faster x", "peak MiB", "parameters", "constants", "GFLOP a text"):
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        cost = attrim.baking.cost(models[row], length)
        table.add_row(
            ROWS[row],
            f"{statistics.median(seconds[row]):.4f}",
            f"{ratio[row]:.3f}",
            f"{peak_apart(models[row], length):.0f}" if memory else "",
            f"{cost.parameters:,}",
            f"{cost.constants:,}",
            f"{cost.flops / 1e9:.2f}",
        )
    console = Console(width=120)
    console.print(table)
    met = True
    for row in rows:
        target = TARGETS.get((row, length))
        if target is not None:
            reached = ratio[row] >= target
            met &= reached
            console.print(f"{'Met' if reached else 'Missed'}: {ROWS[row]} {ratio[row]:.3f} x, target {target} x.")
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--length", type=int, choices=LENGTHS, action="append")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="dense always runs")
    parser.add_argument("--threads", type=int, help="torch's threads (default: all cores)")
    parser.add_argument("--no-memory", action="store_true", help="leave out peak memory")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.peak:
        print(json.dumps(peak(options.peak[0], int(options.peak[1]))))
        return
    rows = [row for row in ROWS if row in {"dense", *options.rows}]
    met = [report(length, options.rounds, rows, not options.no_memory) for length in options.length or LENGTHS]
    print("All targets are met." if all(met) else "Some targets are missed.")


if __name__ == "__main__":
    main()
