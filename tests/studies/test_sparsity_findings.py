"""What the sparsity study found is read back as it was made, and shown without model and data."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attrim
from attrim.cli import main
from attrim.core.charts import Curve, Pattern
from attrim.core.site import Select
from attrim.errors import ArtefactError, ParameterError
from attrim.models.loading import load_model, load_tokenizer
from attrim.runs.result import Interval, Result
from attrim.runs.run import Run
from attrim.stats import Histogram, Moments
from attrim.stats.bundle import Stats
from attrim.stats.rowfacts import RowCurves
from attrim.stats.spread import Extremes, Majority
from attrim.studies.bench import Bench
from attrim.studies.findings import Setting, findings
from attrim.studies.sparsity import Sparsity
from attrim.studies.sparsity.findings import SparsityFindings

numbers = st.floats(-1e6, 1e6) | st.just(float("nan"))
intervals = st.builds(Interval, numbers, numbers, numbers, st.sampled_from([0.9, 0.95]))
edits = st.sampled_from(
    [
        attrim.Threshold(0.01),
        attrim.Gate(torch.ones(4)),
        attrim.Uniform(select=Select(layers=[1])),
        attrim.RandomDrop(0.5),
    ]
)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12)


def made_stats(seed: int) -> Stats:
    """Stats of the weights of one made-up call."""
    stats = [Histogram(rows=True, bar=1e-3), Moments(), Majority(), Extremes(), RowCurves()]
    weights = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    for stat in stats:
        stat.update(weights)
    return Stats(stats)


@st.composite
def made_results(draw: st.DrawFn, name: str) -> Result:
    size = draw(st.integers(1, 4))
    return Result(
        metrics={"top-1": draw(st.floats(0, 100)), "top-5": draw(st.floats(0, 100))},
        zero_share=draw(st.floats(0, 1)),
        columns={
            name: np.array(draw(st.lists(st.floats(1, 9, width=16), min_size=size, max_size=size)), dtype=dtype)
            for name, dtype in draw(
                st.dictionaries(texts, st.sampled_from(["<f4", "<f8", "<i8", "|b1"]), min_size=1)
            ).items()
        },
        outputs=np.array(draw(st.lists(st.floats(-1, 1, width=32), min_size=size, max_size=size)), dtype=np.float32),
        labels=np.arange(size, dtype=np.float64),
        changes={"top-1": draw(st.builds(Interval, *[st.floats(-9, 9)] * 3))} if name != "unedited" else {},
        p_value=draw(st.none() | st.floats(0, 1)),
    )


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_findings_are_equal_after_a_round_trip(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder, Run.open(folder, {"study": "sparsity"}, name="sparsity") as run:
        stats = made_stats(data.draw(st.integers(0, 99)))
        stats.save(run.folder / "stats" / "weights")
        names = data.draw(
            st.lists(texts.filter(lambda text: text.strip() and text != "unedited"), unique=True, max_size=3)
        )
        values = st.integers(0, 9) | st.floats(0, 1)
        tried = [Setting(name, "threshold", data.draw(values), (data.draw(edits),), data.draw(texts)) for name in names]
        results = {name: data.draw(made_results(name)).store(run, name) for name in ("unedited", *names)}
        made = SparsityFindings(
            folder=run.folder,
            study=data.draw(st.builds(Sparsity, bars=st.tuples(st.floats(0, 1)), show_heads=st.just(("0/1",)))),
            model=data.draw(texts),
            task="retrieval",
            smaller_is_better=data.draw(st.booleans()),
            stats={"weights": stats},
            settings=tuple(tried),
            results=results if data.draw(st.booleans()) else {},
            renormalised={name: data.draw(intervals) for name in names},
            tokens=data.draw(st.dictionaries(st.integers(0, 99).map(str), texts, max_size=3)),
            compared=data.draw(st.tuples(st.just(Path("/elsewhere")))),
        )
        made.save(run)
        assert findings(run.folder) == made
        other = SparsityFindings(**{**vars(made), "model": f"{made.model}!"})
        assert findings(run.folder) != other


@pytest.fixture(scope="module")
def squad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    paragraphs = [
        {"context": f"text {i} of {7 * i} words", "qas": [{"question": f"which {i} {j}"} for j in range(2)]}
        for i in range(6)
    ]
    path = tmp_path_factory.mktemp("squad") / "squad.json"
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    return path


STUDY = Sparsity(bars=(0.05, 0.1), bits=(3,), methods=("linear-slog-clamped-midval", "lloyd-max"), show_heads=("0/1",),
                 layer_edit="threshold:0.05", parts=("tokens", "distances", "matrices"), target=0.0, prunes=(0.01, 0.1),
                 matrix_examples=(2, 5))  # fmt: skip


@pytest.fixture(scope="module")
def found(squad: Path, tmp_path_factory: pytest.TempPathFactory) -> SparsityFindings:
    output = tmp_path_factory.mktemp("runs")
    bench = Bench("tiny-bert", task="retrieval", data=str(squad), option=("paragraphs=6",), limit=8, output=output)
    return STUDY.run(bench)


def test_a_run_is_read_back_as_the_study_returned_it(found: SparsityFindings) -> None:
    again = findings(found.folder)
    assert again == found
    assert again.study == STUDY
    assert again.sentences() == found.sentences()
    assert again.tables() == found.tables()
    assert again.charts() == found.charts()


def test_matrices_show_the_chosen_examples_with_their_tokens(found: SparsityFindings) -> None:
    charts = [chart for chart in found.charts() if isinstance(chart, Pattern) and chart.name.startswith("matrices")]
    assert len(charts) == 2 * 2 * 3  # examples, layers, scales
    assert {chart.x_label.rpartition(", ")[2] for chart in charts} == {"example 2", "example 5"}
    for chart in charts:
        assert chart.queries == chart.keys
        assert (chart.queries[0], chart.queries[-1]) == ("[CLS]", "[SEP]")
        assert not any(name.startswith("#") for name in chart.queries)


def test_examples_that_are_not_there_are_refused(found: SparsityFindings, squad: Path) -> None:
    bench = Bench("tiny-bert", task="retrieval", data=str(squad), option=("paragraphs=6",), limit=8,
                  output=found.folder.parent / "other")  # fmt: skip
    with pytest.raises(ParameterError, match="no example 99"):
        Sparsity(parts=("matrices",), matrix_examples=(99,), no_scores=True).run(bench)
    with pytest.raises(ParameterError, match="add that part"):
        Sparsity(matrix_examples=(1,))
    with pytest.raises(ParameterError, match="no example -1"):
        Sparsity(parts=("matrices",), matrix_examples=(-1,))


def test_legends_name_the_method_and_scores_end_at_100(found: SparsityFindings) -> None:
    charts = {chart.name: chart for chart in found.charts() if isinstance(chart, Curve)}
    assert [series.name for series in charts["scores-against-layer"].series] == ["threshold:0.05"]
    assert [series.name for series in charts["scores-against-prune"].series] == ["linear-slog-clamped-midval, 3 bits"]
    scored = [chart for chart in charts.values() if chart.y.label == "top-1 (%)"]
    assert len(scored) >= 5
    assert all(chart.y.most == 100 for chart in scored)


def test_figures_are_drawn_once(found: SparsityFindings, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(found.folder), "--formats", "png"]) == 0
    first = {path: path.stat().st_mtime_ns for path in (found.folder / "figures").glob("*.png")}
    listed = capsys.readouterr().out
    assert main(["show", str(found.folder), "--formats", "png"]) == 0
    assert capsys.readouterr().out == listed
    assert {path: path.stat().st_mtime_ns for path in first} == first
    assert main(["show", str(found.folder), "--formats", "png", "--redraw"]) == 0
    assert all(path.stat().st_mtime_ns > before for path, before in first.items())


def test_show_needs_neither_model_nor_data(
    found: SparsityFindings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attrim.models.loading.load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    monkeypatch.setattr("attrim.models.loading.load_tokenizer", lambda *_, **__: pytest.fail("a tokenizer was loaded"))
    assert main(["show", str(found.folder), "--formats", "png"]) == 0
    shown = capsys.readouterr().out
    assert all(sentence in shown for sentence in found.sentences())
    assert "random-drop" in shown
    charts = {chart.name for chart in found.charts()}
    assert charts == {path.stem for path in (found.folder / "figures").glob("*.png")}
    assert {table.name for table in found.tables()} == {path.stem for path in (found.folder / "tables").iterdir()}
    assert main(["show", str(found.folder), "--formats", "png", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["claims"] == json.loads(json.dumps(found.data()["claims"]))


def test_a_run_without_findings_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Run.open(tmp_path, {"study": "sparsity", "model": "minilm"}, name="sparsity") as run:
        run.finish()
    with pytest.raises(ArtefactError, match=r"holds no findings.*attrim sparsity"):
        findings(run.folder)
    assert main(["show", str(run.folder)]) == 2
    assert "an older attrim wrote it; repeat its command (attrim sparsity ...)" in capsys.readouterr().err


def test_every_bar_is_tried_in_both_forms_and_controls_follow_the_paper(found: SparsityFindings) -> None:
    bars = {group: [one.value for one in found.group(group)] for group in ("threshold", "threshold, renormalised")}
    assert bars["threshold"] == bars["threshold, renormalised"] == [0.05, 0.1]
    assert all(one.edits[0].renormalize for one in found.group("threshold, renormalised"))
    drops = {round(found.results[one.name].zero_share, 4) for one in found.group("threshold")} - {0.0}
    assert {one.value for one in found.group("random drop")} == drops
    assert set(found.renormalised) == {one.name for one in found.group("threshold, renormalised")}
    assert "Renormalising after a threshold" in found.sentences()[-1]
    curve = next(chart for chart in found.charts() if chart.name == "score-against-sparsity")
    assert [series.name for series in curve.series] == ["threshold", "threshold, renormalised", "random drop"]


@pytest.mark.parametrize(("form", "group"), [("no", "threshold"), ("yes", "threshold, renormalised")])
def test_one_form_alone_has_the_controls_and_the_claims(squad: Path, tmp_path: Path, form: str, group: str) -> None:
    study = Sparsity(bars=(0.1,), methods=(), parts=(), target=0.0, renormalize=form)  # type: ignore[arg-type]
    bench = Bench("tiny-bert", task="retrieval", data=str(squad), option=("paragraphs=6",), limit=8, output=tmp_path)
    found = study.run(bench)
    tried = {one.group for one in found.settings}
    assert group in tried
    assert tried - {group} <= {"control", "random drop"}
    assert found.renormalising is None
    shares = {round(found.results[one.name].zero_share, 4) for one in found.group(group)} - {0.0}
    assert {one.value for one in found.group("random drop")} == shares


def test_a_live_model_gives_what_its_name_gives(squad: Path, found: SparsityFindings, tmp_path: Path) -> None:
    bench = Bench(load_model("tiny-bert"), tokenizer=load_tokenizer("tiny-bert"), task="retrieval", data=str(squad),
                  option=("paragraphs=6",), limit=8, output=tmp_path)  # fmt: skip
    live = STUDY.run(bench)
    assert live.model == "BertModel"
    same = {name: result.metrics for name, result in live.results.items()}
    assert same == {name: result.metrics for name, result in found.results.items()}
    assert live.data()["distances"] == found.data()["distances"]


def test_flags_and_yaml_and_python_are_one_run(
    squad: Path, found: SparsityFindings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run is found by what results depend on, so all three name the same folder."""
    words = ["sparsity", "tiny-bert", "--task", "retrieval", "--data", str(squad), "--option", "paragraphs=6"]
    words += ["--limit", "8", "--bars", "0.05", "0.1", "--bits", "3", "--target", "0", "--show-heads", "0/1"]
    words += ["--methods", "linear-slog-clamped-midval", "lloyd-max", "--layer-edit", "threshold:0.05"]
    words += ["--parts", "tokens", "distances", "matrices", "--formats", "png", "--json"]
    words += ["--prunes", "0.01", "0.1", "--matrix-examples", "2", "5"]
    assert main([*words, "--output", str(found.folder.parent)]) == 0
    flags = json.loads(capsys.readouterr().out)
    path = tmp_path / "study.yaml"
    path.write_text(
        f"model: tiny-bert\ntask: retrieval\ndata: {squad}\noption: paragraphs=6\nlimit: 8\nbars: [0.05, 0.1]\n"
        "bits: 3\nmethods: [linear-slog-clamped-midval, lloyd-max]\nlayer-edit: threshold:0.05\nshow-heads: 0/1\n"
        f"parts: [tokens, distances, matrices]\ntarget: 0\nformats: png\noutput: {found.folder.parent}\n"
        "prunes: [0.01, 0.1]\nmatrix-examples: [2, 5]\n"
    )
    assert main(["sparsity", "--config", str(path), "--json"]) == 0
    yaml = json.loads(capsys.readouterr().out)
    assert flags == yaml
    assert flags["folder"] == str(found.folder)
    assert flags["results"].keys() == found.results.keys()
    assert findings(found.folder) == found


def test_a_run_to_compare_with_that_is_gone_is_said_and_left_out(found: SparsityFindings, tmp_path: Path) -> None:
    from dataclasses import replace

    lonely = replace(found, compared=(tmp_path / "gone",))
    assert "cannot be read" in lonely.sentences()[-1]
    assert [chart.name for chart in lonely.charts()] == [chart.name for chart in found.charts()]
