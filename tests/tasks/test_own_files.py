"""Classification and tagging with a user's own CSV and JSON files."""

from __future__ import annotations

import csv
import gzip
import json
import re
from pathlib import Path

import pytest

from attrim.cli import main
from attrim.errors import DataError
from attrim.tasks import load_task

ROWS = [{"text": f"{'zzzz' if i % 2 else 'aaaa'}, {i}", "label": "Very Good" if i % 2 else "bad"} for i in range(24)]
WORDS = [
    {"tokens": ["EU", "rejects", f"call{i}"], "ner_tags": ["B-ORG", "O", "B-MISC" if i % 2 else "I-PER"]}
    for i in range(12)
]


def write_csv(path: Path, rows: list[dict]) -> Path:
    with path.open("w", newline="") as stream:
        table = csv.DictWriter(stream, rows[0])
        table.writeheader()
        table.writerows(
            {name: " ".join(cell) if isinstance(cell, list) else cell for name, cell in row.items()} for row in rows
        )
    return path


def write(path: Path, rows: list[dict]) -> Path:
    ending = path.name.split(".", 1)[1]
    if ending == "csv":
        return write_csv(path, rows)
    lines = "\n".join(map(json.dumps, rows)) + "\n"
    if ending == "jsonl.gz":
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(
            {"json": json.dumps(rows, indent=1), "data.json": json.dumps({"data": rows})}.get(ending, lines)
        )
    return path


FORMS = ("csv", "json", "data.json", "jsonl", "jsonl.gz", "lines.json")


@pytest.mark.parametrize("form", FORMS)
def test_texts_and_labels_of_every_form(tmp_path: Path, form: str) -> None:
    files = {name: str(write(tmp_path / f"{name}.{form}", ROWS[:size])) for name, size in (("train", 24), ("dev", 6))}
    task = load_task("classification", train_file=files["train"], validation_file=files["dev"])
    assert task.labels == ("Very Good", "bad")
    assert [(example.texts, example.label) for example in task.examples()] == [
        ((row["text"],), float(row["label"] == "bad")) for row in ROWS[:6]
    ]
    assert len(list(load_task("classification", split="train", train_file=files["train"]).examples())) == 24


@pytest.mark.parametrize("form", FORMS)
def test_words_and_tags_of_every_form(tmp_path: Path, form: str) -> None:
    path = str(write(tmp_path / f"words.{form}", WORDS))
    task = load_task("tokens/spans", data=path)
    assert task.labels == ("O", "B-MISC", "I-MISC", "B-ORG", "I-ORG", "B-PER", "I-PER")
    first = next(task.examples())
    assert first.texts == ("EU", "rejects", "call0")
    assert [task.labels[number] for number in first.answers] == ["B-ORG", "O", "B-PER"]  # IOB1 becomes IOB2
    assert next(iter(task.metrics)) == "f1"
    tags = load_task("tokens/tags", data=path)
    assert tags.labels == ("B-MISC", "B-ORG", "I-PER", "O")
    assert list(tags.metrics) == ["accuracy"]


def test_columns_are_guessed_or_named(tmp_path: Path) -> None:
    pairs = [
        {"id": "7", "premise": "a b", "hypothesis": "c", "labels": 1},
        {"id": "8", "premise": "d", "hypothesis": "e", "labels": 10},
    ]
    path = str(write(tmp_path / "pairs.jsonl", pairs))
    task = load_task("classification", data=path)
    assert [example.texts for example in task.examples()] == [("a b", "c"), ("d", "e")]
    assert task.labels == ("1", "10")
    named = load_task("classification", data=path, text_column="hypothesis", label_column="id")
    assert [example.texts for example in named.examples()] == [("c",), ("e",)]
    assert named.labels == ("7", "8")
    both = load_task("classification", data=path, text_column="hypothesis", pair_column="premise")
    assert next(both.examples()).texts == ("c", "a b")


def test_numbered_tags_take_their_names_from_labels(tmp_path: Path) -> None:
    path = str(write(tmp_path / "n.json", [{"tokens": ["EU", "is"], "ner_tags": [1, 0]}]))
    task = load_task("tokens/spans", data=path, labels=("O", "B-ORG", "I-ORG"))
    assert next(task.examples()).answers == (1, 0)
    assert load_task("tokens/tags", data=path).labels == ("0", "1")
    with pytest.raises(DataError, match=r"Record 1 of .*'1'.*labels"):
        load_task("tokens/spans", data=path)


