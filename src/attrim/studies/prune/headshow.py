"""Tables, charts and sentences about single heads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...core.charts import Chart, Column, HeadMatrix, Table
from ...core.checked import Cell
from .headwise import CHANGES, PREDICTORS, PrunedHeads

LABELS = {**PREDICTORS, "pruned": "rise of the loss, pruned", "constant": "rise of the loss, constant"}
CHANGED = {"pruned": "pruned", "constant": "replaced by its average"}


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
    known = {(each.predictor, each.change): str(each.correlation) for each in found.agreements}
    agreements: list[list[Cell]] = [
        [PREDICTORS[predictor], *(known[predictor, change] for change in CHANGES)] for predictor in PREDICTORS
    ]
    caption = (
        f"Spearman's rank correlation with the rise of the loss ({found.loss:.4f} unchanged) when one head of "
        f"{len(found.heads)} is changed, on {found.examples:,} held-out examples and without training again, with 95 % "
        f"bootstrap interval over heads. Pruned: its cells removed as at tau {found.tau:g}. The distance is the order "
        "'divergence' of the constant study."
    )
    names = [Column("predictor"), *(Column(CHANGED[change]) for change in CHANGES)]
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
        rise = name in CHANGES
        limit = float(np.nanmax(np.abs(values))) or 1.0
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
        best = max(own, key=lambda each: abs(each.correlation.value))
        sure = best.correlation.low > 0 or best.correlation.high < 0
        verdict = "" if sure else ", which may be chance, so none of them tells"
        others = ", ".join(f"{PREDICTORS[each.predictor]} {each.correlation}" for each in own if each is not best)
        said.append(
            f"What a head costs when it is {CHANGED[change]}: the best predictor is the {PREDICTORS[best.predictor]}, "
            f"rank correlation {best.correlation}{verdict}; {others}."
        )
    return said
