"""Flags, YAML and Python fill the same dataclass."""

from __future__ import annotations

from pathlib import Path

import pytest

from attrim.cli import main
from attrim.commands import commands
from attrim.commands.evaluate import Evaluate
from attrim.commands.ls import Ls
from attrim.commands.measure import Measure
from attrim.commands.parsing import parse
from attrim.commands.study import command_of
from attrim.core.registry import STATS
from attrim.core.text import parse as parse_text
from attrim.errors import AttrimError
from attrim.stats.token_sparsity import TokenSparsity
from attrim.studies.sparsity import Sparsity
from attrim.tasks.glue import Sst2

MODEL = "tiny-bert"


def test_flags_fill_the_dataclass() -> None:
    words = "evaluate some/model --task retrieval --edit uniform --edit threshold:0.1 --select-layers 0 -1 --limit 5"
    command = parse(words.split(), commands())
    assert command == Evaluate(
        model="some/model", task="retrieval", edit=("uniform", "threshold:0.1"), select_layers=(0, -1), limit=5
    )


def test_flags_win_over_yaml(tmp_path: Path) -> None:
    path = tmp_path / "evaluate.yaml"
    path.write_text("model: some/model\ntask: retrieval\nlimit: 7\nbatch-size: 3\nedit: [uniform]\n")
    command = parse(["evaluate", "--config", str(path), "--limit", "9"], commands())
    assert command == Evaluate(
        model="some/model", task="retrieval", limit=9, batch_size=3, edit=("uniform",), config=path
    )


def test_repeatable_flags_add_to_yaml_and_values_may_follow_an_equals_sign(tmp_path: Path) -> None:
    path = tmp_path / "evaluate.yaml"
    path.write_text("task: retrieval\nedit: [uniform]\nselect-layers: [1]\n")
    words = ["evaluate", "--edit=gate:0,heads=3", "--select_layers", "-1", "0", "--config", str(path), "some/model"]
    with pytest.raises(AttrimError, match="needs MODEL"):
        parse([*words[:6], str(path)], commands())
    words = ["evaluate", "some/model", "--limit", "null", "--json", *words[1:-1], "--quiet=false"]
    assert parse(words, commands()) == Evaluate(
        model="some/model", task="retrieval", edit=("uniform", "gate:0,heads=3"), select_layers=(-1, 0), json=True,
        config=path,
    )  # fmt: skip


def test_yaml_may_leave_required_flags_to_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "evaluate.yaml"
    path.write_text("task: retrieval\n")
    command = parse(["evaluate", f"--config={path}", "other/model"], commands())
    assert isinstance(command, Evaluate)
    assert (command.model, command.task) == ("other/model", "retrieval")
    with pytest.raises(AttrimError, match="MODEL"):
        parse(["evaluate", "--config", str(path)], commands())


def test_yaml_values_are_read_as_flags_are(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(
        "model: some/model\ntask: 7\nrevision: 0123\nlimit: null\noutput: 5\njson: on\nbars: 1e-3\nbits: [2, 3]\n"
        "target: 1\nedit: threshold:0.1\ncompare: [earlier]\nformats: svg\ndtype: bfloat16\nshow-heads: [0/2]\n"
    )
    assert parse(["sparsity", "--config", str(path)], commands()) == command_of(Sparsity)(
        config=path, model="some/model", task="7", revision="0123", limit=None, output=Path("5"), json=True,
        bars=(1e-3,), bits=(2, 3), target=1.0, edit=("threshold:0.1",), compare=(Path("earlier"),), formats=("svg",),
        dtype="bfloat16", show_heads=("0/2",),
    )  # fmt: skip
    path.write_text("stats: moments\ntext: one text\n")
    command = parse(["measure", "some/model", "--config", str(path)], commands())
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
        parse(["evaluate", "--config", str(path)], commands())
    assert "\n" not in str(caught.value)


def test_options_become_what_the_fields_of_the_task_are() -> None:
    options = ("label_order=[1, 0]", "min-words=6", "revision=12", "local_files_only=yes", "seed=null", "layout=grid")
    task = Evaluate(model=MODEL, task="glue/sst2", option=options).loaded_task
    assert isinstance(task, Sst2)
    assert (task.label_order, task.min_words, task.revision) == ((1, 0), 6, "12")
    assert (task.local_files_only, task.seed, task.layout) == (True, None, "grid")
    assert repr(parse_text(STATS, "token-sparsity:bars=1e-3")) == repr(TokenSparsity((1e-3,)))


def test_python_and_command_line_share_the_dataclass() -> None:
    assert parse(["ls", "edits", "--json"], commands()) == Ls(kind="edits", json=True)


@pytest.mark.parametrize("name", ["bake", "export", "measure", "train"])
def test_the_help_says_what_flags_take(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    shown = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    assert "{None}" not in shown
    entry = shown.split("--edit STR", 1)[1].split(" --", 1)[0]
    assert "repeatable" not in entry  # a second one is refused
