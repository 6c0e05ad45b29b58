"""Tables, charts and sentences about single heads."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...core.charts import Chart, Column, HeadMatrix, Table
from ...core.checked import Cell
from .headwise import CHANGES, PREDICTORS, PrunedHeads

LABELS = {**PREDICTORS, "pruned": "rise of the loss, pruned", "constant": "rise of the loss, constant"}
CHANGED = {"pruned": "pruned", "constant": "constant"}
WORDS = {"pruned": "pruned", "constant": "replaced by its average"}


def heads_tables(found: PrunedHeads, title: str) -> list[Table]:
    """How well each predictor tells what a head costs; in a file only, every head."""
    columns = [Column("site"), Column("role"), Column("layer", "count"), Column("head", "count")]
    columns += [Column(label, "general", 6) for label in LABELS.values()]
    rows: list[list[Cell]] = [
        [head.site, head.role, head.layer, head.head, *(getattr(head, name) for name in LABELS)] for head in found.heads
    ]
    every = Table("heads", f"{title}: one head at a time", columns=columns, rows=rows, detail=True)
    if not found.agreements:
        return [every]
    known = {(each.predictor, each.change): each for each in found.agreements}
    agreements: list[list[Cell]] = [
        [PREDICTORS[predictor]]
        + [
            str(each)
            for change in CHANGES
            for each in (known[predictor, change].correlation, known[predictor, change].size)
        ]
        for predictor in PREDICTORS
    ]
    caption = (
        f"Spearman's rank correlation with the rise of the loss ({found.loss:.4f} unchanged) when one head of "
        f"{len(found.heads)} is changed, on {found.examples:,} held-out examples and without training again, with 95 % "
        f"bootstrap interval over heads; size: with the size of the rise, whatever its sign. Pruned: its cells removed "
        f"as at tau {found.tau:g}. Constant: replaced by its average. The distance is the order 'divergence' of the "
        "constant study."
    )
    names = [Column("predictor")]
    names += [Column(label) for change in CHANGES for label in (CHANGED[change], f"{CHANGED[change]}, size")]
    return [
        Table("predictors", f"{title}: what tells which head is free", columns=names, rows=agreements, caption=caption),
        every,
    ]


def heads_charts(found: PrunedHeads) -> Iterator[Chart]:
    """A matrix of layers and heads for each number."""
    sites = list(dict.fromkeys((head.site, head.role, head.layer) for head in found.heads))
    width = max(head.head for head in found.heads) + 1
    for name, label in LABELS.items():
        values = np.full((len(sites), width), np.nan)
        for head in found.heads:
            values[sites.index((head.site, head.role, head.layer)), head.head] = getattr(head, name)
        rise, limit = name in CHANGES, float(np.nanmax(np.abs(values))) or 1.0
        if rise:
            # A rise of 0.00012 and one of 0 would look alike in the cells, so they are in units of their own size.
            power = math.floor(math.log10(limit))
            values, limit = np.round(values / 10.0**power, 2) + 0.0, limit / 10.0**power
            label = f"{label} (1e{power} nats)"
        yield HeadMatrix(
            f"heads-{name}",
            values=values,
            roles=[role for _, role, _ in sites],
            layers=[layer for _, _, layer in sites],
            label=label,
            diverging=rise,
            low=-limit if rise else 0.0,
            high=limit,
        )


def heads_sentences(found: PrunedHeads) -> list[str]:
    """Which predictor tells best that a head can be pruned, or be constant, for free."""
    said = []
    for change in CHANGES:
        own = [each for each in found.agreements if each.change == change]
        if not own:
            continue
        for what, part in (("how much the loss rises", "correlation"), ("how much it changes", "size")):
            best = max(own, key=lambda each: abs(getattr(each, part).value))
            interval = getattr(best, part)
            sure = interval.low > 0 or interval.high < 0
            verdict = "" if sure else ", which may be chance, so none of them tells"
            said.append(
                f"One head {WORDS[change]}: {what} is best told by the {PREDICTORS[best.predictor]}, rank correlation "
                f"{interval}{verdict}."
            )
    return said
