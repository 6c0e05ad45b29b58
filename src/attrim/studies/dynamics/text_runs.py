"""The work of the experiments on texts: train every run, fit the proxies, compare."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from ...core.progress import progress_bar
from ...runs.run import Run
from . import proxies
from .corpora import Corpus
from .pool import spread
from .readings import Readings
from .summary import MATCH, Summary, summarise
from .text_studies import GOLD, UNIFORM
from .trainings import ProbedTraining, Trained, is_done, latest, probed_examples, save_corpus, train

if TYPE_CHECKING:
    from .text_studies import TextBench, TextStudy


def study_corpus(study: TextStudy, corpus: Corpus, bench: TextBench) -> list[Summary]:
    """Every summary of one data set."""
    trainings = plan(study, corpus, bench)
    train_missing(trainings, bench)
    trained = {one.name: Trained(one) for one in trainings}
    gold, uniform = trained[GOLD], trained[UNIFORM]
    others = [one for name, one in trained.items() if name not in (GOLD, UNIFORM)]
    run = bench.require_run()
    found = []
    for split in gold.training.splits:
        vectors = fit_proxies(study, corpus, gold.training, split, bench)
        make = partial(summarise, corpus.name, gold, uniform, others, vectors, split=split, resamples=study.resamples)
        metrics = (MATCH, "kendall tau") if study.include_kendall_tau else (MATCH,)
        performances = ("acc", "bleu") if gold.training.bleu and split == "val" else ("acc",)
        selections = (split,) if study.as_coded else ("held-out", split)
        for metric, performance, selected_on in product(metrics, performances, selections):
            scale = 100.0 if study.pairs and performance == "acc" else 1.0
            found.append(make(metric=metric, performance=performance, selected_on=selected_on, scale=scale))
            store(run, found[-1])
    return found


def store(run: Run, summary: Summary) -> None:
    """Keep the numbers of a summary in the run's database, under the keys of the released code."""
    name = "/".join((summary.dataset, summary.metric, summary.split, summary.performance, summary.selected_on))
    run.store(name, {key: value for key, value in summary.released().items() if isinstance(value, float)})


def plan(study: TextStudy, corpus: Corpus, bench: TextBench) -> list[ProbedTraining]:
    """Every training of a data set."""
    path = bench.run_folder / "corpora" / f"{corpus.name}.json"
    save_corpus(corpus, path)
    splits = ("val", "train") if study.include_train_results else ("val",)
    return [
        ProbedTraining(
            name=name,
            folder=bench.run_folder / "trainings" / corpus.name / name,
            corpus=path,
            seed=seed,
            steps=study.setting("steps"),
            saves=study.saves(),
            batch_size=study.setting("batch_size"),
            learning_rate=study.learning_rate,
            uniform=uniform,
            sizes=study.sizes(),
            delta=name == GOLD,
            splits=splits,
            train_size=len(corpus.validation),
            delta_batch=getattr(study, "grad_bsize", 64),
            bleu=getattr(study, "eval_bleu", False),
            keep_models=study.keep_models,
            progress=bench.progress and bench.processes == 1,
        )
        for name, (seed, uniform) in study.runs().items()
    ]


def train_missing(trainings: Sequence[ProbedTraining], bench: TextBench) -> None:
    """Do the trainings that are not finished, several at a time."""
    missing = [training for training in trainings if not is_done(training)]
    with progress_bar(len(missing), "training networks", bench.progress and bench.processes > 1) as bar:

        def tick() -> None:
            at = ", ".join(f"{one.name} {latest(one)}" for one in missing if latest(one) and not is_done(one))
            bar.describe(f"training on {missing[0].corpus.stem} to step {missing[0].steps}: {at or 'beginning'}")

        for _ in spread(train, missing, bench.processes, tick):
            bar.advance()


def fit_proxies(
    study: TextStudy, corpus: Corpus, training: ProbedTraining, split: str, bench: TextBench
) -> dict[str, Readings]:
    """The readings of every proxy on a split; what they choose by is held out unless the study is as coded."""
    examples = [tuple(one) for one in probed_examples(training, corpus, split)]
    data = [tuple(one) for one in corpus.training]
    choosing = [tuple(one) for one in (corpus.validation if study.as_coded else corpus.held_out)]
    options: dict[str, Any] = {
        "embed_dim": study.embed_dim, "epochs": study.setting("epochs"), "batch_size": study.bsize,
        "learning_rate": study.proxy_rate(corpus.name), "seed": study.gold_seed,
    }  # fmt: skip
    with progress_bar(None, f"fitting proxies of {corpus.name}", bench.progress):
        if corpus.pairs:
            bag = proxies.fit_translator(data, choosing, corpus.vocab_size, **options).bag
            counts = proxies.PairCounts(data, corpus.vocab_size)
            return {"px": proxies.pair_readings(bag, examples), "counts": counts.readings(examples)}
        bag = proxies.fit_classifier(data, choosing, corpus.vocab_size, **options).bag
        vectors = {
            "px": bag.word_logits()[:, 0].double().numpy(),
            "logistic": proxies.fit_logistic(data, choosing, corpus.vocab_size).weights,
            "counts": proxies.count_words(data, corpus.vocab_size),
        }
    return {name: proxies.word_readings(vector, examples) for name, vector in vectors.items()}
