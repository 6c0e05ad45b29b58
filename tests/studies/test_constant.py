"""The constant study: averages, orders and probes, from files to tables, also after a kill."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from attrim.measurement import measure
from attrim.models.loading import load_model, load_tokenizer
from attrim.runs.run import Run
from attrim.stats import Mean
from attrim.studies.constant import constant as study
from attrim.studies.constant.figures import curves
from attrim.tasks import load_task
from constants import command, rows, tasks


def test_the_whole_study(glue: Path) -> None:
    outcome = command(glue).run()
    found = rows(outcome)
    assert list(found) == [("", "", 0), ("average", "lambdas", 4), ("average", "", 8)]
    assert all(len(scores) == 2 for scores in found.values())
    assert outcome.data["rows"][0]["drop"] is None
    assert outcome.data["averages"]["unseen_share"] < 1
    names = {Path(path).name for path in outcome.data["figures"]}
    assert names == {"score-against-heads.png", "order-lambdas.png"}
    with Run.read(outcome.data["folder"]) as run:
        assert run.finished
        kept = re.compile("probe/average/lambdas/4/[0-9a-f]{12}/seed-1/epoch-002")
        assert any(map(kept.fullmatch, run.settings()))
    assert not list(Path(outcome.data["folder"]).glob("features/*")) + list(
        Path(outcome.data["folder"]).glob("checkpoints/*")
    )


def test_averages_are_those_of_all_training_data(glue: Path) -> None:
    outcome = command(glue, until="average").run()
    from attrim.studies.constant.averages import average

    task = load_task("glue/sst2", data=str(glue), split="train", layout="grid", max_length=24)
    model, tokenizer = load_model("tiny-bert"), load_tokenizer("tiny-bert")
    whole = measure(model, task.feed(model, tokenizer), Mean(), progress=False)["Mean"]
    with Run.read(outcome.data["folder"]) as run:
        again = average(run, model, task, tokenizer)
    for site in whole.sites:
        assert torch.equal(again.mean.matrix(site), whole.matrix(site))
    assert outcome.data["rows"] == []
    assert outcome.data["orders"] == {}


def test_families_and_orders_in_one_command(glue: Path) -> None:
    families = ("average", "offset", "uniform", "identity", "previous", "next", "random", "learned")
    orders = ("lambdas", "divergence", "gradient", "random")
    outcome = command(glue, families=families, orders=orders, budgets=("1/2", "all"), seeds=(0,), epochs=1).run()
    found = rows(outcome)
    assert {order for _, order, heads in found if heads == 4} == set(orders)
    assert {family for family, _, heads in found if heads == 8} == set(families)
    assert len(found) == 1 + len(orders) + len(families) - 1 + len(families)
    assert len(outcome.data["correlation"]) == 6
    names = {Path(path).stem for path in outcome.data["figures"]}
    assert {"families", "rank-correlation", "order-gradient"} <= names


def test_as_the_released_code(glue: Path) -> None:
    """Dropout and one learning rate for everything; nothing is kept between epochs."""
    plain, coded = (rows(command(glue, as_coded=value, seeds=(0,), budgets=("1/2",)).run()) for value in (False, True))
    assert plain.keys() == coded.keys()


def test_token_tasks(tmp_path: Path) -> None:
    """Training and validation data differ in size, as they do in earnest."""
    for name, size in {"eng.train": 20, "eng.testa": 8}.items():
        words = (f"{'zz' if i % 2 else 'aa'}{i} NN I-NP {'B-PER' if i % 2 else 'O'}\n" for i in range(3 * size))
        lines = list(words)
        (tmp_path / name).write_text("\n".join("".join(lines[i : i + 3]) for i in range(0, len(lines), 3)) + "\n")
    orders = ("lambdas", "divergence", "gradient", "random")
    outcome = command(tmp_path / "x", data=str(tmp_path), task="tokens/ner", seeds=(0,), orders=orders).run()
    assert outcome.data["metric"] == "f1"
    assert {order for _, order, heads in rows(outcome) if heads == 4} == set(orders)


def test_orders_have_the_labels_of_the_probe(tmp_path: Path) -> None:
    """Three labels, where the model itself has two."""
    names = ("neutral", "entailment", "contradiction")
    lines = "".join(f"{'aaz'[i % 3] * 4}\tb{i}\t{names[i % 3]}\n" for i in range(24))
    for file in ("train", "dev_matched"):
        (tmp_path / f"{file}.tsv").write_text(f"sentence1\tsentence2\tgold_label\n{lines}")
    orders = ("divergence", "gradient", "random")
    outcome = command(tmp_path / "x", data=str(tmp_path), task="glue/mnli", seeds=(0,), orders=orders, epochs=1).run()
    assert {order for _, order, heads in rows(outcome) if heads == 4} == set(orders)


@pytest.mark.parametrize("model", ["tiny-roberta", "tiny-deberta", "tiny-gpt2", "tiny-llama"])
def test_other_architectures(glue: Path, model: str) -> None:
    """Private softmaxes, and decoders, whose constants keep to the causal mask."""
    outcome = command(glue, model=model, seeds=(0,), epochs=1, budgets=("1/2", "all")).run()
    assert len(outcome.data["rows"]) == 3
    assert all(0 <= row["score"] <= 100 for row in outcome.data["rows"])


def test_a_decoder_whose_texts_do_not_fill_the_grid(glue: Path) -> None:
    """Cells that no training text has are 0; a longer validation text attends to nothing there."""
    (glue / "dev.tsv").write_text((glue / "dev.tsv").read_text() + f"{'long ' * 20}\t1\n")
    design = command(glue, families=("average", "offset", "learned"), epochs=1, seeds=(0,), budgets=("all",)).design()
    model, tokenizer = load_model("tiny-gpt2"), load_tokenizer("tiny-gpt2")
    tokenizer.sep_token = None  # one in the last slot would fill the grid
    training, validation = tasks(glue, 64)
    found = study(model, training, validation, tokenizer, design, output=glue.parent / "runs", progress=False)
    assert [row.setting.family for row in found.rows] == ["", "average", "offset", "learned"]
    whole = measure(model, training.feed(model, tokenizer), Mean(), progress=False)["Mean"]
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
    fields |= {"max_length": 32, "epochs": 1, "seeds": (0,), "orders": orders, "formats": ("svg",)}
    outcome = command(tmp_path / "x", **fields).run()
    assert outcome.data["metric"] == "perplexity"
    (curve,) = (path for path in outcome.data["figures"] if "score-against-heads" in path)
    assert "perplexity" in Path(curve).read_text()
    assert "perplexity (%)" not in Path(curve).read_text()  # it is no share
    assert {order for _, order, heads in rows(outcome) if heads == 4} == set(orders)


def test_curves_end_in_what_all_orders_share(glue: Path) -> None:
    outcome_rows = command(glue, orders=("divergence", "random"), seeds=(0,), epochs=1)
    training, validation = tasks(glue, 24)
    found = study(
        load_model("tiny-bert"), training, validation, load_tokenizer("tiny-bert"), outcome_rows.design(),
        output=glue.parent / "runs", progress=False, formats=("png",),
    )  # fmt: skip
    lines = curves(found.rows, 8)
    assert list(lines) == ["average, divergence", "average, random"]
    assert all(sorted(points) == [0, 4, 8] for points in lines.values())
    assert json.dumps(found.sentences())
