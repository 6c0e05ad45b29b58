"""What a constant study found is read back as it was, whatever the numbers are."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attrim.cli import main
from attrim.core.charts import Bars, Curve, Pattern, dump
from attrim.core.site import Site
from attrim.errors import ArtefactError
from attrim.measurement import measure
from attrim.models.loading import load_model, load_tokenizer
from attrim.runs.result import Interval, Result
from attrim.runs.run import Run
from attrim.scores import Scores
from attrim.stats import Mean
from attrim.stats.bundle import Stats
from attrim.studies.constant.averages import AverageAttention
from attrim.studies.constant.drops import BudgetRow
from attrim.studies.constant.findings import ConstantFindings
from attrim.studies.constant.ordering import Replacement
from attrim.studies.findings import findings
from constant_runs import run, study

NUMBERS = st.floats(-1e6, 1e6)
SCORES = st.tuples(NUMBERS, NUMBERS)
INTERVALS = st.none() | st.builds(Interval, NUMBERS, st.just(float("nan")), st.just(float("nan")))
INTERVALS |= st.builds(Interval, NUMBERS, NUMBERS, NUMBERS)
HEADS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2)), max_size=3, unique=True).map(tuple)
WORDS = st.sampled_from(["", "average", "uniform"])
ROWS = st.builds(
    BudgetRow, st.builds(Replacement, WORDS, WORDS, st.sampled_from(["0", "1/2"]), HEADS), SCORES, INTERVALS
)
METRICS = st.dictionaries(st.sampled_from(["accuracy", "f1"]), NUMBERS, min_size=1)
EPOCHS = st.dictionaries(st.text("abc/-", min_size=1), st.lists(METRICS, max_size=3).map(tuple), max_size=3)


@st.composite
def orders(draw) -> Scores:
    sites = [Site("a", "encoder", 0, 3), Site("b", "cross", 0, 2)]
    heads = {site.name: draw(st.sets(st.integers(0, site.heads - 1), min_size=1).map(sorted)) for site in sites}
    values = {name: torch.tensor([draw(NUMBERS) for _ in own], dtype=torch.float64) for name, own in heads.items()}
    return Scores(values, sites, "made-up", {"seed": draw(st.integers(0, 9))}, draw(st.booleans()), heads)


@pytest.fixture(scope="module")
def averages(tmp_path_factory: pytest.TempPathFactory) -> Stats:
    model, tokenizer = load_model("tiny-bert"), load_tokenizer("tiny-bert")
    return measure(model, [tokenizer(["one text"], return_tensors="pt")], Mean(), progress=False)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(ROWS, max_size=3).map(tuple),
    scores=st.dictionaries(st.sampled_from(["lambdas", "random"]), orders()),
    epochs=EPOCHS,
    outputs=st.lists(SCORES, min_size=1, max_size=3),
)
def test_findings_are_read_back_as_they_were(averages, tmp_path_factory, rows, scores, epochs, outputs) -> None:
    with Run.open(tmp_path_factory.mktemp("runs"), {"study": "constant"}, name="constant") as opened:
        averages.save(opened.folder / "averages")
        columns = {"correct": np.arange(len(outputs), dtype=np.float64)}
        made = Result({"accuracy": 1.0}, 0.5, columns, np.array(outputs), np.zeros(len(outputs)))
        made.store(opened, "probe/0/seed-0")
        result = Result.load(opened, "probe/0/seed-0")
        found = ConstantFindings(
            folder=opened.folder,
            study=study(),
            model="tiny-bert",
            task="glue/sst2",
            metric="accuracy",
            averages=AverageAttention(Stats.load(opened.folder / "averages"), {"a": (0.5, float("nan"))}),
            orders=scores,
            rows=rows,
            results={"probe/0": (result,)},
            epochs=epochs,
        )
        found.save(opened)
        assert opened.finished == bool(rows)
    assert findings(found.folder) == found


def test_what_is_shown_comes_from_the_run_alone(glue: Path, monkeypatch) -> None:
    """Tables, charts, sentences and JSON values, without a model or data."""
    families = ("average", "uniform")
    found = run(glue, seeds=(0, 1), epochs=1, orders=("divergence", "random"), families=families)
    for name in ("attrim.models.loading.load_model", "attrim.tasks.base.load_task"):
        monkeypatch.setattr(name, lambda *given, **options: pytest.fail("something was loaded"))
    again = findings(found.folder)
    assert list(map(dump, again.tables())) == list(map(dump, found.tables()))
    assert list(map(dump, again.charts())) == list(map(dump, found.charts()))
    assert again.sentences() == found.sentences()
    assert again.data() == found.data()


def test_charts_have_the_numbers_of_the_rows(glue: Path) -> None:
    families = ("average", "uniform")
    found = run(glue, seeds=(0, 1), epochs=1, orders=("divergence", "random"), families=families)
    charts = {chart.name: chart for chart in found.charts()}
    assert list(charts) == [
        "score-against-heads", "families", "order-divergence", "order-random", "rank-correlation",
    ]  # fmt: skip
    by_place = {(row.setting.family, row.setting.order, len(row.setting.heads)): row for row in found.rows}
    curve, bars, matrix = charts["score-against-heads"], charts["families"], charts["rank-correlation"]
    assert isinstance(curve, Curve)
    assert isinstance(bars, Bars)
    assert isinstance(matrix, Pattern)
    assert [series.name for series in curve.series] == [
        "average, divergence", "average, random", "uniform, divergence",
    ]  # fmt: skip
    half = by_place["average", "random", 4]
    point = curve.series[1].points()[1]
    assert (point.x, point.y, point.low, point.high) == (4, half.score, min(half.scores), max(half.scores))
    assert curve.right.baseline == found.rows[0].score
    assert list(bars.labels) == list(families)
    for group, (place, family) in itertools.product(bars.groups, enumerate(families)):
        row = by_place[family, "" if group.name == "all" else "divergence", 8 if group.name == "all" else 4]
        assert group.values[place] == row.score
        assert tuple(group.points[place]) == row.scores
    values, agreement = matrix.matrices[0].values, found.correlation
    assert values[0, 1] == agreement.spearman[0, 1]
    assert values[1, 0] == agreement.kendall[1, 0]
    assert np.isnan(values[0, 0])


def test_an_unfinished_run_says_what_to_do(glue: Path) -> None:
    found = run(glue, until="average")
    (found.folder / "findings.json").unlink()
    with pytest.raises(
        ArtefactError, match=r"holds no findings: it is unfinished; repeat its command \(attrim constant \.\.\.\)"
    ):
        findings(found.folder)


def test_show_prints_what_the_study_printed(glue: Path, capsys) -> None:
    """Tables, figures and sentences from the folder alone: the data is gone, and the figures are drawn again."""
    words = ["constant", "tiny-bert", "--task", "glue/sst2", "--data", str(glue), "--output", str(glue.parent / "runs")]
    words += ["--max-length", "24", "--epochs", "1", "--seeds", "0", "--orders", "random", "--formats", "png"]
    assert main([*words, "--select-layers", "-1"]) == 0
    printed = capsys.readouterr().out
    (folder,) = (glue.parent / "runs").iterdir()
    for path in glue.iterdir():
        path.unlink()
    (folder / "figures" / "order-random.png").unlink()
    assert main(["show", str(folder), "--formats", "png"]) == 0
    assert capsys.readouterr().out == printed
    assert "2 selected heads constant: accuracy is" in printed
    names = ["figures/order-random.png", "figures/score-against-heads.png", "tables/epochs.csv", "tables/results.csv"]
    assert all((folder / name).stat().st_size for name in names)
