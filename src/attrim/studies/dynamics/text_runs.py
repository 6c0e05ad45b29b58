"""The work of the experiments on texts: train every run, fit the proxies, compare."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...core.progress import progress_bar
from ...runs.files import replace_tensors, storage
from ...runs.run import Run
from . import proxies
from .corpora import Corpus
from .interventions import load_proxies
from .pool import spread
from .readings import Readings
from .summary import MATCH, Summary, summarise
from .text_studies import GOLD, UNIFORM, intervened_name
from .trainings import ProbedTraining, Trained, is_done, latest, probed_examples, save_corpus, train

if TYPE_CHECKING:
    from .text_studies import TextBench, TextStudy


def study_corpus(study: TextStudy, corpus: Corpus, bench: TextBench) -> list[Summary]:
    """Every summary of one data set."""
    proxy = fit_proxies(study, corpus, bench)
    trainings = plan(study, corpus, bench, proxy)
    train_missing(trainings, bench)
    trained = {one.name: Trained(one) for one in trainings}
    gold, uniform = trained[GOLD], trained[UNIFORM]
    others = [trained[name] for name in study.others()]
    changed = {
        label: [trained[intervened_name(label, name)] for name in study.others()] for label in study.intervened()
    }
    run = bench.require_run()
    found = []
    for split in gold.training.splits:
        vectors = proxy_readings(proxy, corpus, gold.training, split)
        make = partial(
            summarise, corpus.name, gold, uniform, others, vectors, changed, split=split, resamples=study.resamples
        )
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


def plan(study: TextStudy, corpus: Corpus, bench: TextBench, proxy: Path) -> list[ProbedTraining]:
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
            sizes=study.sizes(),
            delta=name == GOLD,
            splits=splits,
            train_size=len(corpus.validation),
            delta_batch=getattr(study, "grad_bsize", 64),
            bleu=getattr(study, "eval_bleu", False),
            keep_models=study.keep_models,
            progress=bench.progress and bench.processes == 1,
            proxy=proxy,
            **changes,
        )
        for name, (seed, changes) in study.runs().items()
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


def fit_proxies(study: TextStudy, corpus: Corpus, bench: TextBench) -> Path:
    """Fit every proxy, or find them in the run; what they choose by is held out unless the study is as coded.

    Returns
    -------
    A file of tensors: of a classification a number for each word, ``px``, ``logistic`` and ``counts``; of a translation
    the weights of the bag of words, whose counts are quicker to count again.
    """
    path = bench.run_folder / "proxies" / f"{corpus.name}.safetensors"
    if path.exists():
        return path
    data = [tuple(one) for one in corpus.training]
    choosing = [tuple(one) for one in (corpus.validation if study.as_coded else corpus.held_out)]
    options: dict[str, Any] = {
        "embed_dim": study.embed_dim, "epochs": study.setting("epochs"), "batch_size": study.bsize,
        "learning_rate": study.proxy_rate(corpus.name), "seed": study.gold_seed,
    }  # fmt: skip
    with progress_bar(options["epochs"], f"fitting proxies of {corpus.name}, epochs", bench.progress) as bar:
        options["after_epoch"] = bar.advance
        if corpus.pairs:
            found = dict(proxies.fit_translator(data, choosing, corpus.vocab_size, **options).bag.state_dict())
        else:
            bag = proxies.fit_classifier(data, choosing, corpus.vocab_size, **options).bag
            found = {
                "px": bag.word_logits()[:, 0].double(),
                "logistic": torch.from_numpy(proxies.fit_logistic(data, choosing, corpus.vocab_size).weights),
                "counts": torch.from_numpy(proxies.count_words(data, corpus.vocab_size)),
            }
    with storage(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_tensors(path, found)
    return path


def proxy_readings(path: Path, corpus: Corpus, training: ProbedTraining, split: str) -> dict[str, Readings]:
    """The readings of every proxy in a file on a split."""
    tensors = load_proxies(path)
    examples = [tuple(one) for one in probed_examples(training, corpus, split)]
    if not corpus.pairs:
        return {name: proxies.word_readings(tensors[name].numpy(), examples) for name in ("px", "logistic", "counts")}
    counts = proxies.PairCounts([tuple(one) for one in corpus.training], corpus.vocab_size)
    return {"px": proxies.pair_readings(proxies.Bag.of(tensors), examples), "counts": counts.readings(examples)}
