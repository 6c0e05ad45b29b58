"""The report on the side of Python: matrices as bytes, what a payload has, one file without anything from outside."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import attrim
import paged
from attrim.cli import main
from attrim.core.charts import Bars, Chart, Column, Group, RelevanceStrip, Section, Table
from attrim.core.site import Site
from attrim.errors import ArtefactError
from attrim.report.page import single_file
from attrim.report.page.average_patterns import HeadPatterns, patterns_of
from attrim.report.page.notebook import html as cell
from attrim.report.page.packing import pack, pool
from attrim.report.page.payload import field_notes, head_numbers, payload, plain_chart
from attrim.report.page.single_file import bundle, page, write_report
from attrim.runs.run import Run
from attrim.scores.base import Scores
from attrim.stats.mean import Mean
from attrim.studies.sparsity import Sparsity


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """The inverse of pack, as packed.js does it."""
    data = base64.b64decode(packed["bytes"])
    kind = {"uint8": np.uint8, "float16": "<f2", "float32": "<f4"}[packed["type"]]
    values = np.frombuffer(data, kind).reshape(packed["shape"]).astype(float)
    if packed["type"] != "uint8":
        return values
    share = (values / 255) ** (2 if packed["curve"] == "root" else 1)
    return packed["low"] + (packed["high"] - packed["low"]) * share


@given(arrays.arrays(np.float64, (2, 3, 4), elements=st.floats(-100, 100)))
def test_bytes_keep_numbers_to_the_precision_of_their_type(values: np.ndarray) -> None:
    spread = values.max() - values.min()
    np.testing.assert_allclose(unpack(pack(values)), values, atol=spread / 255 / 2 + 1e-9)
    np.testing.assert_allclose(unpack(pack(values, curve="root")), values, atol=spread / 255 + 1e-9)
    np.testing.assert_allclose(unpack(pack(values, "float16")), values, rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(unpack(pack(values, "float32")), values, rtol=1e-6, atol=1e-37)


def test_small_weights_keep_their_digits_by_the_root() -> None:
    weights = np.array([[1.0, 1e-2, 1e-3, 1e-4]])
    assert np.all(np.abs(unpack(pack(weights, curve="root"))[0] / weights - 1) < 0.1 * np.array([1, 1, 2, 6]))
    assert unpack(pack(weights))[0, 0, -1] == pytest.approx(1e-4)  # the smallest is exact, what is near it is not


def test_large_numbers_get_more_bits_and_gaps_stay() -> None:
    assert pack([[1e6, 2.0]], "float16")["type"] == "float32"
    assert np.isnan(unpack(pack([[np.nan, 2.0]], "float16"))[0, 0, 0])
    assert unpack(pack([[3.0, 3.0]]))[0].tolist() == [[3.0, 3.0]]


def test_pooling_keeps_the_largest() -> None:
    values = np.arange(50.0).reshape(2, 5, 5)
    assert pool(values, 2).tolist() == [
        [[6, 8, 9], [16, 18, 19], [21, 23, 24]],
        [[31, 33, 34], [41, 43, 44], [46, 48, 49]],
    ]
    assert pool(values, 1) is values


def test_a_model_with_144_heads_and_512_tokens_fits_five_megabytes() -> None:
    matrices = np.concatenate([_attention(layer) for layer in range(12)])
    patterns = HeadPatterns(
        "averages", "Averages", "weight", [f"encoder {at}" for at in range(12)], 12, [True] * 144, matrices
    )
    found = patterns.payload(2_000_000)
    text = page({"page": "cell", "title": "", "charts": [], "patterns": [found]})
    assert len(text) < 5_000_000
    assert 4 <= len(found["full"]) <= 8
    assert found["pooled"] == 8
    thumbnails = unpack(found["thumbnails"])
    np.testing.assert_allclose(thumbnails[5], pool(matrices[5:6], 8)[0], atol=0.01)
    everything = patterns.payload(2_000_000, everything=True)["full"]
    assert len(everything) == 144
    np.testing.assert_allclose(unpack(everything["11,3"])[0], matrices[11 * 12 + 3], atol=0.01)


def _attention(layer: int) -> Any:
    generator = np.random.default_rng(layer)
    raw = generator.random((12, 512, 512), dtype=np.float32) ** np.arange(1, 13)[:, None, None]
    return raw / raw.sum(-1, keepdims=True)


def test_patterns_of_a_small_model_are_all_there() -> None:
    stats = paged.averages()
    (patterns,) = patterns_of(stats["Mean"])  # type: ignore[arg-type]
    found = patterns.payload(2_000_000)
    assert found["rows"] == ["encoder 0", "encoder 1", "encoder 2"]
    assert found["pooled"] == 1
    assert len(found["full"]) == 12
    expected = stats["Mean"].matrix("encoder.2")[3]  # type: ignore[attr-defined]
    np.testing.assert_allclose(unpack(found["full"]["2,3"])[0], expected, rtol=1e-3, atol=1e-6)


def test_heads_that_were_not_watched_are_left_out() -> None:
    mean = Mean()
    site = Site("0", "encoder", 0, 4)
    import torch

    from attrim.core.call import Call

    weights = torch.full((1, 4, 3, 3), 1 / 3)
    mean.watch(weights, Call.plain(weights, None, site))
    mean.records["0"].heads = (0, 2)
    mean.records["0"].tensors["sums"] = mean.records["0"].tensors["sums"][[0, 2]]
    (patterns,) = patterns_of(mean)
    assert list(patterns.present) == [True, False, True, False]


# --- payload ---


def test_a_payload_says_what_was_asked_and_what_was_found(tmp_path: Path) -> None:
    study = Sparsity(bars=(0.5,), target=0.5)
    found = payload([paged.found(tmp_path / "run", study=study)])
    (run,) = found["runs"]
    assert found["differences"] is None
    asked = {name: (value, usual) for name, value, usual, _ in run["asked"]["options"]}
    assert asked["bars"][0] == "0.5"
    assert set(asked) == {"bars", "target"}
    notes = {row[0]: row[3] for row in run["asked"]["options"]}
    assert notes["bars"] == field_notes(Sparsity)["bars"] != ""
    assert run["sentences"][0].startswith("Zeroing 86 %")
    assert {chart["kind"] for chart in run["heads"]} == {"HeadMatrix"}
    assert [chart["label"] for chart in run["heads"]] == ["confidence", "change", "spread of a head"]
    assert len(run["patterns"]) == 1
    json.dumps(found, allow_nan=False)


def test_scores_of_findings_become_matrices(tmp_path: Path) -> None:
    from dataclasses import dataclass, field

    @dataclass(frozen=True, eq=False, kw_only=True)
    class Scored(paged.EveryChart):
        orders: dict[str, Scores] = field(default_factory=dict)

    site = Site("0", "encoder", 0, 3)
    scores = Scores({"0": np.array([1.0, -2.0, 3.0])}, [site], "gradient")
    found = Scored(folder=tmp_path, study=attrim.Demo(), model="m", task="t", orders={"gradient": scores})
    (matrix,) = head_numbers([], found)
    assert matrix.values.tolist() == [[1.0, -2.0, 3.0]]
    assert matrix.diverging
    assert matrix.label == "score: gradient"


def test_bars_of_heads_become_matrices_where_sections_are_layers() -> None:
    group = Group("", np.arange(5.0))
    heads = Bars("b", groups=[group], sections=[Section("decoder 0", 2), Section("decoder 1", 3)])
    (matrix,) = head_numbers([heads])
    np.testing.assert_array_equal(matrix.values, [[0, 1, np.nan], [2, 3, 4]])
    assert list(matrix.roles) == ["decoder"] * 2
    named = Bars("b", groups=[group], sections=[Section("first", 2), Section("others", 3)])
    assert head_numbers([named]) == []


def test_differences_name_settings_and_numbers(tmp_path: Path) -> None:
    one = paged.found(tmp_path / "one")
    other = paged.found(tmp_path / "two", task="elsewhere", read=paged.every_table(85.0))
    third = paged.found(tmp_path / "three", read=[])
    pair = payload([one, other])["differences"]
    assert pair["configuration"]["rows"] == [["task", "retrieval", "elsewhere"]]
    (table,) = pair["results"]
    assert table["rows"] == [["unedited", "top-1", 90, 85, -5], ["threshold:0.1", "top-1", 77.5, 72.5, -5]]
    same = payload([one, paged.found(tmp_path / "one")])
    assert same["differences"]["configuration"]["rows"] == []
    assert same["differences"]["results"] == []
    assert [run["name"] for run in same["runs"]] == ["one", "one (2)"]
    assert payload([one, other, third])["differences"]["results"][0]["rows"][0] == [
        "unedited",
        "top-1",
        90,
        85,
        None,
        None,
    ]


def test_an_image_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    chart = next(one for one in paged.every_chart(str(tmp_path / "gone.png")) if isinstance(one, RelevanceStrip))
    found = plain_chart(chart)
    assert found["image"] == ""
    assert "gone.png is not in this file" in found["facts"][-1]


def test_long_tables_are_cut_and_say_so(tmp_path: Path) -> None:
    long = Table("long", columns=[Column("n", "count")], rows=[[number] for number in range(3000)])
    (table,) = payload([paged.found(tmp_path, read=[long])])["runs"][0]["tables"]
    assert len(table["rows"]) == 2000
    assert "first 2000 of 3000 rows" in table["caption"]


# --- the file ---


def test_the_policy_allows_only_what_is_in_the_file(tmp_path: Path) -> None:
    text = write_report([paged.found(tmp_path / "run")], tmp_path / "report.html").read_text()
    policy = html.unescape(re.search(r'Content-Security-Policy" content="(.*?)"', text)[1])  # type: ignore[index]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]  # type: ignore[index]
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    for content in (style, script):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert not re.search(r"""\son\w+\s*=\s*["']""", text.split("<script", 1)[0])
    data = re.search(r'id="payload">(.*?)</script>', text, re.DOTALL)[1]  # type: ignore[index]
    assert "<" not in data
    assert paged.HOSTILE in json.loads(data)["runs"][0]["sentences"][1]


