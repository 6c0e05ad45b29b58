"""What a constant study is asked for, what it refuses, and how drops are told."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from attrim.cli import main
from attrim.commands.parsing import parse
from attrim.commands.study import command_of
from attrim.core.site import Site
from attrim.errors import ArtefactError, ParameterError, UnknownName
from attrim.scores import Scores
from attrim.studies.bench import Bench
from attrim.studies.constant import ConstantHeads
from attrim.studies.constant.drops import BudgetRow, relative_drop, sentences
from attrim.studies.constant.ordering import Replacement, replacements
from constant_runs import run, study


def scores(*sizes: int) -> Scores:
    sites = [Site(f"layer.{number}", "encoder", number, size) for number, size in enumerate(sizes)]
    return Scores({site.name: torch.arange(site.heads) * 2.0 + site.layer for site in sites}, sites)


def test_settings_share_what_does_not_depend_on_the_order() -> None:
    asked = study(families=("average", "uniform"), orders=("lambdas", "random"), budgets=("1/2", "all", "8", 4))
    settings = replacements(asked, {"lambdas": scores(4, 4), "random": scores(4, 4)})
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
        ({"orders": ("xyz",)}, UnknownName, "known are confidence, divergence, fisher, gradient"),
        ({"lambda_rate": -1.0}, ParameterError, "learning rate of lambdas must be a number above 0, not -1.0"),
        ({"order_epochs": 0}, ParameterError, "epochs of an order must be a number above 0, not 0"),
        ({"epochs": "many"}, ParameterError, "field 'epochs' of the study constant: 'many' is not a number"),
        ({"seeds": ()}, ParameterError, "at least one"),
        ({"seeds": (1, 1)}, ParameterError, "different"),
        ({"budgets": ()}, ParameterError, "budget"),
        ({"score_batches": 0}, ParameterError, "batch"),
    ],
)
def test_bad_designs(fields, error, message) -> None:
    with pytest.raises(error, match=message):
        ConstantHeads(**fields)


def test_bad_input_is_one_sentence(glue: Path, capsys) -> None:
    words = ["constant", "tiny-bert", "--task", "glue/sst2", "--data", str(glue), "--output", str(glue.parent / "runs")]
    assert main([*words, "--budgets", "9/8"]) == 2
    assert "not a budget of 8 heads" in capsys.readouterr().err
    assert main([*words, "--task", "text"]) == 2
    assert "metric" in capsys.readouterr().err
    assert main([*words, "--select-heads", "4"]) == 2
    assert "matches no head" in capsys.readouterr().err
    assert main([*words, "--select-layers", "0", "--budgets", "5"]) == 2
    assert "not a budget of 4 heads" in capsys.readouterr().err
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
    folder = run(glue, until="average").folder
    with pytest.raises(ArtefactError, match=f"it differs in .*{named}"):
        run(glue, until="average", output=folder, **change)


def test_a_study_needs_training_data(glue: Path) -> None:
    with pytest.raises(ParameterError, match="needs a TrainingBench, not a Bench"):
        study().run(Bench("tiny-bert", task="glue/sst2", data=str(glue), output=glue.parent / "runs"))


def test_a_single_seed_has_no_interval_and_no_change_is_said_so() -> None:
    def said(score: float) -> tuple[str, str]:
        row = BudgetRow(Replacement("average", "", "all", (("layer", 0),)), (score,), relative_drop([50.0], [score]))
        return str(row.drop), sentences([row], "accuracy")[0]

    assert said(50.0)[0] == "+0.00"
    assert "accuracy is 50.00, equal to the probe on the unedited model;" in said(50.0)[1]
    assert "10.0 % worse than the probe on" in said(45.0)[1]
    assert "10.0 % better than the probe on" in said(55.0)[1]
    assert "accuracy is 50.01, within 0.1 % of the probe on" in said(50.01)[1]
    assert str(relative_drop([50.0], [50.0], -1.0)) == "+0.00"


def test_relative_drop() -> None:
    drop = relative_drop([50.0, 40.0], [45.0, 38.0])
    assert drop.value == pytest.approx(7.5)
    half = 12.7062047 * np.std([10.0, 5.0], ddof=1) / math.sqrt(2)
    assert (drop.low, drop.high) == pytest.approx((7.5 - half, 7.5 + half))
    assert math.isnan(relative_drop([50.0], [45.0]).low)
    assert relative_drop([0.0], [1.0]) is None
    assert relative_drop([10.0, 10.0], [11.0, 11.0], -1.0).value == pytest.approx(10.0)


def test_python_flags_and_yaml_are_one(tmp_path: Path) -> None:
    """The same study and the same run, however it is written."""
    (tmp_path / "study.yaml").write_text("budgets: [0, 1/2]\nepochs: 2\nseeds: [0, 1]\ntask: glue/sst2\n")
    kind = command_of(ConstantHeads)
    flags = ["tiny-bert", "--task", "glue/sst2", "--budgets", "0", "1/2", "--epochs", "2", "--seeds", "0", "1"]
    python = ConstantHeads(budgets=(0, "1/2"), epochs=2, seeds=[0, 1])
    for words in (flags, ["tiny-bert", "--config", str(tmp_path / "study.yaml")]):
        command = parse(["constant", *words], {"constant": kind})
        asked = ConstantHeads(**{item.name: getattr(command, item.name) for item in dataclasses.fields(ConstantHeads)})
        assert asked == python
        assert json.dumps(asked.identity()) == json.dumps(python.identity())


def test_more_can_be_tried_in_the_same_run() -> None:
    """What everything depends on is another run; what only says what to try is not."""
    same = {"budgets": ("1",), "families": ("offset",), "orders": ("random",), "seeds": (5,), "score_batches": 1}
    same |= {"until": "order", "seed": 1, "checkpoint_every": 7}
    for name, value in same.items():
        assert study(**{name: value}).identity() == study().identity(), name
    for name, value in {"order_epochs": 3, "lambda_rate": 1e-3, "as_coded": True, "epochs": 3, "clip": 0.5}.items():
        assert study(**{name: value}).identity() != study().identity(), name


def test_only_selected_heads_are_told_of() -> None:
    row = BudgetRow(Replacement("average", "", "all", (("layer", 0),)), (45.0,), relative_drop([50.0], [45.0]))
    assert sentences([row], "accuracy", "selected")[0].startswith("All selected heads constant: accuracy is 45.00")
