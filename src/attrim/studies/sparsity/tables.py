"""The tables of the sparsity study as CSV files: single heads, frequent tokens, and the tokens of single examples."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...measurement import Stats
from ...runs.files import replace_file, storage
from ...stats import Histogram
from ...stats.spread import Extremes, Majority
from ...stats.token_sparsity import TokenRow, TokenSparsity, TokenTable

Row = Sequence[Any]


def write_tables(stats: dict[str, Stats], tokenizer: Any, folder: Path) -> list[Path]:
    """Write every table that the stats allow to ``folder``; returns the files."""
    tables: list[tuple[str, Iterable[Row]]] = [("heads", heads_table(stats["weights"]))]
    for stat in stats["tokens"].values() if "tokens" in stats else ():
        if isinstance(stat, TokenSparsity) and "tokens" not in dict(tables):  # the first one: all heads
            tables.append(("tokens", tokens_table(stat, tokenizer)))
        elif isinstance(stat, TokenTable):
            tables += [(name, example_table(rows, tokenizer)) for name, rows in examples(stat)]
    written = []
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in tables:
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(rows)
            path = folder / f"{name}.csv"
            replace_file(path, text.getvalue().encode())
            written.append(path)
    return written


def heads_table(stats: Stats) -> Iterator[Row]:
    """A row for each head: how the extremes of examples and the facts about rows vary."""
    features, majority, histogram = stats["Extremes"], stats["Majority"], stats["Histogram"]
    assert isinstance(features, Extremes)
    assert isinstance(majority, Majority)
    assert isinstance(histogram, Histogram)
    measures = {"mean": features.mean, "std": features.std, "lowest": features.lowest, "highest": features.highest}
    columns = {f"{how} of {fact}": read(fact) for fact in features.facts for how, read in measures.items()}
    columns |= {f"share not above {histogram.bar:g}": histogram.sparsity(histogram.bar)}
    columns |= {"tokens to majority": majority.mean("tokens"), "rows without majority": majority.missing()}
    columns |= {"median bin": histogram.median_bin(), "diversity": histogram.diversity()}
    numbers = np.stack([np.asarray(table, dtype=float) for table in columns.values()], -1)  # [sites, heads, columns]
    yield ["role", "layer", "head", *columns]
    for place, site in enumerate(histogram.sites):
        for head in range(site.heads):
            if np.isfinite(numbers[place, head]).any():  # watched
                yield [site.role, site.layer, head, *(f"{number:.6g}" for number in numbers[place, head])]


def tokens_table(stat: TokenSparsity, tokenizer: Any) -> Iterator[Row]:
    """The most frequent tokens of the data set, the sparsest first."""
    yield ["token", "rows", f"share not above {stat.bars[-1]:g}"]
    for token, rows, shares in sorted(stat.most_frequent(), key=lambda item: -item[2][-1]):
        yield [name_of(tokenizer, token), rows, f"{shares[-1]:.6f}"]


def example_table(rows: Sequence[TokenRow], tokenizer: Any) -> Iterator[Row]:
    """The tokens of one example, the sparsest first."""
    yield ["place", "token", "weights", "not above the bar", "share"]
    for row in sorted(rows, key=lambda row: (-row.sparsity, row.place)):
        yield [row.place, name_of(tokenizer, row.token), row.weights, row.small, f"{row.sparsity:.6f}"]


def examples(stat: TokenTable) -> Iterator[tuple[str, list[TokenRow]]]:
    """The tokens of every kept example under a name for files; with its stream where a model has several."""
    streams = list(dict.fromkeys(site.streams[0] for site in stat.sites))
    for number in stat.examples:
        for stream in streams:
            yield f"tokens-example-{number}" + (f"-{stream}" if len(streams) > 1 else ""), stat.rows(number, stream)


def name_of(tokenizer: Any, token: int) -> str:
    """A token as text, with its spaces removed as in the paper's tables."""
    return str(tokenizer.decode([token])).replace(" ", "").replace("\n", "\\n") or f"#{token}"
