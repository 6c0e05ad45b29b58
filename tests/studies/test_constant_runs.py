"""A run of the constant study: what it keeps fits what is asked for, and a kill changes nothing."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch

import forks
from attrim.errors import ArtefactError
from attrim.studies.findings import findings
from constant_runs import rows, run


def test_what_is_done_is_not_repeated_and_more_is_added(glue: Path, monkeypatch) -> None:
    first = rows(run(glue))
    import attrim.studies.constant.probing as probing

    trained = []
    original = probing.train_probe
    monkeypatch.setattr(probing, "train_probe", lambda *a, **k: trained.append(a[3].seed) or original(*a, **k))
    assert rows(run(glue)) == first
    assert trained == []
    more = rows(run(glue, seeds=(0, 1, 2), budgets=("0", "all")))
    assert trained == [2, 2]
    assert more["", "", 0][:2] == first["", "", 0]


def test_a_row_is_of_one_set_of_heads(glue: Path, monkeypatch) -> None:
    """A second seed turns the order round: the half of the heads that was probed before is another one."""
    import attrim.scores.lambdas as lambdas
    import attrim.studies.constant.probing as probing

    def train_lambdas(model, task, tokenizer, constants, recipe, **options):
        numbers = torch.arange(4.0)
        return {name: place + (-3 * numbers if recipe.seed else numbers) for place, name in enumerate(constants)}

    trained = []
    original = probing.train_probe
    monkeypatch.setattr(lambdas, "train_lambdas", train_lambdas)
    monkeypatch.setattr(probing, "train_probe", lambda *a, **k: trained.append(a[3].seed) or original(*a, **k))
    alone = rows(run(glue, seeds=(0,)))
    assert trained == [0, 0, 0]
    run(glue, seeds=(0, 1))
    assert trained[3:] == [1, 0, 1, 1]  # the baseline, half of the heads, all of them
    assert rows(run(glue, seeds=(0,))) == alone
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
    run(glue, **same, **before)
    fresh = run(glue, **same, **after, output=glue.parent / "fresh").data()["orders"]
    assert run(glue, **same, **after).data()["orders"] == fresh


def test_random_constants_belong_to_their_seed(glue: Path, monkeypatch) -> None:
    same = {"families": ("random",), "budgets": ("all",), "orders": ("random",), "epochs": 1}
    import attrim.studies.constant.probing as probing

    trained = []
    original = probing.train_probe
    monkeypatch.setattr(probing, "train_probe", lambda *a, **k: trained.append(a[3].seed) or original(*a, **k))
    run(glue, **same, seeds=(0, 1))
    run(glue, **same, seeds=(1, 0))
    assert trained == [0, 1, 0, 1, 1, 0]  # the baseline once, all heads for both


def test_what_a_kill_left_after_a_result_is_removed(glue: Path) -> None:
    """Killed when the result was stored and the checkpoints of its training were not removed yet."""
    outcome = run(glue)
    names = [path.name for path in (outcome.folder / "probes").iterdir()]
    stale = [outcome.folder / "checkpoints" / name for name in names] + [outcome.folder / "features" / "training"]
    for folder in stale:
        folder.mkdir(parents=True)
    assert rows(run(glue)) == rows(outcome)
    assert not [folder for folder in stale if folder.exists()]


def test_averages_whose_saving_was_stopped_are_measured_again(glue: Path) -> None:
    """Killed before the index, which is written last; what is damaged is no finding, and is measured again."""
    outcome = run(glue, until="average")
    folder = outcome.folder / "averages"
    (folder / "stats.json").unlink()
    assert run(glue, until="average") == outcome
    next(folder.glob("*.safetensors")).write_bytes(b"half")
    with pytest.raises(ArtefactError, match="has changed since it was saved"):
        findings(outcome.folder)
    assert run(glue, until="average") == outcome
    (folder / "stats.json").write_text("{")
    with pytest.raises(ArtefactError, match="cannot be read"):
        findings(outcome.folder)
    assert run(glue, until="average") == outcome


def test_a_kill_changes_nothing(glue: Path) -> None:
    """Killed at the first stored probe, the study ends with the scores of one that was not."""
    whole = rows(run(glue, output=glue.parent / "whole"))
    words = ["constant", "tiny-bert", "--task", "glue/sst2", "--data", str(glue), "--output", str(glue.parent / "runs")]
    words += ["--max-length", "24", "--epochs", "2", "--learning-rate", "1e-3", "--seeds", "0", "1", "--formats", "png"]
    words += ["--order-epochs", "1", "--budgets", "0", "1/2", "all"]
    process = forks.Process("-m", "attrim", *words)
    deadline = time.time() + 120
    while process.poll() is None and time.time() < deadline:
        if list((glue.parent / "runs").glob("constant-*/probes/*")):
            process.send_signal(signal.SIGKILL)
        time.sleep(0.01)
    process.wait()
    assert process.returncode == -signal.SIGKILL, "the study was over before it could be killed"
    assert rows(run(glue, max_length=24)) == whole
