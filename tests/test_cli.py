"""The command line: flags, YAML, output, errors and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attrim.cli import main
from attrim.commands import COMMANDS, Evaluate, Ls, Measure, Sites, Sparsity
from attrim.commands.measure import parse_stat
from attrim.commands.parsing import parse
from attrim.errors import AttrimError
from attrim.loading import load_model
from attrim.stats.tokensparsity import TokenSparsity
from attrim.tasks.glue import Sst2

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


def test_flags_fill_the_dataclass() -> None:
    words = "evaluate some/model --task retrieval --edit uniform --edit threshold:0.1 --select-layers 0 -1 --limit 5"
    command = parse(words.split(), COMMANDS)
    assert command == Evaluate(
        model="some/model", task="retrieval", edit=("uniform", "threshold:0.1"), select_layers=(0, -1), limit=5
    )


def test_flags_win_over_yaml(tmp_path: Path) -> None:
    path = tmp_path / "evaluate.yaml"
    path.write_text("model: some/model\ntask: retrieval\nlimit: 7\nbatch-size: 3\nedit: [uniform]\n")
    command = parse(["evaluate", "--config", str(path), "--limit", "9"], COMMANDS)
    assert command == Evaluate(
        model="some/model", task="retrieval", limit=9, batch_size=3, edit=("uniform",), config=path
    )


def test_yaml_may_leave_required_flags_to_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "evaluate.yaml"
    path.write_text("task: retrieval\n")
    command = parse(["evaluate", f"--config={path}", "other/model"], COMMANDS)
    assert isinstance(command, Evaluate)
    assert (command.model, command.task) == ("other/model", "retrieval")
    with pytest.raises(AttrimError, match="MODEL"):
        parse(["evaluate", "--config", str(path)], COMMANDS)


def test_yaml_values_are_read_as_flags_are(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(
        "model: some/model\ntask: 7\nrevision: 0123\nlimit: null\noutput: 5\njson: on\nbars: 1e-3\nbits: [2, 3]\n"
        "target: 1\nedit: threshold:0.1\ncompare: [earlier]\nformats: svg\ndtype: bfloat16\nshow-heads: [0/2]\n"
    )
    assert parse(["sparsity", "--config", str(path)], COMMANDS) == Sparsity(
        config=path, model="some/model", task="7", revision="0123", limit=None, output=Path("5"), json=True,
        bars=(1e-3,), bits=(2, 3), target=1.0, edit=("threshold:0.1",), compare=(Path("earlier"),), formats=("svg",),
        dtype="bfloat16", show_heads=("0/2",),
    )  # fmt: skip
    path.write_text("stats: moments\ntext: one text\n")
    command = parse(["measure", "some/model", "--config", str(path)], COMMANDS)
    assert command == Measure(config=path, model="some/model", stats=("moments",), text=("one text",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("limit: [1", "not valid YAML"),
        ("limmit: 3", "did you mean 'limit'"),
        ("- 3", "flag: value"),
        (None, "read"),
        ("", "is empty; write 'flag: value'"),
        ("# nothing yet\n", "is empty"),
        ("batch_size: x", "key 'batch_size' of .*bad.yaml cannot be 'x'; give a whole number"),
        ("batch_size:", "'batch_size' .* cannot be ''; give a whole number"),
        ("limit: abc", "'limit' .* give a whole number"),
        ("limit: [5]", "'limit' .* give a whole number"),
        ("json: perhaps", "'json' .* give true or false"),
        ("output: [a, b]", "'output' .* give a path"),
        ("dtype: float23", "'dtype' .* did you mean 'float32'"),
        ("select_layers: [0, one]", "'select_layers' .* give a list whose entries are each a whole number"),
        ("edit: {threshold: 0.1}", "'edit' .* give a list whose entries are each a text"),
    ],
)
def test_bad_yaml_is_one_sentence(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "bad.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(AttrimError, match=words) as caught:
        parse(["evaluate", "--config", str(path)], COMMANDS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("sits", "sites"),
        ("sites minilm --devic cpu", "--device"),
        ("sites minilm --dtype int8", "float32"),
        ("sites", "MODEL"),
        ("sites minilm left over", "left over"),
        ("ls things", "models"),
        ("evaluate minilm", "--task"),
        ("evaluate minilm --task retrieval --limit many", "--limit"),
        ("evaluate tiny-bert --task retrival", "retrieval"),
        ("evaluate tiny-bert --task retrieval --edit treshold:1", "threshold"),
        ("evaluate tiny-bert --task retrieval --data built-in --option paragraphs", "write paragraphs="),
        ("evaluate tiny-bert --task retrieval --data nowhere.json", "nowhere.json"),
        ("evaluate tiny-bert --task text --data built-in", "attrim measure"),
        ("measure tiny-bert --text words --data built-in", "one of them"),
        ("measure tiny-bert --text words --stats histgram", "histogram"),
        ("measure tiny-bert --text words --stats histogram:row=true", "rows"),
        ("measure nowhere --text words --stats sample:count=abc", "'count' of the stat sample cannot be 'abc'"),
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


@pytest.mark.parametrize("kind", ["models", "tasks", "edits", "stats", "studies"])
def test_ls_lists_every_kind(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", kind, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)[kind]
    assert rows
    assert all(row["name"] and row["summary"] for row in rows)


def test_ls_shows_parameters_with_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "edits"]) == 0
    printed = capsys.readouterr().out
    assert "random-drop" in printed
    assert "renormalize=False" in printed
    assert main(["ls", "models"]) == 0
    assert "attrim[demo]" in capsys.readouterr().out  # square brackets are no markup


def test_sites_prints_a_row_for_each_site(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Sites(model="tiny-t5").run()
    assert len(outcome.data["sites"]) == 6  # 2 layers of encoder, decoder and cross attention
    assert outcome.data["heads"] == 24
    assert main(["sites", "tiny-t5", "--select-roles", "cross", "--select-heads", "1/3"]) == 0
    printed = capsys.readouterr().out
    assert "1 sites, 1 heads" in printed


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


def test_measure_prints_draws_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["measure", MODEL, "--text", "One text.", "Another one.", "--output", str(tmp_path / "stats")]
    assert main([*words, "--select-heads", "0-1", "--stats", "histogram:rows=true", "moments", "mean", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)  # valid JSON although unwatched heads have no number
    tokens = [len(text) + 2 for text in words[3:5]]  # the tiny tokenizer reads bytes and adds two tokens
    assert said["stats"]["Histogram"]["weights"] == 2 * 2 * sum(count**2 for count in tokens)
    assert said["stats"]["Moments"]["entropy"][0][2:] == [None, None]
    assert len(said["figures"]) == 6
    assert all(Path(path).is_file() for path in said["figures"])
    from attrim.measure import Stats

    saved = Stats.load(tmp_path / "stats")
    assert list(saved) == ["Histogram", "Moments", "Mean"]
    assert saved.origin.data.examples == 2


def test_measure_sees_edits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", MODEL, "--text", "Some text.", "--edit", "gate:0", "--json"]) == 0
    share = json.loads(capsys.readouterr().out)["stats"]["Histogram"]["share"]
    assert share["≤ 0.0001"][-1] == 1.0


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
    import attrim.evaluate as module

    monkeypatch.setattr(module, "_run", lambda *_: pytest.fail("a stored setting was computed again"))
    assert command.run().data["results"] == first


def test_options_become_what_the_fields_of_the_task_are() -> None:
    options = ("label_order=[1, 0]", "min-words=6", "revision=12", "local_files_only=yes", "seed=null", "layout=grid")
    task = Evaluate(model=MODEL, task="glue/sst2", option=options).load_task()
    assert isinstance(task, Sst2)
    assert (task.label_order, task.min_words, task.revision) == ((1, 0), 6, "12")
    assert (task.local_files_only, task.seed, task.layout) == (True, None, "grid")
    assert repr(parse_stat("token-sparsity:bars=1e-3")) == repr(TokenSparsity((1e-3,)))


def test_python_and_command_line_share_the_dataclass() -> None:
    assert parse(["ls", "edits", "--json"], COMMANDS) == Ls(kind="edits", json=True)


def test_interrupt_ends_with_130(squad: Path) -> None:
    words = ["evaluate", MODEL, "--task", "retrieval", "--data", str(squad), "--option", "paragraphs=6", "--limit", "6"]
    words += [word for share in range(1, 3000) for word in ("--edit", f"random-drop:0.5,seed={share}")]
    process = subprocess.Popen(
        [sys.executable, "-m", "attrim", *words, "--quiet"], stderr=subprocess.PIPE, text=True, env=os.environ.copy()
    )
    time.sleep(8)  # long enough to be at work
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
