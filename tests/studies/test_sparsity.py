"""The sparsity study as a command on a tiny model: the table, the run, the figures, and what is not repeated."""

from __future__ import annotations

import csv
import json
import logging
from pathlib import Path

import numpy as np
import pytest
from transformers import ViTConfig, ViTForImageClassification

import attrim.evaluation
import attrim.measurement
from attrim.cli import main
from attrim.commands.base import Command
from attrim.commands.study import command_of
from attrim.errors import ArtefactError, ParameterError, UnknownName
from attrim.report.drawing import save_all
from attrim.runs.run import Run
from attrim.studies.bench import Bench
from attrim.studies.findings import findings
from attrim.studies.sparsity import Sparsity
from attrim.tasks import load_task

FAST = {"formats": ("png",), "bars": (0.01, 0.05), "bits": (3,), "methods": ("linear-slog-clamped-midval", "lloyd-max")}


@pytest.fixture(scope="module")
def squad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("squad")
    paragraphs = [
        {"context": f"text {i} of {7 * i} words", "qas": [{"question": f"which {i} {j}"} for j in range(2)]}
        for i in range(6)
    ]
    (folder / "dev-v1.1.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    return folder


def command(squad: Path, output: Path, **flags: object) -> Command:
    shared = {"model": "tiny-bert", "task": "retrieval", "data": str(squad), "option": ("paragraphs=6",), "limit": 8}
    return command_of(Sparsity)(**{**shared, "output": output, **FAST, **flags})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def finished(squad: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    output = tmp_path_factory.mktemp("runs")
    flags = {"prunes": (0.001, 0.01), "layer_edit": "threshold:0.05", "hidden_bits": (8,), "hidden_bars": (0.1,)}
    return output, command(squad, output, **flags, show_heads=("0/1",)).run().data


def test_everything_is_in_the_table_and_in_the_run(finished: tuple[Path, dict]) -> None:
    _, data = finished
    groups = {entry["group"] for entry in data["settings"].values()}
    assert groups >= {"threshold", "random drop", "control", "layer", "hidden threshold", "hidden bits", "lloyd-max"}
    assert set(data["results"]) == {"unedited", *data["settings"]}
    assert "quantize:linear-slog-clamped-midval,bits=3,prune=0.01" in data["results"]
    with Run.read(data["folder"]) as run:
        assert run.finished
        assert set(run.settings()) == set(data["results"])
        assert all(len(run.predictions(name)["rank"]) == 8 for name in run.settings())
    names = {Path(path).stem for path in data["figures"]}
    assert names >= {
        "distribution", "histogram-of-heads", "rows-encoder-0", "extremes-of-heads", "tokens-to-majority",
        "median-of-rows", "diversity", "tokens-sparsity", "tokens-curves-layer-0-head-1", "chosen-heads",
        "quantised-rows", "quantised-rows-layer-0-head-1", "score-and-sparsity-against-bar",
        "score-against-sparsity", "relative-change-against-sparsity", "score-against-bits", "scores-against-prune",
        "scores-against-layer", "scores-against-hidden-bits", "scores-against-hidden-bar", "sparsity-against-bar",
    }  # fmt: skip
    assert all(Path(path).is_file() for path in data["figures"])


@pytest.mark.slow
@pytest.mark.usefixtures("rendered")
def test_every_figure_is_rendered(finished: tuple[Path, dict], tmp_path: Path) -> None:
    """Every kind of chart is rendered in tests/report, and a command with its figures in tests/commands."""
    _, data = finished
    figures = save_all(findings(data["folder"]).charts(), tmp_path, ("png",))
    assert {path.stem for path in figures} <= {Path(path).stem for path in data["figures"]}
    assert len(figures) > 20
    assert all(path.stat().st_size > 5000 for path in figures)


def test_the_tables_hold_every_head_and_the_tokens_of_single_examples(finished: tuple[Path, dict]) -> None:
    _, data = finished
    tables = {}
    for path in map(Path, data["tables"]):
        with path.open(newline="") as file:
            tables[path.stem] = list(csv.reader(file))
    assert len(tables["heads"]) == 1 + 2 * 4  # two layers of four heads
    assert tables["tokens"][0] == ["token", "rows", "share not above 0.001"]
    single = [rows for name, rows in tables.items() if name.startswith("tokens-example-")]
    assert len(single) == 3
    for header, *rows in single:
        assert header == ["place", "token", "weights", "not above the bar", "share"]
        shares = [float(row[-1]) for row in rows]
        assert shares == sorted(shares, reverse=True)
        assert all(0 <= share <= 1 for share in shares)
    assert {Path(path).stem for path in data["figures"]} >= {name for name in tables if "example" in name}


def test_fitted_methods_are_compared_with_the_original_rows(finished: tuple[Path, dict]) -> None:
    _, data = finished
    distances = data["distances"]
    assert list(distances) == [
        "quantize:linear-slog-clamped-midval,bits=3",
        "quantize:lloyd-max,bits=3,fitted=measured",
        "quantize:calibrated-linear,bits=8,fitted=measured",
    ]
    assert all(0 < facts["distance"] < 0.84 and facts["row_sum"] > 0 for facts in distances.values())


def test_random_drop_has_the_sparsity_of_each_threshold(finished: tuple[Path, dict]) -> None:
    _, data = finished
    shares = {name: data["results"][name]["zero_share"] for name in data["settings"]}
    for name, entry in data["settings"].items():
        if entry["group"] == "threshold" and shares[name] > 0:
            same = f"random-drop:{round(shares[name], 4):g}"
            assert same in shares, (name, shares[name])
            assert shares[same] == pytest.approx(shares[name], abs=0.02)


def test_both_claims_are_judged(finished: tuple[Path, dict]) -> None:
    _, data = finished
    assert [claim["claim"] for claim in data["claims"]] == [
        "About 80 % zeros within 1 %",
        "3-bit log with pruning within 1 %",
    ]
    # Eight questions can show nothing within 1 %, whatever the bootstrap of no change says.
    assert data["claims"][1]["verdict"] != "confirmed"
    assert data["claims"][1]["setting"] == "quantize:linear-slog-clamped-midval,bits=3"


def test_nothing_is_repeated_and_new_settings_are_added(
    squad: Path, finished: tuple[Path, dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    output, data = finished
    evaluated: list[str] = []
    real = attrim.evaluation._run
    monkeypatch.setattr(attrim.evaluation, "_run", lambda *given: evaluated.append(given[4]) or real(*given))
    monkeypatch.setattr(attrim.evaluation, "_run_together", lambda *_: pytest.fail("stored layers were computed again"))
    monkeypatch.setattr(attrim.measurement, "measure", lambda *_, **__: pytest.fail("stored stats were measured again"))
    again = command(squad, output, layer_edit="threshold:0.05", show_heads=("0/1",), edit=("uniform:layers=0",)).run()
    assert again.data["folder"] == data["folder"]
    assert evaluated == ["uniform:layers=0"]
    for name in ("threshold:0.05", "threshold:0.05,layers=1"):
        assert again.data["results"][name] == data["results"][name]


def test_runs_are_compared(squad: Path, finished: tuple[Path, dict], tmp_path: Path) -> None:
    _, data = finished
    flags = {"seed": 5, "no_scores": True, "parts": ("hidden", "matrices"), "show_heads": ("0/1",)}
    other = command(squad, tmp_path / "other", **flags, compare=(Path(data["folder"]),)).run().data
    names = {Path(path).stem for path in other["figures"]}
    assert names >= {
        "compare-rows", "compare-diversity", "compare-tokens-to-majority", "compare-layer-0-head-1",
        "probe-layer-output", "probe-output-histogram", "probe-scores", "matrices-encoder-1",
        "matrices-above-bar-encoder-0",
    }  # fmt: skip
    assert other["results"] == {}
    assert other["claims"] == []
    with pytest.raises(ArtefactError, match="holds no run"):
        command(squad, tmp_path, compare=(tmp_path,)).run()


def test_several_tasks_are_drawn_in_panels(squad: Path, finished: tuple[Path, dict], tmp_path: Path) -> None:
    """A task whose score is better when it is smaller, beside one whose score is better when it is larger."""
    _, data = finished
    (tmp_path / "text.txt").write_text("".join(f"Line {n} of a text with words.\n" for n in range(8)))
    flags = {"task": "masked-lm", "data": str(tmp_path / "text.txt"), "option": (), "limit": 4, "parts": ()}
    other = command(squad, tmp_path / "runs", **flags, prunes=(0.001, 0.01), compare=(Path(data["folder"]),)).run().data
    names = {Path(path).stem for path in other["figures"]}
    assert names >= {
        "panels-score-against-sparsity", "panels-score-against-bits", "panels-scores-against-prune",
        "relative-change-against-sparsity",
    }  # fmt: skip
    earlier = findings(data["folder"])
    assert (earlier.model, earlier.task, earlier.metric) == ("tiny-bert", "retrieval", "top-1")
    assert not earlier.smaller_is_better
    thresholds = [name for name, entry in data["settings"].items() if entry["group"] == "threshold"]
    assert [setting.name for setting in earlier.group("threshold")] == thresholds  # and no layer's own threshold
    assert findings(other["folder"]).smaller_is_better


def test_a_task_without_a_metric_is_measured_only(squad: Path, tmp_path: Path) -> None:
    found = command(squad, tmp_path, task="squad-paragraphs", option=(), limit=3, parts=()).run().data
    assert found["results"] == {}
    assert found["layers"]["tokens to majority"][0] >= 1


def test_bad_flags_are_one_sentence(squad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sparsity", "tiny-bert", "--task", "retrieval", "--data", str(squad), "--output", str(tmp_path)]
    words += ["--option", "paragraphs=6", "--limit", "8"]
    assert main([*words, "--methods", "linear-slogg"]) == 2
    assert "did you mean 'linear-slog'?" in capsys.readouterr().err
    assert main([*words, "--bits", "17"]) == 2
    assert "from 1 to 16" in capsys.readouterr().err
    assert main([*words, "--show-heads", "three"]) == 2
    assert "LAYER/HEAD" in capsys.readouterr().err
    assert main([*words, "--show-heads", "0/77"]) == 2
    assert "matches no head" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "error", "words"),
    [
        ({"target": 1.5}, ParameterError, "between 0 and 1"),
        ({"layer_edit": "treshold:0.1"}, UnknownName, "did you mean 'threshold'"),
        ({"edit": ("gate",)}, ParameterError, "lacks 'factors'"),
        ({"methods": ("lloyd-max",), "bits": (0,)}, ParameterError, "from 1 to 16"),
        ({"methods": ("lloyd-max,prune=0.1",)}, ParameterError, "takes no options"),
        ({"bars": (-1.0,)}, ParameterError, "not negative"),
        ({"hidden_bits": (3,)}, ParameterError, "from 7 to 16"),
    ],
)
def test_a_wrong_sweep_is_found_before_long_work(
    squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: dict, error: type[Exception], words: str
) -> None:
    monkeypatch.setattr(attrim.measurement, "measure", lambda *_, **__: pytest.fail("work began"))
    with pytest.raises(error, match=words):
        command(squad, tmp_path, **flags).run()


def test_a_wrong_row_bar_is_refused_in_python_too(squad: Path, tmp_path: Path) -> None:
    bench = Bench("tiny-bert", task="retrieval", data=str(squad), option=("paragraphs=6",), limit=8, output=tmp_path)
    with pytest.raises(ParameterError, match=r"must lie in \[0, 1\), not -1"):
        Sparsity(row_bar=-1).run(bench)
    assert not list(tmp_path.iterdir())


def test_python_may_give_what_a_flag_would() -> None:
    """A list for a tuple and a whole number for a float are the same study; what no flag could be is refused."""
    assert Sparsity(bars=[1, 0.1], methods=[], compare=["earlier"]) == Sparsity(
        bars=(1.0, 0.1), methods=(), compare=(Path("earlier"),)
    )
    for wrong, message in (
        ({"bars": ["x"]}, "'bars'.*'x' is not a number"),
        ({"relative_to": "two"}, "'relative_to'.*'two' is not one of 'one', 'uniform'"),
        ({"edit": "uniform"}, "'edit'.*'uniform' is not a list"),
    ):
        with pytest.raises(ParameterError, match=message):
            Sparsity(**wrong)


def test_a_task_with_a_head_of_its_own_loads_it(tmp_path: Path) -> None:
    """The bench loads the model with the head and the labels that the task needs, as attrim evaluate does."""
    folder = tmp_path / "MNLI"
    folder.mkdir()
    labels = ("entailment", "neutral", "contradiction")
    rows = [f"first {n}\tsecond {n}\t{labels[n % 3]}" for n in range(9)]
    (folder / "dev_matched.tsv").write_text("\n".join(["sentence1\tsentence2\tgold_label", *rows]) + "\n")
    flags = {"task": "glue/mnli", "data": str(tmp_path), "option": (), "limit": 6, "parts": (), "methods": ()}
    found = command(tmp_path, tmp_path / "runs", **flags).run().data
    assert list(found["results"]["unedited"]["metrics"]) == ["accuracy"]
    assert found["results"]["unedited"]["examples"] == 6


def test_images_have_no_part_of_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    vit = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 1}
    config = ViTConfig(**vit, image_size=16, patch_size=8, num_labels=2)
    ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "validation.npz", images=pixels, labels=np.arange(4) % 2)
    task = load_task("images", data=str(tmp_path))
    bench = Bench(str(tmp_path / "vit"), task=task, output=tmp_path / "runs", quiet=True)
    with caplog.at_level(logging.WARNING):
        found = Sparsity(no_scores=True).run(bench)
    assert "the part tokens is left out" in caplog.text
    assert "tokens" not in found.stats
    assert found.tables()
