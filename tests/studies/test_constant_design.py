"""What a constant study is asked for, what it refuses, and how drops are told."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from attrim.cli import main
from attrim.core.site import Site
from attrim.errors import ArtefactError, DataError, ParameterError, UnknownName
from attrim.models.loading import load_model, load_tokenizer
from attrim.scores import Scores
from attrim.studies.constant import constant as study
from attrim.studies.constant.design import Design, Setting
from attrim.studies.constant.drops import Row, relative_drop, sentences
from attrim.tasks import load_task
from constants import command


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
