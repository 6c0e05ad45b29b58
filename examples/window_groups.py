"""Which groups of heads can do with a window, and what that costs a language model.

Run with ``python examples/window_groups.py smollm2 --score-data VALID.txt --data TEST.txt``. Every head gets the rise
of the loss that a window would cause (the score ``fisher``, to second order, from one backward pass a text); heads that
share keys and values are windowed together, so the numbers of a group are added up. The least important groups get the
window, beside as many that are drawn at random. The heads are written as ``--edit`` takes them, so that
``attrim bake MODEL --edit "$(cat FILE)" --output FOLDER`` makes a model whose ``generate`` frees the keys between.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from rich.console import Console
from rich.table import Table

import attrim
from attrim.core.site import Site
from attrim.edits import Window
from attrim.evaluation import Prepared, evaluate_settings
from attrim.models.loading import load_model, load_tokenizer
from attrim.scores.base import Scores
from attrim.studies.heads.scoring import score_task
from attrim.tasks import load_task

Group = tuple[str, tuple[int, ...]]
"""The name of a site, and the heads there that share keys and values."""


def groups_by_importance(scores: Scores, size: int | None) -> list[Group]:
    """All groups of ``size`` heads (None: whole layers), those first whose heads together matter least."""
    found: dict[Group, float] = {}
    for site in scores.sites:
        for first in range(0, site.heads, size or site.heads):
            heads = tuple(range(first, first + (size or site.heads)))
            found[site.name, heads] = float(scores.values[site.name][list(heads)].sum())
    return sorted(found, key=lambda group: found[group])


def window(groups: list[Group], size: int, first: int) -> Window:
    """The window for some groups."""
    return Window(size, first, select=attrim.Select(heads=[(name, head) for name, heads in groups for head in heads]))


def as_text(groups: list[Group], sites: list[Site], size: int, first: int) -> str:
    """The same as ``--edit`` takes it."""
    layers = {site.name: site.layer for site in sites}
    heads = "+".join(f"{layers[name]}/{head}" for name, heads in sorted(groups) for head in heads)
    return f"window:{size},first={first},heads={heads}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--score-data", required=True, help="text that groups are scored on")
    parser.add_argument("--data", required=True, help="text that perplexity is measured on")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.25, 0.5, 0.75], help="groups with a window")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--first", type=int, default=4)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--score-limit", type=int, default=2, help="texts to score on")
    parser.add_argument("--limit", type=int, default=4, help="texts to measure on")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="one draw of random groups for each")
    parser.add_argument("--whole-layers", action="store_true", help="window all heads of a layer, as layer types do")
    parser.add_argument("--output", type=Path, help="folder for the edits, one file for each share")
    options = parser.parse_args()
    model, tokenizer = load_model(options.model, kind="causal-lm").eval(), load_tokenizer(options.model)
    shape = {"max_length": options.max_length, "seed": None, "batch_size": 1}
    scored = load_task("causal-lm", data=options.score_data, limit=options.score_limit, **shape)
    measured = load_task("causal-lm", data=options.data, limit=options.limit, **shape)
    change = Window(options.size, options.first)
    prepared = Prepared(model, scored, tokenizer, count_zeros=False)
    scores = score_task(prepared, attrim.Fisher(change="replaced"), change)
    config = model.config
    size = None if options.whole_layers else config.num_attention_heads // config.num_key_value_heads
    order = groups_by_importance(scores, size)
    orders = {"by Fisher": order}
    for seed in options.seeds:
        orders[f"random, seed {seed}"] = random.Random(seed).sample(sorted(order), len(order))
    counts = {share: round(share * len(order)) for share in options.shares}
    settings = {
        f"{share:.0%}, {name}": [window(groups[:count], options.size, options.first)]
        for share, count in counts.items()
        for name, groups in orders.items()
    }
    results = evaluate_settings(model, measured, tokenizer, settings, announce=print)
    title = f"{options.model}, window {options.size} + {options.first}, {options.limit} x {options.max_length} tokens"
    table = Table(
        f"{'layers' if options.whole_layers else 'groups'} with a window",
        "perplexity",
        "change",
        "relative",
        title=title,
    )
    dense = results["unedited"].metrics["perplexity"]
    for name, result in results.items():
        perplexity = result.metrics["perplexity"]
        shown = "" if name == "unedited" else str(result.changes["perplexity"])
        table.add_row(name, f"{perplexity:.2f}", shown, f"{100 * (perplexity / dense - 1):+.1f} %")
    Console(width=100).print(table)
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        for share, count in counts.items():
            text = as_text(order[:count], scores.sites, options.size, options.first)
            (options.output / f"window-{share:.0%}.txt").write_text(text + "\n")


if __name__ == "__main__":
    main()
