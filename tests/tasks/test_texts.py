"""Plain texts: lines, paragraphs, JSON lines, CSV, SQuAD, plain and gzip."""

from __future__ import annotations

import gzip
import json

import pytest
import torch

from attrim.errors import DataError, ParameterError
from attrim.models.loading import load_model, load_tokenizer
from attrim.tasks import Example, load_task
from attrim.tasks.encoding import encode_texts


def texts(**options):
    return [example.texts[0] for example in load_task("text", **options).examples()]


def test_lines_and_paragraphs(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("One.\nTwo.\n\n \nThree.\u2028Still three.\r\n", encoding="utf-8", newline="")
    assert texts(data=str(path)) == ["One.", "Two.", "Three.\u2028Still three."]
    assert texts(data=str(path), unit="paragraph") == ["One. Two.", "Three.\u2028Still three."]


def test_blanks_around_a_text_are_kept_if_asked_for(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(" \n = Title = \n")
    assert texts(data=str(path), unit="file") == ["= Title ="]
    assert texts(data=str(path), unit="file", strip=False) == [" \n = Title = "]


def test_tables_and_folders(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n"x, ""y""\nz",1\nw,2\n')
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "from json"}\n\n{"text": "more"}\n'))
    (tmp_path / "ignored.bin").write_bytes(b"\xff\x00")
    assert texts(data=str(tmp_path)) == ['x, "y"\nz', "w", "from json", "more"]
    (tmp_path / "c.csv").write_text("3,title,body\n4,other,text\n")
    assert texts(data=str(tmp_path / "c.csv"), column="2") == ["body", "text"]


def test_real_files(shared_data):
    """Official counts: 872 sentences, 7,600 news, 2,067 SQuAD paragraphs, 241,211 WikiText-2 tokens."""
    assert len(texts(data=str(shared_data / "glue/SST-2/dev.tsv.gz"))) == 873  # its header is a line, too
    assert len(texts(data=str(next((shared_data / "ag_news").glob("test.csv*"))), column="2")) == 7600
    squad = load_task("squad-paragraphs", data=str(shared_data / "squad"))
    assert len(list(squad.examples())) == 2067
    words = texts(data=str(next((shared_data / "wikitext-2").glob("test.txt*"))))
    assert sum(len(line.split()) for line in words) == 241_211


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.csv", b"title\nx\n", {}, "no column 'text'; it has title"),
        ("a.csv", b"1,2\n", {"column": "5"}, "has 2 columns, no column 5"),
        ("a.jsonl", b'{"body": "x"}\n', {}, "without text in 'text'; it has body"),
        ("a.jsonl", b"{oops\n", {}, "Line 1 of .* is not JSON"),
        ("a.jsonl", b"[1]\n", {}, "is not a JSON object"),
        ("a.txt", b"\xff\xfe\x00", {}, "is not UTF-8"),
        ("a.txt", b"\n\n", {}, "found no examples"),
        ("a.txt.gz", b"not gzip", {}, "damaged or not a gzip file"),
        ("a.json", b"{}", {}, "squad-paragraphs"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, options, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        texts(data=str(tmp_path / name), **options)


def test_missing_data(tmp_path):
    with pytest.raises(DataError, match="give a file or folder"):
        texts()
    with pytest.raises(DataError, match="There is no file or folder"):
        texts(data=str(tmp_path / "none.txt"))
    with pytest.raises(DataError, match=r"holds no \.txt"):
        texts(data=str(tmp_path))
    with pytest.raises(DataError, match=r"holds none of dev-v1\.1\.json"):
        list(load_task("squad-paragraphs", data=str(tmp_path)).examples())
    with pytest.raises(DataError, match="give its path"):
        list(load_task("squad-paragraphs").examples())
    (tmp_path / "dev-v1.1.json").write_text(json.dumps({"data": [{"title": "no paragraphs"}]}))
    with pytest.raises(DataError, match="not in SQuAD's JSON format"):
        list(load_task("squad-paragraphs", data=str(tmp_path)).examples())


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-roberta", "tiny-gpt2", "tiny-llama", "tiny-t5", "tiny-bart"])
def test_feed_is_ready_for_the_model(tmp_path, name):
    """Long texts are cut to what the model can take, and every kind of model runs on what it is fed."""
    (tmp_path / "long.txt").write_text("a" * 2000 + "\nshort\n")
    model, tokenizer = load_model(name), load_tokenizer(name)
    task = load_task("text", data=str(tmp_path), max_length=5000)
    [inputs] = list(task.feed(model, tokenizer))
    assert inputs["input_ids"].shape == (2, 512)
    with torch.no_grad():
        assert torch.isfinite(model(**inputs).last_hidden_state).all()


@pytest.mark.parametrize("length", [-1, 0, 1, 2])
def test_a_length_without_room_for_text_is_refused(tmp_path, length):
    """Tokenizers would not cut at all."""
    (tmp_path / "texts.txt").write_text("some text\n")
    tokenizer = load_tokenizer("tiny-bert")
    with pytest.raises(ParameterError, match=f"max_length {length} leaves no room .* 2 special tokens; .* at least 3"):
        list(load_task("text", data=str(tmp_path), max_length=length).batches(tokenizer))
    [batch] = load_task("text", data=str(tmp_path), max_length=3).batches(tokenizer)
    assert batch.inputs["input_ids"].shape == (1, 3)


def test_a_pair_needs_room_for_both_texts():
    tokenizer, pair = load_tokenizer("tiny-bert"), [Example(("one", "other"))]
    with pytest.raises(ParameterError, match=r"max_length 4 leaves no room .* 3 special tokens; give at least 5"):
        list(encode_texts(pair, tokenizer, 4))
    [row] = encode_texts(pair, tokenizer, 5)
    assert len(row.inputs["input_ids"]) == 5
