"""The demo: what a real model's attention looks like, and how much of it can be zeroed.

A small version of the measurements of Ji et al. 2021 (https://arxiv.org/abs/2106.01335), with the controls that tell
whether the score says anything about attention at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..evaluation import UNEDITED, Result
from ..measurement import measure
from ..models.loading import load_model, load_tokenizer
from ..plots import Point, distribution, head_histograms, head_map, save, score_against_sparsity
from ..runs.run import Run
from ..stats import Histogram, Mean, Moments
from ..tasks import load_task
from .base import register
from .settings import evaluate_each, parse_settings

TEXT = Path(__file__).parent.parent / "data" / "paragraphs.json"
PARAGRAPHS = 120
BARS = ("0.001", "0.005", "0.01", "0.02", "0.05", "0.1")
CONTROLS = {"gate:0": "attention off", "uniform": "uniform", "random-drop:0.8": "random drop of 80 %"}
METRIC = "top-1"
BAR = 1e-2  # the threshold that the picture of all heads shows
TOLERANCE = 2.0  # points of the metric: a change counts as harmless when its interval rules out a larger loss


@dataclass(frozen=True)
class Findings:
    """What the demo found: two of its stats, a result for each setting, the figures, and one sentence."""

    folder: Path
    histogram: Histogram
    moments: Moments
    results: dict[str, Result]
    figures: list[Path]
    sentence: str


@register("demo")
def demo(
    output: Path | str = "runs",
    model: str = "minilm",
    limit: int | None = None,
    seed: int = 123,
    device: str = "cpu",
    dtype: str = "float32",
    progress: bool = True,
) -> Findings:
    """Measure a real sentence encoder, threshold its attention at several levels, and compare with controls.

    Parameters
    ----------
    output : folder of runs; a run that was interrupted goes on.
    limit : ask this many of the shipped questions (default: all).
    """
    network, tokenizer = load_model(model, device=device, dtype=dtype), load_tokenizer(model)
    text = load_task("squad-paragraphs", data=str(TEXT), seed=seed)
    retrieval = load_task("retrieval", data=str(TEXT), seed=seed, limit=limit, paragraphs=PARAGRAPHS)
    settings = parse_settings([*(f"threshold:{bar}" for bar in BARS), *CONTROLS])
    # The path of the installed file says nothing about the results; its content does.
    options = retrieval.options() | {"data": text.fingerprint()}
    identity = {"study": "demo", "model": model, "dtype": dtype, "task": options}
    with Run.open(output, identity, name="demo") as run:
        batches = text.feed(network, tokenizer)
        histogram, moments = Histogram(), Moments()
        stats = measure(network, batches, [histogram, Mean(), moments], progress=progress)
        stats.save(run.folder / "stats")
        results = evaluate_each(network, retrieval, tokenizer, settings, run, progress)
        figures = draw(histogram, results, run.folder / "figures")
        run.finish()
    return Findings(run.folder, histogram, moments, results, figures, sentence(results))


def draw(histogram: Histogram, results: dict[str, Result], folder: Path) -> list[Path]:
    """Write all figures of the demo."""
    unedited = results[UNEDITED].metrics[METRIC]
    points = [point(f"threshold:{bar}", bar, results) for bar in BARS]
    controls = [point(setting, label, results) for setting, label in CONTROLS.items()]
    label = f"share of weights ≤ {BAR:g}"
    figures = {
        "distribution": distribution(histogram),
        "sparsity-of-heads": head_map(histogram.sparsity(BAR), histogram.sites, label),
        "histogram-of-heads": head_histograms(histogram),
        "score-against-sparsity": score_against_sparsity(
            {"threshold": points}, controls, unedited, "top-1 retrieval (%)"
        ),
    }
    return [path for name, figure in figures.items() for path in save(figure, folder / name)]


def point(setting: str, label: str, results: dict[str, Result]) -> Point:
    """A setting as a point of the figure; its interval is that of the change, moved to the score."""
    result, unedited = results[setting], results[UNEDITED].metrics[METRIC]
    change = result.changes[METRIC]
    return Point(label, result.zero_share, result.metrics[METRIC], unedited + change.low, unedited + change.high)


def sentence(results: dict[str, Result]) -> str:
    """Say what was found, from the numbers alone: the most that can be zeroed before a real loss is possible."""
    questions = len(results[UNEDITED].columns["rank"])
    random, off = (results[name].changes[METRIC] for name in ("random-drop:0.8", "gate:0"))
    controls = f"dropping 80 % at random changes it by {random} and switching attention off by {off}"
    thresholds = {bar: results[f"threshold:{bar}"] for bar in BARS}
    harmless = {bar: result for bar, result in thresholds.items() if result.changes[METRIC].low >= -TOLERANCE}
    if not harmless:
        return (
            f"On {questions} questions a loss of more than {TOLERANCE:g} points of {METRIC} cannot be ruled out for "
            f"any threshold that was tried; {controls}."
        )
    bar, best = max(harmless.items(), key=lambda pair: pair[1].zero_share)
    return (
        f"On {questions} questions, zeroing the {100 * best.zero_share:.0f} % of attention weights that are not above "
        f"{bar} changes {METRIC} by {best.changes[METRIC]} points, and the embeddings keep a mean cosine of "
        f"{best.distances['cosine']:.2f} with the unedited ones; {controls}."
    )
