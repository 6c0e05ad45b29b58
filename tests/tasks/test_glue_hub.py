"""GLUE from the hub's local cache, as ``datasets`` lays it out, with no network."""

from __future__ import annotations

import datasets
import pytest
from datasets.arrow_writer import ArrowWriter

from attrim.errors import DataError
from attrim.tasks import load_task


def cache(folder, config, split, rows, names):
    """Write what ``datasets.load_dataset("nyu-mll/glue", config)`` leaves in its cache."""
    label = datasets.ClassLabel(names=names) if names else datasets.Value("float32")
    texts = {column: datasets.Value("string") for column in rows[0] if column != "label"}
    features = datasets.Features({**texts, "label": label})
    place = folder / "nyu-mll___glue" / config / "0.0.0" / ("0" * 40)
    place.mkdir(parents=True)
    writer = ArrowWriter(path=str(place / f"glue-{split}.arrow"), features=features)
    for row in rows:
        writer.write(row)
    count, size = writer.finalize()
    info = {"name": split, "num_bytes": size, "num_examples": count, "dataset_name": "glue"}
    datasets.DatasetInfo(
        features=features, builder_name="parquet", dataset_name="glue", config_name=config, version="0.0.0",
        splits={split: info},
    ).write_to_directory(str(place))  # fmt: skip


CASES = [
    ("glue/sst2", "validation", "validation", [{"sentence": "good", "label": 1}], ["negative", "positive"], [1.0]),
    ("glue/sst2", "test", "test", [{"sentence": "good", "label": -1}], ["negative", "positive"], [None]),
    (
        "glue/mnli-mismatched",
        "validation",
        "validation_mismatched",
        [{"premise": "x", "hypothesis": "y", "label": 2}],
        ["entailment", "neutral", "contradiction"],
        [2.0],
    ),
    ("glue/stsb", "validation", "validation", [{"sentence1": "x", "sentence2": "y", "label": 0.5}], None, [0.5]),
    ("glue/mrpc", "train", "train", [{"sentence1": "x", "sentence2": "y", "label": 0}], ["no", "yes"], [0.0]),
]


@pytest.mark.parametrize(("name", "split", "hub_split", "rows", "names", "labels"), CASES)
def test_cached_hub_data(tmp_path, name, split, hub_split, rows, names, labels):
    cache(tmp_path, name.split("/")[1].split("-")[0], hub_split, rows, names)
    before = datasets.config.HF_HUB_OFFLINE
    examples = list(load_task(name, split=split, cache_dir=str(tmp_path), local_files_only=True).examples())
    assert before == datasets.config.HF_HUB_OFFLINE
    assert [example.label for example in examples] == labels
    assert examples[0].texts == tuple(value for column, value in rows[0].items() if column != "label")


def test_not_cached_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match=r"could not be read from the local cache.*give a local folder") as caught:
        list(load_task("glue/rte", cache_dir=str(tmp_path), local_files_only=True).examples())
    assert "\n" not in str(caught.value)
