"""The bench: loads once, can be pickled, names its run after all that results depend on, and resumes from it."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import attrim
import forks
from attrim.errors import AttrimError
from attrim.models.loading import load_model, load_tokenizer
from attrim.runs.result import Result
from attrim.studies import bench as module
from attrim.studies.bench import Bench, TrainingBench, evaluate_point
from attrim.studies.findings import Setting

SETTING = Setting.of(attrim.Threshold(0.1))


def bench(**options) -> Bench:
    return Bench("tiny-bert", **{"task": "retrieval", "data": "built-in", "limit": 6, "max_length": 32, **options})


def test_a_pickle_holds_the_fields_and_nothing_that_was_loaded() -> None:
    first = bench()
    assert first.loaded_model is first.loaded_model
    size = len(pickle.dumps(first))
    assert size < 2000
    second = pickle.loads(pickle.dumps(first))
    assert second == first
    assert "loaded_model" not in vars(second)


def test_a_point_of_work_is_the_same_in_another_process() -> None:
    here = evaluate_point(bench(), SETTING.name, SETTING.edits)
    with forks.SERVER.Pool(1) as pool:
        there = pool.apply(evaluate_point, (bench(), SETTING.name, SETTING.edits))
    assert there.metrics == here.metrics
    assert there.zero_share == here.zero_share
    np.testing.assert_array_equal(there.outputs, here.outputs)


def test_a_live_model_gives_what_its_name_gives() -> None:
    live = bench()
    live = Bench(load_model("tiny-bert"), tokenizer=load_tokenizer("tiny-bert"), task=live.loaded_task)
    one, other = (each.evaluate([SETTING])[SETTING.name] for each in (live, bench()))
    assert one.metrics == other.metrics
    assert live.name == "BertModel"
    assert live.identity()["weights"] == bench().identity()["weights"]


def test_a_live_model_without_its_tokenizer_is_refused() -> None:
    with pytest.raises(AttrimError, match="tokenizer=tokenizer"):
        Bench(load_model("tiny-bert"), task="retrieval", data="built-in").loaded_tokenizer  # noqa: B018


def test_the_run_depends_on_what_results_depend_on() -> None:
    known = bench().identity()
    assert bench(quiet=True, output=Path("elsewhere")).identity() == known
    for change in ({"limit": 7}, {"dtype": "bfloat16"}, {"select_layers": (0,)}, {"option": ("paragraphs=9",)}):
        assert bench(**change).identity() != known, change
    assert known["task"]["data"] == "built-in"


def test_nothing_is_evaluated_twice_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(output=tmp_path).begin("trial") as opened:
        first = opened.evaluate([SETTING])
    monkeypatch.setattr(module, "evaluate_point", lambda *given: pytest.fail("evaluated again"))
    with bench(output=tmp_path).begin("trial") as opened:
        again = opened.evaluate([SETTING])
        assert isinstance(again[SETTING.name], Result)
        assert opened.run_folder.parent == tmp_path
    assert {name: result.metrics for name, result in again.items()} == {
        name: result.metrics for name, result in first.items()
    }


def test_measuring_is_kept_and_follows_the_selection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = bench(output=tmp_path, select_layers=(1,), select_heads=("0-1",))
    with chosen.begin("trial") as opened:
        stats = opened.measure(attrim.Histogram(), "weights")
    assert [(site.layer, stats["Histogram"].of(site).heads) for site in stats["Histogram"].sites] == [(1, (0, 1))]
    monkeypatch.setattr("attrim.measurement.measure", lambda *given, **options: pytest.fail("measured again"))
    with chosen.begin("trial") as opened:
        again = opened.measure(attrim.Histogram(), "weights")
    assert (again["Histogram"].total == stats["Histogram"].total).all()


def test_without_a_run_nothing_can_be_kept() -> None:
    with pytest.raises(AttrimError, match="begin"):
        bench().measure(attrim.Histogram(), "weights")


def test_a_training_bench_has_two_parts_of_the_data(tmp_path: Path) -> None:
    from one_letter import write_sst2

    folder = write_sst2(tmp_path / "SST-2", 12, 6).parent
    both = TrainingBench("tiny-bert", task="glue/sst2", data=str(folder), limit=8, evaluate_limit=4)
    training, validation = both.training_task(), both.validation_task()
    assert (training.split, training.limit) == ("train", 8)
    assert validation.limit == 4
    assert set(both.data_identity()) == {"training", "training_data", "validation", "validation_data"}


def test_the_kind_of_a_model_can_be_given() -> None:
    assert type(bench(kind="masked-lm").loaded_model).__name__ == "BertForMaskedLM"
    assert type(bench().loaded_model).__name__ == "BertModel"
