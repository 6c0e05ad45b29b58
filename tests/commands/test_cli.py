"""The command line: flags, YAML, output, errors and exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import forks
from attrim.cli import main
from attrim.commands.evaluate import Evaluate
from attrim.commands.sites import Sites
from attrim.core.registry import REGISTRIES
from attrim.models.loading import load_model

MODEL = "tiny-bert"


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    """A small file in SQuAD's format."""
    words = ("river", "glass", "bread", "clock", "tea", "owl")
    paragraphs = [
        {"context": f"The {word} is described here in some detail.", "qas": [{"question": f"What is a {word}?"}]}
        for word in words
    ]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"title": "words", "paragraphs": paragraphs}]}))
    return path


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("sits", "sites"),
        ("sites minilm --devic cpu", "--device"),
        ("sites minilm --dtype int8", "float32"),
        ("sites", "MODEL"),
        ("sites minilm --devise=cpu", "--device"),
        ("sites minilm --device", "--device of 'attrim sites' needs a value; give a text"),
        ("sites minilm --json=3", "--json of 'attrim sites' cannot be '3'; give true or false"),
        ("sites minilm --select-layers 0 x", "--select-layers of 'attrim sites' cannot be 'x'"),
        ("sites minilm --select-heads 0..3", "did you mean heads=0-3?"),
        ("sites minilm left over", "left over"),
        ("ls things", "models"),
        ("evaluate minilm", "--task"),
        (
            "evaluate minilm --task retrieval --limit many",
            "--limit of 'attrim evaluate' cannot be 'many'; give a whole",
        ),
        (f"evaluate minilm --task retrieval --limit {'9' * 5000}", "that is too large"),
        ("evaluate minilm --task retrieval --edit", "--edit of 'attrim evaluate' needs a value; give a text"),
        ("bake minilm --output out", "needs --edit (a text)"),
        (
            "sparsity nowhere --task retrieval --target nan",
            "--target of 'attrim sparsity' cannot be 'nan'; give a number",
        ),
        ("sparsity nowhere --task retrieval --formats gif", "give one of png, svg, pdf"),
        ("sparsity nowhere --task retrieval --show-heads 3", "such as 5/11, not 3"),
        ("measure nowhere --text a --edit gate:0 --edit uniform", "--edit 'gate:0 then uniform'"),
        ("train nowhere --task glue/sst2 --edit gate:0 --edit uniform", "--edit 'gate:0 then uniform'"),
        ("bake nowhere --output out --edit gate:0 --edit uniform", "--edit 'gate:0 then uniform'"),
        ("export nowhere --text a --output out --edit gate:0 --edit uniform", "--edit 'gate:0 then uniform'"),
        ("evaluate tiny-bert --task retrival", "retrieval"),
        ("evaluate tiny-bert --task retrieval --edit treshold:1", "threshold"),
        ("evaluate tiny-bert --task retrieval --data built-in --option paragraphs", "write paragraphs="),
        ("evaluate tiny-bert --task retrieval --data nowhere.json", "nowhere.json"),
        ("evaluate tiny-bert --task text --data built-in", "attrim measure"),
        ("measure tiny-bert --text words --data built-in", "one of them"),
        ("measure tiny-bert --text words --stats histgram", "histogram"),
        ("measure tiny-bert --text words --stats histogram:row=true", "rows"),
        ("measure nowhere --text words --stats sample:count=abc", "'count' of the stat 'sample' cannot be 'abc'"),
        ("measure nowhere --text words --stats values:low=abc", "give a number"),
        ("measure nowhere --text words --stats values:moment=layer_outptu", "did you mean 'layer_output'"),
        ("evaluate nowhere --task retrieval --data built-in --option paragraphs=abc", "give a whole number"),
        ("evaluate nowhere --task glue/sst2 --option min_words=x", "'min_words' of the task glue/sst2"),
        ("evaluate nowhere --task glue/sst2 --option label_order=[1,x]", "a list whose entries are each a whole"),
        ("evaluate nowhere --task glue/sst2 --option label_order=[1", "'[1'"),
        ("train nowhere --task glue/sst2 --train-option local_files_only=perhaps", "true or false"),
        ("export nowhere --text words --output out --edit threshold:bar=x", "cannot be 'x'; give a number"),
        ("measure tiny-bert", "give a file or folder"),
        ("sites /nowhere/at/all", "/nowhere/at/all"),
        ("sites tiny-brt", "did you mean 'tiny-bert'?"),
        ("measure tiny-bert --text words --max-length 0", "give at least 3"),
        ("sparsity nowhere --task retrieval --row-bar -1", "must lie in [0, 1), not -1.0"),
        ("sparsity nowhere --task retrieval --row-bar 1", "must lie in [0, 1), not 1.0"),
        ("sites tiny-bert --select-layers 9", "matches no head"),
        ("sites tiny-bert --select-roles encodr", "did you mean 'encoder'?"),
        ("measure tiny-bert --text words --stats row-distance:bins=0", "from 1 to 1,000,000"),
        ("measure tiny-bert --text words --stats histogram:rows=true,bins=9999999999", "from 1 to 1,000,000"),
    ],
)
def test_user_errors_are_one_sentence_and_exit_code_2(
    words: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("attrim: ")
    assert printed.err.count("\n") == 1
    assert named in printed.err


@pytest.mark.parametrize("kind", ["models", *REGISTRIES])
def test_ls_lists_every_kind(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", kind, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)[kind]
    assert rows
    assert all(row["name"] and row["summary"] for row in rows)


def test_ls_shows_parameters_with_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "edits"]) == 0
    printed = capsys.readouterr().out
    assert "random-drop" in printed
    assert "renormalize=false" in printed
    assert main(["ls", "models"]) == 0
    assert "attrim[demo]" in capsys.readouterr().out  # square brackets are no markup