@given(st.text())
def test_any_text_survives_the_file(text: str) -> None:
    made = page({"page": "cell", "title": text, "charts": []})
    data = re.search(r'id="payload">(.*?)</script>', made, re.DOTALL)[1]  # type: ignore[index]
    assert json.loads(data)["title"] == text
    assert made.count("<script") == 2


def test_modules_are_written_in_the_forms_that_are_understood() -> None:
    """Whatever else a module would export or import would be missing in the file, or end it."""
    for path in single_file.STATIC.glob("*.js"):
        source = path.read_text(encoding="utf-8")
        for line in source.splitlines():
            if re.match(r"\s*(import|export)\b", line):
                known = single_file._IMPORT.match(line) or single_file._EXPORT.match(line)
                assert known, f"{path.name}: {line[:80]}"
        assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval)\b", source), path.name
        assert not re.search(r"setAttribute\(\s*[\"']style", source), path.name


def test_the_bundle_is_a_script_that_node_can_read(tmp_path: Path) -> None:
    import shutil

    if shutil.which("node") is None:
        pytest.skip("there is no node on this machine")
    path = tmp_path / "bundle.js"
    path.write_text(bundle(), encoding="utf-8")
    subprocess.run(["node", "--check", str(path)], check=True, timeout=60)


def test_modules_that_need_each_other_in_a_circle_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.js").write_text('import { b } from "./b.js";\nexport const a = 1;\n')
    (tmp_path / "b.js").write_text('import { a } from "./a.js";\nexport const b = 1;\n')
    monkeypatch.setattr(single_file, "STATIC", tmp_path)
    with pytest.raises(ArtefactError, match=r"a\.js -> b\.js -> a\.js"):
        bundle("a.js")


