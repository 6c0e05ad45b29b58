"""Where SQuAD's data comes from, and what is refused."""

from __future__ import annotations

import gzip

import pytest

from attrim.errors import DataError, ParameterError
from attrim.tasks import load_task
from attrim.tasks.batching import make_batches
from squads import TOKENIZER, squad


@pytest.mark.parametrize(("name", "config"), [("squad", "plain_text"), ("squad-v2", "squad_v2")])
def test_cached_hub_data(tmp_path, name, config):
    """What ``datasets`` leaves in its cache is read without a network."""
    import datasets
    from datasets.arrow_writer import ArrowWriter

    answers = {"text": datasets.List(datasets.Value("string")), "answer_start": datasets.List(datasets.Value("int32"))}
    strings = {column: datasets.Value("string") for column in ("id", "title", "context", "question")}
    features = datasets.Features({**strings, "answers": answers})
    folder = f"rajpurkar___{name.replace('-', '_')}"
    place = tmp_path / folder / config / "0.0.0" / ("0" * 40)
    place.mkdir(parents=True)
    short = folder.partition("___")[2]
    writer = ArrowWriter(path=str(place / f"{short}-validation.arrow"), features=features)
    row = {"id": "q7", "title": "t", "context": "A red fox.", "question": "Colour?"}
    writer.write({**row, "answers": {"text": ["red"], "answer_start": [2]}})
    count, size = writer.finalize()
    split = {"name": "validation", "num_bytes": size, "num_examples": count, "dataset_name": short}
    datasets.DatasetInfo(
        features=features, builder_name="parquet", dataset_name=short, config_name=config, version="0.0.0",
        splits={"validation": split},
    ).write_to_directory(str(place))  # fmt: skip
    [question] = load_task(name, cache_dir=str(tmp_path), local_files_only=True).examples()
    assert (question.name, question.texts, question.answers) == ("q7", ("Colour?", "A red fox."), (("red", 2),))
    with pytest.raises(DataError, match="could not be read from the local cache"):
        list(load_task(name, cache_dir=str(tmp_path / "none"), local_files_only=True).examples())


def test_files_and_refusals(tmp_path):
    data = squad(tmp_path, [("A cat.", [("?", ["cat"])])])
    packed = tmp_path / "mine.json.gz"
    packed.write_bytes(gzip.compress((tmp_path / "dev-v1.1.json").read_bytes()))
    for options in ({"data": str(packed)}, {"data": data, "split": "mine"}, {"data": data}):
        assert [question.name for question in load_task("squad", **options).examples()] == ["q0"]
    with pytest.raises(DataError, match=r"holds none of train-v1\.1\.json"):
        list(load_task("squad", data=data, split="train").examples())
    with pytest.raises(DataError, match="no room for 64 tokens of question"):
        next(load_task("squad", data=data).batches(TOKENIZER, 128))
    with pytest.raises(ParameterError, match="n_best must be at least 1"):
        load_task("squad", n_best=0)
    with pytest.raises(DataError, match="no start_logits"):
        task = load_task("squad", data=data)
        batch = next(task.batches(TOKENIZER))
        task.run(load_task("glue/sst2").load_model("tiny-bert"), {**batch.inputs, **batch.targets})
    with pytest.raises(DataError, match="has no tokens"):
        empty = load_task("squad", data=squad(tmp_path, [("", [("?", [""])])]))
        next(make_batches(empty.examples(), TOKENIZER, 1, 384, empty.rows))