def test_sites_prints_a_row_for_each_site(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Sites(model="tiny-t5").run()
    assert len(outcome.data["sites"]) == 6  # 2 layers of encoder, decoder and cross attention
    assert outcome.data["heads"] == 24
    assert main(["sites", "tiny-t5", "--select-roles", "cross", "--select-heads", "1/3"]) == 0
    printed = capsys.readouterr().out
    assert "1 site, 1 head" in printed


def test_evaluate_prints_what_it_returns(squad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", MODEL, "--task", "retrieval", "--data", str(squad), "--option", "paragraphs=6", "--limit", "6"]
    words += ["--edit", "threshold:0.05", "--edit", "gate:0 then uniform"]
    assert main([*words, "--json"]) == 0
    printed = capsys.readouterr()
    results = json.loads(printed.out)["results"]
    assert list(results) == ["unedited", "threshold:0.05", "gate:0 then uniform"]
    assert results["unedited"]["zero_share"] == 0
    assert results["gate:0 then uniform"]["zero_share"] == 0  # the later edit has the last word
    assert 0 < results["threshold:0.05"]["zero_share"] < 1
    change = results["threshold:0.05"]["changes"]["top-1"]
    assert change["low"] <= change["value"] <= change["high"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "gate:0 then uniform" in shown
    assert f"{100 * results['threshold:0.05']['zero_share']:.1f} %" in shown
    assert main([*words, "--quiet"]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (shown, "")  # quiet is about progress; a result that nobody sees is lost


@pytest.mark.parametrize(
    ("stat", "figures"),
    [
        ("values", {"probe-layer-output"}),
        ("mean", {"average-patterns-encoder"}),
        ("sample", {"matrices-own-scale-encoder-0", "matrices-own-scale-encoder-1"}),
        ("histogram:rows=true", {"rows-encoder-0", "rows-encoder-1", "row-sparsity-of-heads", "sparsity-of-rows"}),
        ("row-curves", {"row-curves"}),
    ],
)
def test_every_stat_of_edited_attention_has_a_table_and_figures(
    stat: str, figures: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["measure", MODEL, "--text", "One text.", "Another one.", "--edit", "threshold:0.05", "--stats", stat]
    assert main([*words, "--output", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "━" in shown  # a table
    assert "no table" not in shown
    assert figures <= {path.stem for path in (tmp_path / "figures").glob("*.png")}


@pytest.mark.usefixtures("rendered")
def test_measure_prints_draws_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["measure", MODEL, "--text", "One text.", "Another one.", "--output", str(tmp_path / "stats")]
    assert main([*words, "--select-heads", "0-1", "--stats", "histogram:rows=true", "moments", "mean", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)  # valid JSON although unwatched heads have no number
    tokens = [len(text) + 2 for text in words[3:5]]  # the tiny tokenizer reads bytes and adds two tokens
    assert said["stats"]["Histogram"]["weights"] == 2 * 2 * sum(count**2 for count in tokens)
    assert said["stats"]["Moments"]["entropy"][0][2:] == [None, None]
    drawn = {Path(path).stem for path in said["figures"]}
    assert {
        "distribution",
        "sparsity-of-heads",
        "histogram-of-heads",
        "entropy-of-heads",
        "average-patterns-encoder",
    } <= drawn, drawn
    assert {Path(path).suffix for path in said["figures"]} == {".png", ".svg"}
    assert all(Path(path).stat().st_size > 1000 for path in said["figures"])
    from attrim.measurement import Stats

    saved = Stats.load(tmp_path / "stats")
    assert list(saved) == ["Histogram", "Moments", "Mean"]
    assert saved.origin.data.examples == 2


def test_measure_sees_edits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", MODEL, "--text", "Some text.", "--edit", "gate:0", "--json"]) == 0
    share = json.loads(capsys.readouterr().out)["stats"]["Histogram"]["share"]
    assert share["≤ 0.0001"][-1] == 1.0
    assert main(["measure", MODEL, "--text", "Some text.", "--edit", "gate:0 then uniform", "--json"]) == 0
    share = json.loads(capsys.readouterr().out)["stats"]["Histogram"]["share"]
    assert share["≤ 0.0001"][-1] == 0.0  # the later edit has the last word


def test_measure_shows_tables(squad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", MODEL, "--task", "squad-paragraphs", "--data", str(squad)]) == 0
    printed = capsys.readouterr().out
    assert "Entropy of the rows" in printed
    assert "≤ 0.001" in printed
    assert "read from bins 2 to 3 % wide" in printed  # shares up to a bar are not counted one by one


def test_select_flags_apply_to_edits_that_select_nothing(squad: Path) -> None:
    shared = {"model": MODEL, "task": "retrieval", "data": str(squad), "option": ("paragraphs=6",), "limit": 6}
    outcome = Evaluate(**shared, edit=("gate:0", "gate:0,heads=0-3"), select_layers=(0,)).run()
    results = outcome.data["results"]
    assert results["gate:0"]["zero_share"] == pytest.approx(0.5)  # one of two layers
    assert results["gate:0,heads=0-3"]["zero_share"] == pytest.approx(1.0)  # its own selection: all heads everywhere


def test_a_finished_run_is_not_repeated(squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = {"model": MODEL, "task": "retrieval", "data": str(squad), "option": ("paragraphs=6",), "limit": 6}
    command = Evaluate(**shared, edit=("uniform",), output=tmp_path / "runs")
    first = command.run().data["results"]
    import attrim.evaluation as module

    monkeypatch.setattr(module, "_run", lambda *_: pytest.fail("a stored setting was computed again"))
    assert command.run().data["results"] == first


def test_interrupt_ends_with_130(squad: Path, tmp_path: Path) -> None:
    words = ["evaluate", MODEL, "--task", "retrieval", "--data", str(squad), "--option", "paragraphs=6", "--limit", "6"]
    words += [word for share in range(1, 3000) for word in ("--edit", f"random-drop:0.5,seed={share}")]
    words += ["--output", str(tmp_path)]
    process = forks.Process("-m", "attrim", *words, "--quiet", stderr=subprocess.PIPE)
    started = time.monotonic()
    while not list(tmp_path.glob("evaluate-*/arrays/*.safetensors")):  # at work as soon as it stores something
        assert process.poll() is None
        assert time.monotonic() - started < 120
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m attrim ls tasks | head -1"
    finished = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert finished.returncode == 0
    assert finished.stderr == ""


@pytest.mark.parametrize("more", ["", "--json"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_is_one_sentence(more: str) -> None:
    command = f"{sys.executable} -m attrim ls edits {more} > /dev/full"
    finished = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert finished.stderr.startswith("attrim: The result could not be printed (No space left")
    assert finished.stderr.count("\n") == 1


def test_a_missing_head_names_the_command_that_trains_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_model(MODEL).save_pretrained(tmp_path)
    assert main(["evaluate", str(tmp_path), "--task", "glue/sst2", "--data", "built-in"]) == 2
    assert "'attrim train'" in capsys.readouterr().err
