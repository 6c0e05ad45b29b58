"""What cached features save when probes are trained: ``python benchmarks/constant.py``.

The recipe of PAPA (https://arxiv.org/abs/2211.03495) for five budgets: MiniLM on CoLA, texts on a grid of 64 slots, 15
epochs, evaluation after each of them. The same probes see the same batches in three ways, all of them really run:

- ``every epoch``: the model runs in every step on the whole grid, as in the released code;
- ``without padding``: the same, but the empty slots of the grid are left out of the model's batches;
- ``cached``: the model runs once for each budget, the probe is trained on what it gave.

The table shows seconds, their ratio to ``cached``, and the scores, which must agree. A second table shows what a step
of ``order`` costs (lambdas and probe, through the model) against a plain forward and backward pass of the frozen model.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin while they wait disturb on a shared machine

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import attrim
from attrim.attention.discover import find_sites
from attrim.edits import Constant, Mix
from attrim.models.loading import load_model, load_tokenizer
from attrim.probing.hidden_states import extract, orders
from attrim.probing.probe import make_probe
from attrim.probing.probed import Probed, train_probed
from attrim.probing.trainer import evaluate_probe, train_probe
from attrim.scores import budget_size
from attrim.scores.random import random_scores
from attrim.tasks import Task, load_task
from attrim.training.callbacks import Callback
from attrim.training.data import Step
from attrim.training.loop import Loop
from attrim.training.recipe import ProbeRecipe

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "glue"
BUDGETS = ("0", "1/2", "7/8", "15/16", "all")
TARGET = 8.0
Way = tuple[float, dict[str, float], np.ndarray, float]
"""Seconds, metrics, answers, and seconds of the processor."""


class Benchmark:
    """The model, the data and the constants that all ways share."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.model, self.tokenizer = load_model("minilm"), load_tokenizer("minilm")
        common = {"data": arguments.data, "max_length": arguments.length, "layout": "grid"}
        self.training: Task = load_task("glue/cola", split="train", limit=arguments.train, **common)
        self.validation: Task = load_task("glue/cola", limit=arguments.validation, **common)
        self.recipe = ProbeRecipe(epochs=arguments.epochs, learning_rate=arguments.learning_rate)
        feed = self.training.feed(self.model, self.tokenizer)
        mean = attrim.measure(self.model, feed, attrim.Mean(), progress=False)["Mean"]
        self.sites = find_sites(self.model)
        self.constants = {site.name: mean.matrix(site).float() for site in self.sites}
        self.order = random_scores(self.sites).order()  # which heads are constant does not change the time

    def edits(self, heads: int) -> list[Constant]:
        """The first heads of the order made constant."""
        return [Constant(self.constants, heads=self.order[:heads])] if heads else []

    def cached(self, heads: int) -> Way:
        """The model runs once."""
        started, worked = time.perf_counter(), time.process_time()
        features, validation = (
            extract(self.model, task, self.tokenizer, self.edits(heads)) for task in (self.training, self.validation)
        )
        probe = make_probe(self.model, self.training)
        train_probe(features, probe, self.training, self.recipe, validation=(validation, self.validation))
        result = evaluate_probe(validation, probe, self.validation)
        return time.perf_counter() - started, result.metrics, result.outputs, time.process_time() - worked

    def running(self, heads: int, compact: bool) -> Way:
        """The model runs in every step."""
        started, worked = time.perf_counter(), time.process_time()
        probed = Probed(self.model, make_probe(self.model, self.training), compact=compact)
        rows = self._rows(probed)
        after = AfterEpochs(self, len(rows))

        def epochs(epoch: int) -> Iterator[dict[str, Tensor]]:
            for chosen in orders(len(rows), self.recipe.batch_size, self.recipe.seed, epoch):
                yield {name: torch.stack([rows[place][name] for place in chosen]) for name in rows[0]}

        train_probed(
            probed, self.training, self.tokenizer, self.recipe, self.edits(heads), epochs=epochs, callbacks=[after]
        )
        return time.perf_counter() - started, after.metrics, after.outputs, time.process_time() - worked

    def answers(self, probed: Probed) -> tuple[dict[str, float], np.ndarray]:
        """Metrics and answers on the validation data, as the edits that are on make them; nothing else is counted."""
        parts = []
        with torch.inference_mode():
            probed.eval()
            for batch in self.validation.batches(self.tokenizer):
                parts.append((batch.index, self.validation.run(probed, batch.inputs).numpy(), batch.labels))
            probed.train()
        order = np.argsort(np.concatenate([index for index, _, _ in parts]), kind="stable")
        outputs, labels = (np.concatenate([part[place] for part in parts])[order] for place in (1, 2))
        return self.validation.score(self.validation.columns(outputs, labels)), outputs

    def _rows(self, probed: Probed) -> list[dict[str, Tensor]]:
        """The tokenised examples in the order of the features, with labels."""
        rows = []
        for batch in self.training.batches(self.tokenizer):
            labels = self.training.train_labels(batch, probed)
            tensors = {**batch.inputs, **labels}
            rows += [{name: tensor[place] for name, tensor in tensors.items()} for place in range(len(batch.index))]
        return rows


