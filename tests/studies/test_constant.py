"""The constant study: averages, orders and probes, from files to tables, also after a kill."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
from pathlib import Path

import pytest
import torch

import forks
from attrim.core.charts import Curve
from attrim.measurement import measure
from attrim.models.loading import load_model, load_tokenizer
from attrim.runs.run import Run
from attrim.stats import Mean
from attrim.studies.bench import TrainingBench
from attrim.studies.constant.findings import curves
from attrim.studies.constant.ordering import Replacement
from attrim.studies.constant.probing import TrainedProbe, train_probes
from attrim.studies.findings import findings
from attrim.tasks import load_task
from constant_runs import bench, chart_names, rows, run, study


def test_the_whole_study(glue: Path) -> None:
    outcome = run(glue)
    found = rows(outcome)
    assert list(found) == [("", "", 0), ("average", "lambdas", 4), ("average", "", 8)]
    assert all(len(scores) == 2 for scores in found.values())
    assert outcome.data()["rows"][0]["drop"] is None
    assert outcome.data()["averages"]["unseen_share"] < 1
    assert chart_names(outcome) == {"score-against-heads", "order-lambdas"}
    kept = re.compile("probe/average/lambdas/4/[0-9a-f]{12}/seed-1")
    with Run.read(outcome.folder) as opened:
        assert opened.finished
        assert any(map(kept.fullmatch, opened.settings()))
        assert len(opened.settings()) == 6  # the results and nothing else
    assert [len(epochs) for name, epochs in outcome.epochs.items() if kept.fullmatch(name)] == [2]
    assert not list(outcome.folder.glob("features/*")) + list(outcome.folder.glob("checkpoints/*"))
    assert findings(outcome.folder) == outcome


def test_tables_have_every_seed_head_and_epoch(glue: Path) -> None:
    outcome = run(glue, orders=("divergence", "random"))
    results, orders, epochs = outcome.tables()
    assert [row[:4] for row in results.texts()][:2] == [["", "", "0", "0"], ["average", "divergence", "1/2", "4"]]
    assert results.texts()[0][5] == ", ".join(f"{score:.2f}" for score in outcome.rows[0].scores)
    assert not results.detail
    assert orders.detail
    assert epochs.detail
    assert len(orders.rows) == 8
    for place in (5, 7):
        assert sorted(row[place] for row in orders.rows) == list(range(1, 9))
    first = next(row for row in orders.rows if row[5] == 1)
    assert (first[0], first[3]) == outcome.orders["divergence"].order()[0]
    assert len(epochs.rows) == 4 * 2 * 2  # settings, seeds, epochs
    last = [row for row in epochs.rows if row[5] == 2]
    assert [row[6] for row in last] == [score for row in outcome.rows for score in row.scores]


def train(bench: TrainingBench, seed: int) -> list[TrainedProbe]:
    """One point of work, for another process."""
    heads = (("encoder.layer.0.attention.self", 1),)
    sites = ("encoder.layer.0.attention.self", "encoder.layer.1.attention.self")
    constants = {name: torch.eye(24).repeat(4, 1, 1) for name in sites}
    setting = Replacement("identity", "", "1", heads, "identity").setting(constants)
    return list(train_probes(bench, study(epochs=1), setting, (seed,)))


def test_a_point_of_work_is_the_same_in_another_process(glue: Path) -> None:
    prepared = study().prepare(bench(glue))
    (here,) = train(pickle.loads(pickle.dumps(prepared)), 1)
    with forks.SERVER.Pool(1) as pool:
        ((there),) = pool.apply(train, (prepared, 1))
    assert there.result.metrics == here.result.metrics
    assert (there.result.outputs == here.result.outputs).all()
    assert there.epochs == here.epochs
    assert not (glue.parent / "runs").exists()  # it stores nothing


def test_a_live_model_gives_what_its_name_gives(glue: Path) -> None:
    named = run(glue, seeds=(0,))
    live = TrainingBench(
        load_model("tiny-bert"),
        tokenizer=load_tokenizer("tiny-bert"),
        task=load_task("glue/sst2", data=str(glue), max_length=24),
        output=glue.parent / "live",
    )
    found = dataclasses.replace(study(seeds=(0,)), max_length=None).run(live)
    assert rows(found) == rows(named)
    assert findings(found.folder) == found


def test_texts_have_64_slots_unless_something_else_is_asked(glue: Path) -> None:
    slots = lambda study, bench: study.prepare(bench).training_task().max_length
    assert slots(study(max_length=None), bench(glue)) == 64
    assert slots(study(max_length=None), bench(glue, max_length=32)) == 32
    assert slots(study(max_length=24), bench(glue, max_length=32)) == 24
    assert study(layout="papa").prepare(bench(glue)).validation_task().layout == "papa"


def test_averages_are_those_of_all_training_data(glue: Path) -> None:
    outcome = run(glue, until="average")
    task = load_task("glue/sst2", data=str(glue), split="train", layout="grid", max_length=24)
    model, tokenizer = load_model("tiny-bert"), load_tokenizer("tiny-bert")
    whole = measure(model, task.feed(model, tokenizer), Mean(), progress=False)[Mean]
    again = findings(outcome.folder)
    for site in whole.sites:
        assert torch.equal(outcome.averages.mean.matrix(site), whole.matrix(site))
        assert torch.equal(again.averages.mean.matrix(site), whole.matrix(site))
    assert outcome.data()["rows"] == []
    assert outcome.data()["orders"] == {}
    assert not outcome.complete
    with Run.read(outcome.folder) as opened:
        assert not opened.finished


def test_families_and_orders_in_one_command(glue: Path) -> None:
    families = ("average", "offset", "uniform", "identity", "previous", "next", "random", "learned")
    orders = ("lambdas", "divergence", "gradient", "random")
    outcome = run(glue, families=families, orders=orders, budgets=("1/2", "all"), seeds=(0,), epochs=1)
    found = rows(outcome)
    assert {order for _, order, heads in found if heads == 4} == set(orders)
    assert {family for family, _, heads in found if heads == 8} == set(families)
    assert len(found) == 1 + len(orders) + len(families) - 1 + len(families)
    assert len(outcome.data()["correlation"]) == 6
    assert {"families", "rank-correlation", "order-gradient"} <= chart_names(outcome)
    assert findings(outcome.folder) == outcome


def test_as_the_released_code(glue: Path) -> None:
    """Dropout and one learning rate for everything; nothing is kept between epochs."""
    plain, coded = (rows(run(glue, as_coded=value, seeds=(0,), budgets=("1/2",))) for value in (False, True))
    assert plain.keys() == coded.keys()


def test_token_tasks(tmp_path: Path) -> None:
    """Training and validation data differ in size, as they do in earnest."""
    for name, size in {"eng.train": 20, "eng.testa": 8}.items():
        words = (f"{'zz' if i % 2 else 'aa'}{i} NN I-NP {'B-PER' if i % 2 else 'O'}\n" for i in range(3 * size))
        lines = list(words)
        (tmp_path / name).write_text("\n".join("".join(lines[i : i + 3]) for i in range(0, len(lines), 3)) + "\n")
    orders = ("lambdas", "divergence", "gradient", "random")
    outcome = run(tmp_path / "x", data=str(tmp_path), task="tokens/ner", seeds=(0,), orders=orders)
    assert outcome.metric == "f1"
    assert {order for _, order, heads in rows(outcome) if heads == 4} == set(orders)


def test_orders_have_the_labels_of_the_probe(tmp_path: Path) -> None:
    """Three labels, where the model itself has two."""
    names = ("neutral", "entailment", "contradiction")
    lines = "".join(f"{'aaz'[i % 3] * 4}\tb{i}\t{names[i % 3]}\n" for i in range(24))
    for file in ("train", "dev_matched"):
        (tmp_path / f"{file}.tsv").write_text(f"sentence1\tsentence2\tgold_label\n{lines}")
    orders = ("divergence", "gradient", "random")
    outcome = run(tmp_path / "x", data=str(tmp_path), task="glue/mnli", seeds=(0,), orders=orders, epochs=1)
    assert {order for _, order, heads in rows(outcome) if heads == 4} == set(orders)


@pytest.mark.parametrize("model", ["tiny-roberta", "tiny-deberta", "tiny-gpt2", "tiny-llama"])
def test_other_architectures(glue: Path, model: str) -> None:
    """Private softmaxes, and decoders, whose constants keep to the causal mask."""
    outcome = run(glue, model=model, seeds=(0,), epochs=1, budgets=("1/2", "all"))
    assert len(outcome.rows) == 3
    assert all(0 <= row.score <= 100 for row in outcome.rows)


def test_a_decoder_whose_texts_do_not_fill_the_grid(glue: Path) -> None:
    """Cells that no training text has are 0; a longer validation text attends to nothing there."""
    (glue / "dev.tsv").write_text((glue / "dev.tsv").read_text() + f"{'long ' * 20}\t1\n")
    model, tokenizer = load_model("tiny-gpt2"), load_tokenizer("tiny-gpt2")
    tokenizer.sep_token = None  # one in the last slot would fill the grid
    fields = {"families": ("average", "offset", "learned"), "epochs": 1, "seeds": (0,), "budgets": ("all",)}
    found = run(glue, model=model, tokenizer=tokenizer, max_length=64, **fields)
    assert [row.setting.family for row in found.rows] == ["", "average", "offset", "learned"]
    training = load_task("glue/sst2", data=str(glue), split="train", layout="grid", max_length=64)
    whole = measure(model, training.feed(model, tokenizer), Mean(), progress=False)[Mean]
    for site in whole.sites:
        matrix, seen = found.averages.mean.matrix(site), whole.matrix(site).shape[1]
        assert seen < 64
        assert matrix.shape[1:] == (64, 64)
        assert torch.equal(matrix[:, :seen, :seen], whole.matrix(site))
        assert not matrix[:, seen:].any()


def test_masked_language_models(tmp_path: Path) -> None:
    """Other tokens are masked in every epoch, so the probe is trained with the model, for every order."""
    (tmp_path / "lines.txt").write_text("".join(f"{'az'[i % 2] * 4} b{i} c{i}\n" for i in range(24)))
    fields = {"data": str(tmp_path / "lines.txt"), "task": "masked-lm", "option": ("unit=line",)}
    orders = ("lambdas", "gradient")
    fields |= {"max_length": 32, "epochs": 1, "seeds": (0,), "orders": orders}
    outcome = run(tmp_path / "x", **fields)
    assert outcome.metric == "perplexity"
    (curve,) = (chart for chart in outcome.charts() if chart.name == "score-against-heads")
    assert isinstance(curve, Curve)
    assert curve.y.label == "perplexity"  # not in per cent: it is not a share
    assert curve.right.rise
    assert {order for _, order, heads in rows(outcome) if heads == 4} == set(orders)


def test_curves_end_in_what_all_orders_share(glue: Path) -> None:
    found = run(glue, orders=("divergence", "random"), seeds=(0,), epochs=1)
    lines = curves(found.rows, 8)
    assert list(lines) == ["average, divergence", "average, random"]
    assert all(sorted(points) == [0, 4, 8] for points in lines.values())
    assert json.dumps(found.sentences())
