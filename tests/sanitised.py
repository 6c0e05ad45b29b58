"""Run every compiled function on many shapes; a program for test_sanitised.py, which has compiled them with sanitisers.

``python sanitised.py LIBRARY grid`` runs them all, ``python sanitised.py LIBRARY overrun`` makes a mistake on purpose;
``emulated`` behind it says that the library has the AVX-512 path emulated.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy
import torch

CASES = 40
"""For each path."""


def fused_case(random: numpy.random.Generator, generator: torch.Generator) -> None:
    """Attention with edits and all stats, then the same weights counted by the pass that only counts."""
    import attrim
    from attrim.core.call import Call
    from attrim.kernels.attend import attend
    from attrim.kernels.blocks import Spans, blocks, find_edges
    from attrim.kernels.feed import Feed
    from attrim.stats import Histogram, Mean, Moments
    from calls import KINDS, LAYOUTS, make_allowed, strided

    batch, groups, shared = (int(each) for each in random.integers(1, 4, 3))
    queries, keys = (int(each) for each in random.integers(1, 70, 2))
    size, value_size = (int(each) for each in random.choice([1, 3, 8, 16, 17, 40, 64, 97], 2))
    heads = groups * shared
    layouts = random.choice(LAYOUTS, 3)
    query = strided(generator, batch, heads, queries, size, layouts[0])
    key = strided(generator, batch, shared, keys, size, layouts[1])
    value = strided(generator, batch, shared, keys, value_size, layouts[2])
    if random.random() < 0.1:
        query[0, 0, 0] = torch.nan  # its weights must not lead anywhere either
    allowed = make_allowed(str(random.choice(KINDS)), batch, queries, keys, generator)
    call = Call.plain(query.new_empty(batch, heads, queries, keys), allowed)
    call = dataclasses.replace(call, queries=torch.rand(batch, queries, generator=generator) < 0.8)
    edges = find_edges(allowed)
    assert edges is not None
    chosen = tuple(sorted({int(head) for head in random.integers(0, heads, 2)}))
    edits = [
        (attrim.Threshold(0.02), chosen),
        (attrim.Threshold(1.0, "uniform", True), chosen),
        (attrim.Threshold(0.3, "row-maximum"), call.heads),
        (attrim.Quantize("linear-slog-clamped-midval", bits=3), call.heads),
        (attrim.Quantize("linear-slog-clamped-midval", bits=8, renormalize=True), chosen),
    ]
    some = [edits[place] for place in sorted(random.choice(len(edits), int(random.integers(0, 3)), replace=False))]
    watched = [(stat, chosen) for stat in (Histogram(), Mean(), Moments())]
    try:
        output = attend(query, key, value, call, edges, None, watched, some)
    except attrim.errors.DataError:
        assert query.isnan().any()
        return
    assert output is not None
    if not query.isnan().any():
        weights = torch.softmax((query @ key.repeat_interleave(groups, 1).mT).masked_fill(~allowed, -1e9), -1)
        spans = Spans.of(edges, call.queries, batch)
        feed = Feed.begin(call, spans, watched[:2])
        for block in blocks(spans, heads, int(random.choice([50, 1 << 20]))):
            feed.add(weights[block.examples, block.heads, block.queries, block.keys].contiguous(), block)


def sparse_case(random: numpy.random.Generator, generator: torch.Generator) -> None:
    from attrim.kernels.sparse import SparsePlan, attend_sparse

    batch, groups, shared = (int(each) for each in random.integers(1, 3, 3))
    queries, keys, size, value_size = (int(each) for each in random.integers(1, 70, 4))
    heads, more = groups * shared, int(random.integers(0, 20))
    dtype = torch.bfloat16 if random.random() < 0.5 else torch.float32
    query = torch.randn(batch, queries, heads, size, generator=generator).transpose(1, 2).to(dtype)
    key = torch.randn(batch, keys, shared, size, generator=generator).transpose(1, 2).to(dtype)
    value = torch.randn(batch, shared, value_size, keys, generator=generator).mT.to(dtype)
    # A plan may be made for longer texts.
    kept = torch.rand(heads, queries + more, keys + more, generator=generator) < float(random.choice([0, 0.05, 0.5, 1]))
    start = torch.randint(0, keys + 1, (batch, queries), generator=generator)
    stop = torch.minimum(start + torch.randint(0, keys + 1, (batch, queries), generator=generator), torch.tensor(keys))
    attend_sparse(query, key, value, 1.0, SparsePlan.of(kept, reorder=random.random() < 0.5), start, stop)


def look_up_case(random: numpy.random.Generator, generator: torch.Generator) -> None:
    from attrim.codebooks.base import make_codebook
    from attrim.codebooks.lookup import look_up

    table = make_codebook("linear-slog-clamped-midval", bits=int(random.integers(1, 9))).table()
    assert table is not None
    weights = torch.rand(int(random.choice([1, 5, 1000, 40_000])), generator=generator)
    weights[torch.rand(weights.shape, generator=generator) < 0.2] = 0.0
    special = torch.tensor([-1.0, -0.0, 2.0**-149, 1.0, 1.5, 3e38, torch.inf, torch.nan, -torch.nan])
    look_up(torch.cat([weights, special]), table)


def rows_case(random: numpy.random.Generator, generator: torch.Generator) -> None:
    """All facts about rows; some cells do not count, and some numbers are none."""
    from attrim.core.call import Call
    from attrim.core.site import Site
    from attrim.edits.quantize import Quantize
    from attrim.edits.threshold import Threshold
    from attrim.errors import DataError
    from attrim.kernels.described import describe
    from attrim.kernels.feed import BinBuffers
    from attrim.stats.bins import BINS, bin_table

    heads, queries, keys = (int(each) for each in random.integers(1, [4, 6, 90]))
    weights = torch.softmax(6 * torch.randn(heads, queries, keys, generator=generator), -1)
    special = float(random.choice([0.0, 0.5, -0.1, 2.0**-149, 1.0]))
    weights[torch.rand(weights.shape, generator=generator) < 0.2] = special
    shape = int(random.choice([1, heads])), queries, keys
    valid = torch.rand(shape, generator=generator) < float(random.choice([0, 0.5, 0.98, 1]))
    if random.random() < 0.2:
        weights[0, 0, 0] = float(random.choice([numpy.nan, numpy.inf, -numpy.inf, 1e30]))
    site = Site("rows", "encoder", 0, heads)
    bins, levels = int(random.choice([1, 100, 3000])), int(random.integers(1, 60))
    into = BinBuffers(tuple(range(heads)), torch.zeros(heads, BINS, dtype=torch.int64), torch.zeros(heads).long())
    curves = torch.zeros(heads, bins, levels + 1, dtype=torch.int64)
    single, double = (bin_table(1e-8, bins, dtype) for dtype in (torch.float32, torch.float64))
    try:
        describe(weights, valid, site, table=single, curves=curves, bars=[0.0, 0.1], majority=True, into=into)
        edits = [Threshold(0.02), Threshold(0.3, "row-maximum", True), Quantize("linear-slog-clamped-midval", bits=8)]
        call = Call.plain(weights[None])
        facts = {"table": single, "counts": True, "shares": True, "medians": True, "extremes": True}
        operations = [edit.compiles(call) for edit in edits]
        before = describe(weights, valid, site, **facts, edits=operations, wide_table=double)
        if before is None:  # a number too large for the sums of edited rows
            before = describe(weights, valid, site, **facts)
        assert before is not None
        describe(weights.double(), valid, site, table=double, before=before.counts, sums=True)
    except DataError:
        assert not torch.isfinite(weights).all()


def grid() -> None:
    """Every function, on every path that this machine has."""
    from attrim.kernels import _compiled, team

    for path in range(1, _compiled.BEST_PATH + 1):
        team.path = lambda path=path: path  # type: ignore[misc,assignment]
        random, generator = numpy.random.default_rng(path), torch.Generator().manual_seed(path)
        for number in range(CASES):
            torch.set_num_threads(1 + number % 2)
            for case in (fused_case, sparse_case, look_up_case, rows_case):
                case(random, generator)
        print(team.PATHS[path], CASES, flush=True)


def overrun() -> None:
    """A look-up of one number more than there are."""
    from attrim.codebooks.base import make_codebook
    from attrim.kernels import team

    table = make_codebook("linear-slog-clamped-midval", bits=3).table()
    assert table is not None
    weights, result, following = torch.rand(1000), torch.empty(1000), torch.zeros(1, dtype=torch.int64)
    parameters = team.LookUpParameters(
        next=following.data_ptr(), weights=weights.data_ptr(), result=result.data_ptr(), size=1001,
        table=table.parameters(),
    )  # fmt: skip
    team.run("look_up", parameters)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from built import load

    load(sys.argv[1], emulated="emulated" in sys.argv[3:])
    {"grid": grid, "overrun": overrun}[sys.argv[2]]()