class AfterEpochs(Callback):
    """Evaluates the running model after each epoch."""

    def __init__(self, benchmark: Benchmark, examples: int) -> None:
        self.benchmark = benchmark
        self.every = -(-examples // benchmark.recipe.batch_size)
        self.metrics: dict[str, float] = {}
        self.outputs = np.empty(0)

    def after_step(self, step: Step, loop: Loop) -> None:
        """Keep the last metrics and answers."""
        if step.number % self.every == 0 or step.last:
            self.metrics, self.outputs = self.benchmark.answers(loop.model)  # type: ignore[arg-type]


def step_times(benchmark: Benchmark, rounds: int) -> Mapping[str, float]:
    """Median seconds of one step of 16 texts, the ways in turn."""
    task, model = benchmark.training, benchmark.model
    lambdas = {site.name: torch.zeros(site.heads) for site in benchmark.sites}
    ways: dict[str, Callable[[dict[str, Tensor]], float]] = {}
    for name, compact in (("whole grid", False), ("without padding", True)):
        plain = Probed(model, make_probe(model, task), compact=compact)
        mixed = Probed(model, make_probe(model, task), trained="lambdas", lambdas=lambdas, compact=compact)
        assert mixed.lambdas is not None
        mix = Mix(benchmark.constants, mixed.lambdas.by_site())
        ways[f"forward and backward, {name}"] = _step(plain, None, through=True)
        ways[f"forward, {name}"] = _step(plain, None, through=False)
        ways[f"order, {name}"] = _step(mixed, mix, through=False)
    batches = list(task.train_batches(benchmark.tokenizer, model))[: rounds + 1]
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            taken = way(batches[number % len(batches)])
            if number:  # the first round finds the sites and warms up
                seconds[name].append(taken)
    return {name: statistics.median(values) for name, values in seconds.items()}


def _step(probed: Probed, edit: attrim.edits.Edit | None, through: bool) -> Callable[[dict[str, Tensor]], float]:
    """Seconds of one forward and backward pass; ``through`` lets the gradient run through all of the frozen model."""
    probed.train()
    table = probed.get_input_embeddings()

    def run(inputs: dict[str, Tensor]) -> float:
        hook = table.register_forward_hook(lambda *given: given[2].requires_grad_()) if through else None
        with attrim.edit(probed, edit) if edit is not None else nullcontext():
            started = time.perf_counter()
            probed(**inputs).loss.backward()
            seconds = time.perf_counter() - started
        if hook is not None:
            hook.remove()
        probed.zero_grad()
        return seconds

    return run


def main() -> None:
    """Run all ways for all budgets and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(DATA))
    parser.add_argument("--train", type=int, default=512, help="training sentences of CoLA, chosen by a fixed seed")
    parser.add_argument("--validation", type=int, default=256, help="validation sentences of CoLA")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--epochs", type=float, default=15)
    parser.add_argument("--learning-rate", type=float, default=3e-4, help="the paper's 2e-5 learns little in 480 steps")
    parser.add_argument("--budgets", nargs="*", default=BUDGETS)
    parser.add_argument("--rounds", type=int, default=15, help="steps that are timed for the second table")
    arguments = parser.parse_args()
    benchmark, console = Benchmark(arguments), Console(width=120)
    heads = sum(site.heads for site in benchmark.sites)
    headings = ("constant heads", "every epoch", "without padding", "cached", "ratio", "scores", "largest difference")
    table = Table(
        *headings, title=f"CoLA, {arguments.train} + {arguments.validation} sentences, {arguments.epochs:g} epochs"
    )
    totals, work = np.zeros(3), np.zeros(3)
    same = True
    for budget in arguments.budgets:
        count = budget_size(budget, heads)
        ways = [benchmark.running(count, False), benchmark.running(count, True), benchmark.cached(count)]
        seconds = np.array([way[0] for way in ways])
        work += [way[3] for way in ways]
        console.print(f"{count} constant heads: {', '.join(f'{value:.1f} s' for value in seconds)}")
        totals += seconds
        scores = [next(iter(way[1].values())) for way in ways]
        same &= max(scores) - min(scores) < 1e-9
        difference = max(float(np.abs(way[2] - ways[2][2]).max()) for way in ways)
        table.add_row(
            f"{count} of {heads}",
            *(f"{value:.1f} s" for value in seconds),
            f"{seconds[0] / seconds[2]:.1f} x, {seconds[1] / seconds[2]:.1f} x",
            ", ".join(f"{score:.2f}" for score in scores),
            f"{difference:.1e}",
        )
    ratio = totals[0] / totals[2]
    met = "met" if ratio >= TARGET else "MISSED"
    table.add_row("together", *(f"{value:.1f} s" for value in totals), f"{ratio:.1f} x, {totals[1] / totals[2]:.1f} x")
    console.print(table)
    print(f"Target {TARGET:g} x against every epoch: {met}. Scores {'agree' if same else 'DIFFER'}.")
    print(f"In processor time, which other work disturbs less: {work[0] / work[2]:.1f} x, {work[1] / work[2]:.1f} x.")
    times = step_times(benchmark, arguments.rounds)
    steps = Table("a step of 16 texts", "milliseconds", "of forward and backward, whole grid", title="order")
    for name, value in times.items():
        steps.add_row(name, f"{1000 * value:.1f}", f"{value / next(iter(times.values())):.2f} x")
    console.print(steps)
    print(f"threads {torch.get_num_threads()}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