def test_a_folder_holds_its_splits(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ROWS)
    write(tmp_path / "validation.jsonl", ROWS[:4])
    write(tmp_path / "odd.csv", ROWS[:2])
    for split, size in {"train": 24, "validation": 4, "odd": 2}.items():
        assert len(list(load_task("classification", data=str(tmp_path), split=split).examples())) == size
    with pytest.raises(DataError, match="test"):
        list(load_task("classification", data=str(tmp_path), split="test").examples())


BAD = {
    "missing.csv": ("text,feeling\na,b\n", "no column for the label .*it has text, feeling.*label_column"),
    "named.csv": ("x,label\na,b\n", "no column for the text .*text_column"),
    "empty.csv": ("", "is empty"),
    "header.csv": ("text,label\n", "no rows"),
    "short.csv": ("text,label\na,b\nc\n", "Line 3 of .* has 1 columns, not 2"),
    "long.csv": ("text,label\na,b,c\n", "Line 2 of .* has 3 columns, not 2"),
    "twice.csv": ("text,label,label\na,b,c\n", "two columns named 'label'"),
    "blank.csv": ('text,label\na,b\n" ",b\n', "Line 3 of .* has an empty text"),
    "nolabel.csv": ("text,label\na,b\nc,\n", "Line 3 of .* has no label"),
    "nul.csv": ("text,label\na,b\nc\0,d\n", "Line 3 of"),
    "lacks.jsonl": ('{"text": "a", "label": 1}\n{"text": "a"}\n', "Line 2 of .* lacks 'label'"),
    "typed.jsonl": ('{"text": 7, "label": 1}\n', "Line 1 of .* 7 .*'text'"),
    "list.jsonl": ('{"text": "a", "label": [1]}\n', r"Line 1 of .* \[1\] .*label"),
    "null.jsonl": ('{"text": "a", "label": null}\n', "Line 1 of .* has no label"),
    "broken.jsonl": ('{"text": "a", "label": 1}\n{"text":\n', "Line 2 of .* is not JSON"),
    "array.json": ('[{"text": "a", "label": 1}, 5]', "Record 2 of .* is not a JSON object"),
    "half.json": ('[{"text": "a", "label": 1},', "is not JSON"),
    "nothing.json": ("[]", "no rows"),
    "deep.json": ("[" * 100_000, "is not JSON"),
    "other.json": ('{"version": 1, "rows": []}', "no column for the text"),
    "words.txt": ("a", r"\.csv, \.json or \.jsonl"),
    "one.csv": ("text,label\na,b\nc,b\n", "only the label 'b'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_sentence(tmp_path: Path, capsys, name: str) -> None:
    content, message = BAD[name]
    (tmp_path / name).write_text(content)
    words = ["evaluate", "tiny-bert", "--task", "classification", "--validation-file", str(tmp_path / name)]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert re.search(message, said), said
    assert said.count("\n") == 1
    assert len(said) < 400


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"tokens": ["a", "b"], "tags": ["O"]}\n', "Line 1 of .* has 2 words and 1 tags"),
        ('{"tokens": [], "tags": []}\n', "Line 1 of .* has no words"),
        ('{"tokens": "a b", "tags": ["O", "O"]}\n', "Line 1 of .* 'a b' .*list"),
        ('{"tokens": ["a", 3], "tags": ["O", "O"]}\n', "Line 1 of .*list of texts"),
        ('{"tokens": ["a", " "], "tags": ["O", "O"]}\n', "Line 1 of .* empty word"),
        ('{"tokens": ["a"], "tags": ["NN"]}\n', "Line 1 of .* 'NN'.*tokens/tags"),
        ('{"words": ["a"], "y": ["O"]}\n', "no column for the tags .*label_column"),
    ],
)
def test_bad_words_and_tags(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "w.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        list(load_task("tokens/spans", data=str(tmp_path / "w.jsonl")).examples())


def test_lists_in_csv_cells(tmp_path: Path) -> None:
    """As JSON, so that words may hold blanks; a list that Python printed is refused, not split."""
    (tmp_path / "a.csv").write_text('tokens,tags\n"[""New York"", ""is""]","[""B-LOC"", ""O""]"\n')
    assert next(load_task("tokens/spans", data=str(tmp_path / "a.csv")).examples()).texts == ("New York", "is")
    (tmp_path / "b.csv").write_text("tokens,tags\n\"['EU', 'is']\",\"['B-ORG', 'O']\"\n")
    with pytest.raises(DataError, match=r"Line 2 of .* JSON list"):
        load_task("tokens/spans", data=str(tmp_path / "b.csv"))


def test_labels_that_training_does_not_have(tmp_path: Path) -> None:
    train = str(write(tmp_path / "train.csv", ROWS))
    dev = str(write(tmp_path / "dev.csv", [*ROWS[:2], {"text": "c", "label": "odd"}]))
    with pytest.raises(DataError, match=r"Line 4 of .*dev.csv has the label 'odd', .*Very Good, bad"):
        list(load_task("classification", train_file=train, validation_file=dev).examples())
    words = str(write(tmp_path / "words.csv", WORDS))
    other = str(write(tmp_path / "other.csv", [{"tokens": ["a"], "ner_tags": ["B-LOC"]}]))
    with pytest.raises(DataError, match=r"Line 2 of .*other.csv has the label 'B-LOC'"):
        list(load_task("tokens/spans", train_file=words, validation_file=other).examples())


def test_a_task_without_own_files_refuses_them(tmp_path: Path, capsys) -> None:
    assert main(["evaluate", "tiny-bert", "--task", "glue/sst2", "--train-file", "a.csv"]) == 2
    assert "no option 'train_file'" in capsys.readouterr().err
    assert main(["evaluate", "tiny-bert", "--task", "classification"]) == 2
    assert "--validation-file" in capsys.readouterr().err


def test_train_evaluate_and_study(tmp_path: Path, capsys) -> None:
    write(tmp_path / "train.csv", ROWS)
    write(tmp_path / "dev.json", ROWS[:8])
    files = ["--train-file", str(tmp_path / "train.csv"), "--validation-file", str(tmp_path / "dev.json")]
    shared = ["--task", "classification", *files, "--json"]
    out = ["--output", str(tmp_path / "runs")]
    words = ["train", "tiny-bert", *shared, *out, "--steps", "4", "--save", str(tmp_path / "model")]
    assert main(words) == 0
    trained = json.loads(capsys.readouterr().out)["validations"]["4"]["metrics"]
    assert json.loads((tmp_path / "model" / "config.json").read_text())["id2label"] == {"0": "Very Good", "1": "bad"}
    assert main(["evaluate", str(tmp_path / "model"), *shared]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["unedited"]["metrics"] == trained
    quick = ["--max-length", "24", "--epochs", "1", "--seeds", "0", "--orders", "random", "--budgets", "1/2"]
    assert main(["constant", "tiny-bert", *shared, *out, *quick]) == 0
    assert [row["heads"] for row in json.loads(capsys.readouterr().out)["rows"]] == [0, 4]


def test_train_evaluate_and_study_tags(tmp_path: Path, capsys) -> None:
    write(tmp_path / "train.json", WORDS)
    write(tmp_path / "dev.csv", WORDS[:4])
    files = ["--train-file", str(tmp_path / "train.json"), "--validation-file", str(tmp_path / "dev.csv")]
    shared = ["--task", "tokens/spans", *files, "--json"]
    out = ["--output", str(tmp_path / "runs")]
    assert main(["train", "tiny-bert", *shared, *out, "--steps", "2", "--save", str(tmp_path / "model")]) == 0
    trained = json.loads(capsys.readouterr().out)["validations"]["2"]["metrics"]
    assert main(["evaluate", str(tmp_path / "model"), *shared]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["unedited"]["metrics"] == trained
    quick = ["--max-length", "24", "--epochs", "1", "--seeds", "0", "--orders", "random", "--budgets", "1/2"]
    assert main(["constant", "tiny-bert", *shared, *out, *quick]) == 0
    assert [row["heads"] for row in json.loads(capsys.readouterr().out)["rows"]] == [0, 4]