# --- the command ---


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the sparsity study on a tiny model."""
    folder = tmp_path_factory.mktemp("runs")
    bench = attrim.Bench(
        "tiny-bert", task="retrieval", data="built-in", option=("paragraphs=6",), limit=8, output=folder, quiet=True
    )
    return Sparsity(bars=(0.1,), methods=(), parts=()).run(bench).folder


def test_the_command_writes_a_report(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--output", str(tmp_path / "deep" / "r.html"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert Path(said["report"]).stat().st_size == said["bytes"] < 5_000_000
    assert main(["report", str(run), str(run), "--output", str(tmp_path / "two.html")]) == 0
    assert f"Open {tmp_path / 'two.html'} in a browser" in capsys.readouterr().out


def test_without_an_output_it_is_in_the_folder_of_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert "report.html" in capsys.readouterr().out


def test_a_study_ends_by_writing_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "sparsity tiny-bert --task retrieval --data built-in --option paragraphs=6 --limit 8 --bars 0.1"
    assert main([*words.split(), "--methods", "--parts", "--formats", "--quiet", "--output", str(tmp_path)]) == 0
    (report,) = tmp_path.glob("sparsity-*/report.html")
    assert f"Open {report} in a browser to look at it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "needs RUN"),
        (["nowhere"], "holds no run"),
        (["{run}", "--output", "{run}"], "is a folder; give a file"),
        (["{run}", "--output", "/proc/none/report.html"], "cannot be read or written"),
        (["{bare}"], "holds no findings: it is one of attrim evaluate"),
    ],
)
def test_what_cannot_be_reported_is_one_sentence(
    words: list[str], said: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run.open(tmp_path, {"study": "evaluate", "model": "tiny-bert"}) as bare:
        bare.store("unedited", {"accuracy": 50.0})
    given = [word.format(run=run, bare=bare.folder) for word in words]
    assert main(["report", *given]) == 2
    sentence = capsys.readouterr().err
    assert said in sentence
    assert sentence.count("\n") == 1


# --- notebooks ---


def inside(text: str) -> dict[str, Any]:
    """What the page in the frame of a cell shows."""
    (content,) = re.findall(r'<iframe srcdoc="(.*?)" title', text, re.DOTALL)
    data = re.search(r'id="payload">(.*?)</script>', html.unescape(content), re.DOTALL)[1]  # type: ignore[index]
    found: dict[str, Any] = json.loads(data)
    return found


def test_cells_show_stats_scores_orders_findings_and_runs(run: Path, tmp_path: Path) -> None:
    stats = paged.averages()
    assert [one["title"] for one in inside(stats._repr_html_())["patterns"]] == ["Average attention: all heads"]
    assert inside(stats["Mean"]._repr_html_())["title"] == "Mean"
    sites = [Site("a", "encoder", 0, 2), Site("b", "encoder", 1, 2)]
    scores = Scores({"a": [0.1, 0.9], "b": [0.5, 0.3]}, sites, "gradient")
    order = scores.order()
    assert order == [("a", 0), ("b", 1), ("b", 0), ("a", 1)]
    assert inside(scores._repr_html_())["heads"][0]["values"] == [[0.1, 0.9], [0.5, 0.3]]
    shown = inside(order._repr_html_())  # type: ignore[attr-defined]
    assert shown["heads"][0]["values"] == [[1, 4], [3, 2]]
    assert [row[2:4] for row in shown["charts"][0]["rows"]] == [[0, 0], [1, 1], [1, 0], [0, 1]]
    assert inside(attrim.findings(run)._repr_html_())["runs"][0]["study"] == "sparsity"
    with Run.read(run) as kept:
        assert inside(kept._repr_html_())["runs"][0]["name"] == run.name
    with Run.open(tmp_path, {"study": "evaluate"}) as bare:
        bare.store("unedited", {"accuracy": 50.0})
        assert inside(bare._repr_html_())["charts"][0]["rows"] == [["unedited", 50]]


def test_scores_of_examples_are_shown_as_their_mean() -> None:
    scores = Scores({"a": [[0.0, 1.0], [1.0, 1.0]]}, [Site("a", "encoder", 0, 2)], "gradient")
    assert inside(cell(scores))["heads"][0]["values"] == [[0.5, 1.0]]


def test_what_has_no_view_is_refused() -> None:
    with pytest.raises(TypeError, match="int has no view"):
        cell(3)


def test_every_kind_of_chart_goes_into_a_page() -> None:
    charts: list[Chart] = [*paged.every_chart(), *paged.every_table()]
    plain = [plain_chart(chart) for chart in charts]
    kinds = (
        "Curve TrainingSteps Bars Distribution HeadMatrix Pattern TokenStrip ImageRegions RelevanceStrip Panels Table"
    )
    assert {one["kind"] for one in plain} == set(kinds.split())
    matrix = next(one for one in plain if one["kind"] == "Pattern")["matrices"][0]["values"]
    assert matrix["shape"] == [1, 7, 7]
