"""Do explanations find the heads that matter? LXMERT and VisualBERT on ``shapes``, several trainings, both directions.

Run with ``python examples/heads_on_shapes.py FOLDER``. It trains each model with each seed, runs the heads study on the
1,000 validation items, and prints areas under the curves and what maps point at, over all trainings. Questions are
drawn with replacement, each with the answers of all trainings, because all were asked the same. What is finished is not
repeated, so it can be stopped and started again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy

import attrim
from attrim.cli import main as command
from attrim.runs.result import paired_bootstrap
from attrim.runs.run import Run
from attrim.studies.heads.findings import HeadsFindings

MODELS = ("lxmert", "visualbert")
RECIPE = (
    "--steps 3000 --learning-rate 1e-3 --warmup 200 --schedule cosine --clip 5 --batch-size 64 --weight-decay 0.01 "
    "--evaluate-every 1000 --checkpoint-every 500"
)
SCORES = ("gradient-attention", "lrp", "gradient", "random")


def run(words: str) -> None:
    """Run a command of attrim; end where it fails."""
    if code := command(words.split()):
        raise SystemExit(code)


def study(model: str, seed: int, folder: Path) -> HeadsFindings:
    """Train a model, unless it is there, and run the study on it, or read what it found."""
    trained = folder / f"{model}-{seed}"
    if not trained.exists():
        run(f"train shapes-{model} --task shapes {RECIPE} --seed {seed} --output {folder}/runs --save {trained}")
    asked = attrim.Heads(scores=SCORES, parts=("prune", "explain"))
    return asked.run(attrim.Bench(trained, task="shapes", batch_size=64, output=folder / "runs"))


def areas(found: HeadsFindings, scope: str, score: str, direction: str) -> numpy.ndarray:
    """The mean score ``[N]`` of every question over the steps; of random orders over their seeds, too."""
    with Run.read(found.folder) as kept:
        accuracy: Callable[[str], numpy.ndarray] = lambda name: kept.predictions(name)["score"]
        unpruned, curves = accuracy("unedited"), []
        for curve in found.pruned.curves:
            if (curve.scope, curve.score) == (scope, score) and curve.direction in ("", direction):
                way = "" if curve.direction else "/largest"
                steps = [f"prune/head/{curve.name}{way}/{step.removed}" for step in curve.steps if step.removed]
                curves.append(numpy.mean([unpruned, *map(accuracy, steps)], axis=0))
    return 100 * numpy.mean(curves, axis=0)


def difference(one: numpy.ndarray, other: numpy.ndarray) -> str:
    """The mean of one minus that of the other, both ``[seeds, N]``, and the interval over questions."""
    mean = lambda columns: columns["value"].mean(-1)
    return str(paired_bootstrap(mean, {"value": other.mean(0)}, {"value": one.mean(0)}, resamples=10_000))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    for model in MODELS:
        found = [study(model, seed, options.folder) for seed in options.seeds]
        print(f"\n{model}: unpruned " + ", ".join(f"{each.pruned.unpruned.score:.1f}" for each in found))
        for scope in ("example", "dataset"):
            for direction in ("largest", "smallest"):
                values = {s: numpy.stack([areas(each, scope, s, direction) for each in found]) for s in SCORES}
                print(f"  {scope}, {direction} first")
                for score in SCORES:
                    each = " ".join(f"{one:.1f}" for one in values[score].mean(1))
                    print(f"    {score:20} {values[score].mean():5.1f}  by seed {each}", end="")
                    print("" if score == "random" else f"  minus random {difference(values[score], values['random'])}")
                print(f"    gradient-attention minus lrp {difference(values['gradient-attention'], values['lrp'])}")
        print("  maps that point at something relevant (%), by level, and chance")
        for seed, each in zip(options.seeds, found, strict=True):
            summary = each.explained.summary
            levels = [level["pointing"] for level in summary["levels"]] + [summary["random"]["pointing"]]
            shown = "  ".join(f"{100 * p['value']:.1f} [{100 * p['low']:.1f}, {100 * p['high']:.1f}]" for p in levels)
            print(f"    seed {seed}: {shown}")


if __name__ == "__main__":
    main()
