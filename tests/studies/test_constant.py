"""The constant study: averages, orders and probes, from files to tables, also after a kill."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from attrim.cli import main
from attrim.commands import Constant
from attrim.errors import ArtefactError, DataError, ParameterError, UnknownName
from attrim.loading import load_model, load_tokenizer
from attrim.measure import measure
from attrim.runs import Run
from attrim.scores import Scores
from attrim.select import Site
from attrim.stats import Mean
from attrim.studies.constant import constant as study
from attrim.studies.constant.design import Design, Setting
from attrim.studies.constant.drops import Row, relative_drop, sentences
from attrim.studies.constant.figures import curves
from attrim.tasks import Task, load_task
from feelings import write_sst2


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    return write_sst2(tmp_path / "glue", train=48, dev=16)


def command(glue: Path, **fields) -> Constant:
    shared = {"model": "tiny-bert", "task": "glue/sst2", "data": str(glue), "output": glue.parent / "runs"}
    quick = {"max_length": 24, "epochs": 2, "learning_rate": 1e-3, "seeds": (0, 1), "formats": ("png",)}
    return Constant(**{**shared, **quick, "order_epochs": 1, "budgets": ("0", "1/2", "all"), **fields})


def tasks(glue: Path, length: int) -> list[Task]:
    options = {"data": str(glue), "layout": "grid", "max_length": length}
    return [load_task("glue/sst2", split=split, **options) for split in ("train", "validation")]


def rows(outcome) -> dict[tuple[str, str, int], list[float]]:
    return {(row["family"], row["order"], row["heads"]): row["scores"] for row in outcome.data["rows"]}


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


def test_what_is_done_is_not_repeated_and_more_is_added(glue: Path, monkeypatch) -> None:
    first = rows(command(glue).run())
    import attrim.studies.constant.probing as probing

    trained = []
    original = probing.train_probe
    monkeypatch.setattr(probing, "train_probe", lambda *a, **k: trained.append(a[3].seed) or original(*a, **k))
    assert rows(command(glue).run()) == first
    assert trained == []
    more = rows(command(glue, seeds=(0, 1, 2), budgets=("0", "all")).run())
    assert trained == [2, 2]
    assert more["", "", 0][:2] == first["", "", 0]


def test_a_row_is_of_one_set_of_heads(glue: Path, monkeypatch) -> None:
    """A second seed turns the order round: the half of the heads that was probed before is another one."""
    import attrim.studies.constant.ordering as ordering
    import attrim.studies.constant.probing as probing

    def train_lambdas(model, task, tokenizer, constants, recipe, **options):
        numbers = torch.arange(4.0)
        return {name: place + (-3 * numbers if recipe.seed else numbers) for place, name in enumerate(constants)}

    trained = []
    original = probing.train_probe
    monkeypatch.setattr(ordering, "train_lambdas", train_lambdas)
    monkeypatch.setattr(probing, "train_probe", lambda *a, **k: trained.append(a[3].seed) or original(*a, **k))
    alone = rows(command(glue, seeds=(0,)).run())
    assert trained == [0, 0, 0]
    command(glue, seeds=(0, 1)).run()
    assert trained[3:] == [1, 0, 1, 1]  # the baseline, half of the heads, all of them
    assert rows(command(glue, seeds=(0,)).run()) == alone
    assert len(trained) == 7


@pytest.mark.parametrize(
    ("order", "before", "after"),
    [
        ("lambdas", {"families": ("uniform",)}, {}),
        ("divergence", {"families": ("uniform",)}, {}),
        ("divergence", {"score_batches": 1}, {}),
        ("random", {}, {"seeds": (1, 0)}),
        ("divergence", {"families": ("random",)}, {"families": ("random",), "seeds": (1, 0)}),
    ],
)
def test_an_order_is_that_of_its_own_constants(glue: Path, order: str, before, after) -> None:
    """What another family, seed or number of batches gave is not taken for it."""
    same = {"orders": (order,), "epochs": 1, "until": "order"}
    command(glue, **same, **before).run()
    fresh = command(glue, **same, **after, output=glue.parent / "fresh").run().data["orders"]
    assert command(glue, **same, **after).run().data["orders"] == fresh


def test_random_constants_belong_to_their_seed(glue: Path, monkeypatch) -> None:
    same = {"families": ("random",), "budgets": ("all",), "orders": ("random",), "epochs": 1}
    import attrim.studies.constant.probing as probing

    trained = []
    original = probing.train_probe
    monkeypatch.setattr(probing, "train_probe", lambda *a, **k: trained.append(a[3].seed) or original(*a, **k))
    command(glue, **same, seeds=(0, 1)).run()
    command(glue, **same, seeds=(1, 0)).run()
    assert trained == [0, 1, 0, 1, 1, 0]  # the baseline once, all heads for both


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


def test_averages_whose_saving_was_stopped_are_measured_again(glue: Path) -> None:
    """Killed before the index, which is written last; a file that is there but damaged is not thrown away."""
    outcome = command(glue, until="average").run()
    folder = Path(outcome.data["folder"]) / "averages" / "even"
    (folder / "stats.json").unlink()
    assert command(glue, until="average").run().data == outcome.data
    next(folder.glob("*.safetensors")).write_bytes(b"half")
    with pytest.raises(ArtefactError, match="has changed since it was saved"):
        command(glue, until="average").run()
    (folder / "stats.json").write_text("{")
    with pytest.raises(ArtefactError, match="cannot be read"):
        command(glue, until="average").run()


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


def test_a_kill_changes_nothing(glue: Path) -> None:
    """Killed at the first stored probe, the study ends with the scores of one that was not."""
    whole = rows(command(glue, output=glue.parent / "whole").run())
    words = ["constant", "tiny-bert", "--task", "glue/sst2", "--data", str(glue), "--output", str(glue.parent / "runs")]
    words += ["--max-length", "24", "--epochs", "2", "--learning-rate", "1e-3", "--seeds", "0", "1", "--formats", "png"]
    words += ["--order-epochs", "1", "--budgets", "0", "1/2", "all"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-m", "attrim", *words], env=environment, stdout=subprocess.DEVNULL)
    deadline = time.time() + 120
    while process.poll() is None and time.time() < deadline:
        if list((glue.parent / "runs").glob("constant-*/probes/*")):
            process.send_signal(signal.SIGKILL)
        time.sleep(0.01)
    process.wait()
    assert process.returncode == -signal.SIGKILL, "the study was over before it could be killed"
    assert rows(command(glue).run()) == whole


def scores(*sizes: int) -> Scores:
    sites = [Site(f"layer.{number}", "encoder", number, size) for number, size in enumerate(sizes)]
    return Scores({site.name: torch.arange(site.heads) * 2.0 + site.layer for site in sites}, sites)


def test_settings_share_what_does_not_depend_on_the_order() -> None:
    design = Design(families=("average", "uniform"), orders=("lambdas", "random"), budgets=("1/2", "all", "8", 4))
    settings = design.settings({"lambdas": scores(4, 4), "random": scores(4, 4)})
    assert [(setting.family, setting.order, len(setting.heads)) for setting in settings] == [
        ("", "", 0), ("average", "lambdas", 4), ("average", "", 8), ("average", "random", 4), ("uniform", "lambdas", 4),
        ("uniform", "", 8),
    ]  # fmt: skip
    assert len({setting.name for setting in settings}) == 6


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"families": ("averge",)}, UnknownName, "average"),
        ({"orders": ("lambda",)}, UnknownName, "no order named 'lambda'; did you mean 'lambdas'"),
        ({"orders": ("xyz",)}, UnknownName, "known are divergence, gradient, lambdas, random"),
        ({"lambda_rate": -1.0}, ParameterError, "learning rate of lambdas must be a number above 0, not -1.0"),
        ({"order_epochs": 0}, ParameterError, "epochs of an order must be a number above 0, not 0"),
        ({"seeds": ()}, ParameterError, "at least one"),
        ({"seeds": (1, 1)}, ParameterError, "different"),
        ({"budgets": ()}, ParameterError, "budget"),
        ({"score_batches": 0}, ParameterError, "batch"),
    ],
)
def test_bad_designs(fields, error, message) -> None:
    with pytest.raises(error, match=message):
        Design(**fields)


def test_bad_input_is_one_sentence(glue: Path, capsys) -> None:
    words = ["constant", "tiny-bert", "--task", "glue/sst2", "--data", str(glue), "--output", str(glue.parent / "runs")]
    assert main([*words, "--budgets", "9/8"]) == 2
    assert "no budget of 8 heads" in capsys.readouterr().err
    assert main([*words, "--task", "text"]) == 2
    assert "metric" in capsys.readouterr().err
    for flag, value in {"roles": "encoder", "layers": "0", "heads": "1", "names": "*0*"}.items():
        assert main([*words, f"--select-{flag}", value]) == 2
        assert "takes no --select flags" in capsys.readouterr().err
    for task in ("causal-lm", "squad"):
        assert main([*words, "--task", task, "--data", "built-in"]) == 2
        assert f"no probe for the task {task}" in capsys.readouterr().err
    assert not (glue.parent / "runs").exists()  # nothing was begun


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": "tiny-roberta"}, "model, weights"),
        ({"max_length": 20}, "training"),
        ({"layout": "papa"}, "training"),
    ],
)
def test_averages_of_another_model_or_layout_are_refused_by_name(glue: Path, change, named) -> None:
    folder = Path(command(glue, until="average").run().data["folder"])
    with pytest.raises(ArtefactError, match=f"it differs in .*{named}"):
        command(glue, until="average", output=folder, **change).run()


def test_a_study_needs_a_layout(glue: Path) -> None:
    task = load_task("glue/sst2", data=str(glue), split="train")
    with pytest.raises(DataError, match="layout"):
        study(load_model("tiny-bert"), task, task, load_tokenizer("tiny-bert"), output=glue.parent / "runs")


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


def test_a_single_seed_has_no_interval_and_no_change_is_said_so() -> None:
    def said(score: float) -> tuple[str, str]:
        row = Row(Setting("average", "", "all", (("layer", 0),)), (score,), relative_drop([50.0], [score]))
        return str(row.drop), sentences([row], "accuracy")[0]

    assert said(50.0)[0] == "+0.00"
    assert "accuracy is 50.00, equal to the probe on the unedited model;" in said(50.0)[1]
    assert "10.0 % worse than the probe on" in said(45.0)[1]
    assert "10.0 % better than the probe on" in said(55.0)[1]
    assert str(relative_drop([50.0], [50.0], -1.0)) == "+0.00"


def test_relative_drop() -> None:
    drop = relative_drop([50.0, 40.0], [45.0, 38.0])
    assert drop.value == pytest.approx(7.5)
    half = 12.7062047 * np.std([10.0, 5.0], ddof=1) / math.sqrt(2)
    assert (drop.low, drop.high) == pytest.approx((7.5 - half, 7.5 + half))
    assert math.isnan(relative_drop([50.0], [45.0]).low)
    assert relative_drop([0.0], [1.0]) is None
    assert relative_drop([10.0, 10.0], [11.0, 11.0], -1.0).value == pytest.approx(10.0)


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
