"""The task vqa: real questions with real regions, every file format, and what is said about damaged files."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import logging
import pickle
import re

import numpy as np
import pytest
import torch
from transformers import LxmertConfig, LxmertForQuestionAnswering, VisualBertConfig, VisualBertForQuestionAnswering

from attrim.errors import ArtefactError, DataError
from attrim.evaluation import evaluate
from attrim.maps import Explainer
from attrim.maps.examples import Examples, explain_examples
from attrim.models.loading import load_model, load_tokenizer, saved_kind
from attrim.models.shape_models import WORDS, shapes_tokenizer
from attrim.tasks import load_task
from attrim.tasks.region_files import RegionFile, image_key
from attrim.tasks.vqa import read_answers

TOKENIZER = shapes_tokenizer()
IMAGES = {7: 3, 8: 5, 9: 2}
"""Regions of three images."""
ANSWERS = ["<unk>", "red", "blue", "yes", "no", "2"]
SMALL = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": len(WORDS)}


def lxmert(width=4, answers=6):
    sizes = {"l_layers": 1, "r_layers": 1, "x_layers": 1, "num_qa_labels": answers, "visual_feat_dim": width}
    return LxmertForQuestionAnswering(LxmertConfig(**SMALL, **sizes)).eval()


def visualbert(width=4, answers=6):
    sizes = {"num_hidden_layers": 1, "num_labels": answers, "visual_embedding_dim": width}
    return VisualBertForQuestionAnswering(VisualBertConfig(**SMALL, **sizes)).eval()


MODELS = pytest.mark.parametrize("make", [lxmert, visualbert])


def encoded(array):
    return base64.b64encode(np.asarray(array, dtype="<f4").tobytes()).decode()


def regions(image, width=4):
    """Features and boxes of an image of 100 x 200 pixels that its number fixes."""
    generator = np.random.default_rng(image)
    corners = np.sort(generator.uniform(0, 100, size=(IMAGES[image], 2, 2)), axis=1)
    return generator.normal(size=(IMAGES[image], width)).astype("f4"), corners.reshape(-1, 4).astype("f4")


def line(image, width=4, **changes):
    feats, boxes = regions(image, width)
    fields = {
        "img_id": f"COCO_val2014_{image:012d}", "h": "100", "w": "200", "objects_id": "", "objects_conf": "",
        "attrs_id": "", "attrs_conf": "", "num_boxes": str(len(boxes)), "boxes": encoded(boxes),
        "features": encoded(feats),
    }  # fmt: skip
    return "\t".join({**fields, **changes}.values())


@pytest.fixture
def data(tmp_path):
    """Three questions of VQA v2 about two images with regions and one without."""
    questions = [
        {"question_id": 1, "image_id": 7, "question": "what color is the circle ?"},
        {"question_id": 2, "image_id": 8, "question": "is there a red circle ?"},
        {"question_id": 3, "image_id": 999, "question": "how many red objects are there ?"},
    ]
    given = {1: ["red"] * 5 + ["Blue"] * 3 + ["dark red", "crimson"], 2: ["no", "yes"], 3: ["2"] * 10}
    kinds = {1: "other", 2: "yes/no", 3: "number"}
    annotations = [
        {"question_id": number, "answer_type": kinds[number], "answers": [{"answer": answer} for answer in answers]}
        for number, answers in given.items()
    ]
    folder = tmp_path / "vqa"
    folder.mkdir()
    write = lambda name, value: (folder / name).write_text(json.dumps(value))
    write("v2_OpenEnded_mscoco_val2014_questions.json", {"questions": questions})
    write("v2_mscoco_val2014_annotations.json", {"annotations": annotations})
    write("trainval_label2ans.json", ANSWERS)
    (folder / "val.tsv").write_text("\n".join(line(image) for image in IMAGES) + "\n")
    return folder


def task_of(data, **options):
    return load_task("vqa", data=str(data), **{"features": str(data / "val.tsv"), **options})


@MODELS
def test_a_model_answers_questions_of_vqa_v2(data, make, caplog):
    task = task_of(data)
    with caplog.at_level(logging.WARNING):
        examples = list(task.examples())
    assert "1 of 3 questions are about images" in caplog.text
    assert [example.texts[0] for example in examples] == ["what color is the circle ?", "is there a red circle ?"]
    assert dict(examples[0].answers[0]) == pytest.approx({1: 1.0, 2: 0.9})  # dark red and crimson are not in the list
    assert dict(examples[1].answers[0]) == pytest.approx({3: 1.0, 4: 1.0})  # two answers, repeated up to ten
    [batch] = task.batches(TOKENIZER)
    assert batch.inputs["visual_feats"].shape == (2, 5, 4)
    assert batch.inputs["visual_attention_mask"].sum(1).tolist() == [3, 5]
    assert 0 <= batch.inputs["visual_pos"].min() <= batch.inputs["visual_pos"].max() <= 1
    feats, boxes = regions(7)
    torch.testing.assert_close(batch.inputs["visual_feats"][0, :3], torch.tensor(feats))
    torch.testing.assert_close(batch.inputs["visual_pos"][0, :3], torch.tensor(boxes / [200, 100, 200, 100]).float())
    model = make()
    result = evaluate(model, task, TOKENIZER)
    assert list(result.metrics) == ["soft-accuracy", "yes/no", "number", "other"]
    alone = task.run(
        model, {name: tensor[:1, :3] if tensor.shape[1] == 5 else tensor[:1] for name, tensor in batch.inputs.items()}
    )
    torch.testing.assert_close(torch.tensor(result.outputs[:1]), alone, atol=1e-5, rtol=1e-4)


def test_the_unknown_token_is_never_the_answer(data):
    task = task_of(data)
    outputs = np.array([[9.0, 0, 1, 0, 0, 0], [9.0, 0, 0, 0, 2, 0]], dtype=np.float32)
    columns = task.columns(outputs, np.array([1.0, 3.0]))
    assert columns["prediction"].tolist() == [2, 4]
    assert columns["score"] == pytest.approx([0.9, 1.0])
    assert outputs[0, 0] == 9


def test_the_files_of_lxmert(data):
    """A list with scores; it gives what the files of VQA v2 give."""
    records = [
        {"question_id": 1, "img_id": "COCO_val2014_000000000007", "sent": "what color is the circle ?",
         "label": {"red": 1, "blue": 0.9}},
        {"question_id": 2, "img_id": "COCO_val2014_000000000008", "sent": "is there a red circle ?",
         "label": {"yes": 1.0, "no": 1.0}},
    ]  # fmt: skip
    for name in ("minival.json.gz", "one.json"):
        opener = gzip.open if name.endswith(".gz") else open
        with opener(data / name, "wt") as stream:
            json.dump(records, stream)
    usual = [(example.texts, dict(example.answers[0]), example.answers[1]) for example in task_of(data).examples()]
    options = {"features": str(data / "val.tsv"), "answers": str(data / "trainval_label2ans.json")}
    scored = load_task("vqa", data=str(data / "one.json"), **options)
    assert [(example.texts, dict(example.answers[0]), example.answers[1]) for example in scored.examples()] == usual
    for name in data.glob("v2_*"):
        name.unlink()
    assert len(list(task_of(data).examples())) == 2


def test_features_in_npz_files(data):
    stored = {image: regions(image) for image in (7, 8)}
    folder = data / "npz"
    folder.mkdir()
    for image, (feats, boxes) in stored.items():
        np.savez(folder / f"{image}.npz", features=feats, boxes=boxes, height=100, width=200)
    same = {image: (feats[:3], boxes[:3]) for image, (feats, boxes) in stored.items()}
    np.savez(
        data / "all.npz",
        image_id=np.array([*same]),
        features=np.stack([feats for feats, _ in same.values()]),
        boxes=np.stack([boxes for _, boxes in same.values()]),
        height=np.full(2, 100),
        width=np.full(2, 200),
    )
    [tsv], [single], [joined] = (
        list(task_of(data, features=str(path)).batches(TOKENIZER))
        for path in (data / "val.tsv", folder, data / "all.npz")
    )
    torch.testing.assert_close(single.inputs, tsv.inputs)
    torch.testing.assert_close(joined.inputs["visual_feats"], tsv.inputs["visual_feats"][:, :3])
    np.savez(data / "no-size.npz", image_id=np.array([7]), features=regions(7)[0][None], boxes=regions(7)[1][None])
    with pytest.raises(DataError, match=r"no-size.npz has no array 'height'.* size of their image"):
        list(task_of(data, features=str(data / "no-size.npz")).examples())
    (data / "bad.npz").write_bytes(pickle.dumps({"features": 1}))
    with pytest.raises(DataError, match="not a readable npz file"):
        list(task_of(data, features=str(data / "bad.npz")).examples())


DAMAGE = {
    "no height": ({"h": ""}, r"Line 1 of .*val.tsv has no size of the image \(h\)"),
    "no width": ({"w": "x"}, r"Line 1 of .*val.tsv has no size of the image \(w\)"),
    "features cut": ({"features": encoded(np.zeros(10))}, "features that are cut short"),
    "half a feature": ({"features": encoded(np.zeros((3, 2)))}, "has 2 numbers for a region, but most others have 4"),
    "no base64": ({"features": "?!"}, "cut short or no base64"),
    "boxes cut": ({"boxes": encoded(np.zeros((3, 3)))}, r"boxes of the shape \[3, 3\]"),
    "not finite": ({"features": encoded(np.full((3, 4), np.nan))}, "not finite"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_row_is_left_out_and_named(data, what, caplog):
    """The other rows are used; where none is left, the sentence is the error."""
    changes, sentence = DAMAGE[what]
    (data / "val.tsv").write_text("\n".join([line(7, **changes), line(8), line(9)]) + "\n")
    with caplog.at_level(logging.WARNING):
        [example] = task_of(data).examples()
    assert example.answers[2] == "8"
    assert re.search(r"1 damaged row of .*val.tsv left out: .*" + sentence.lstrip(), caplog.text)
    if what == "half a feature":  # alone, it is as good as any
        return
    with pytest.raises(DataError, match=sentence):
        (data / "val.tsv").write_text(line(7, **changes) + "\n")
        list(task_of(data).examples())


def test_a_file_without_sizes(data):
    rows = [
        "\t".join(cell for place, cell in enumerate(line(image).split("\t")) if place not in (1, 2)) for image in (7, 8)
    ]
    (data / "val.tsv").write_text("\n".join(rows) + "\n")
    with pytest.raises(DataError, match=r"Line 1 of .*has 8 columns, not 10 .*height and width.*\(2 damaged rows"):
        list(task_of(data).examples())


def test_a_header_names_the_columns(data):
    names = "image_id\timage_w\timage_h\tnum_boxes\tboxes\tfeatures"
    feats, boxes = regions(7)
    row = "\t".join(["7", "200", "100", "3", encoded(boxes), encoded(feats)])
    (data / "val.tsv").write_text(f"{names}\n{row}\n")
    [example] = task_of(data).examples()
    np.testing.assert_array_equal(example.arrays["visual_feats"], feats)


@MODELS
def test_what_does_not_fit_the_model(data, make):
    with pytest.raises(DataError, match=r"takes regions of 8 numbers but those of .*val.tsv have 4"):
        evaluate(make(width=8), task_of(data), TOKENIZER)
    with pytest.raises(DataError, match=r"has 9 answers but .*label2ans.json has 6"):
        evaluate(make(answers=9), task_of(data), TOKENIZER)


def test_lists_of_answers(data):
    (data / "numbers.json").write_text(json.dumps({"yes": 1, "no": 0}))
    assert read_answers(data / "numbers.json") == ["no", "yes"]
    (data / "lines.txt").write_text("\nyes\nno\n")
    assert read_answers(data / "lines.txt") == ["", "yes", "no"]
    for name, content, sentence in (
        ("gap.json", {"yes": 1, "no": 3}, "must number its answers from 0 to 1"),
        ("twice.json", ["yes", "no", "yes"], "'yes' twice, at 0 and at 2"),
        ("none.json", [], "has no answers"),
        ("other.json", "yes", "is no list of answers"),
    ):
        (data / name).write_text(json.dumps(content))
        with pytest.raises(DataError, match=sentence):
            read_answers(data / name)


def test_what_vqa_refuses(data):
    with pytest.raises(DataError, match="needs features of image regions"):
        list(load_task("vqa", data=str(data)).examples())
    with pytest.raises(DataError, match="no questions of the split 'train'"):
        list(task_of(data, split="train").examples())
    with pytest.raises(DataError, match=r"There is no file .*nowhere.tsv"):
        list(task_of(data, features=str(data / "nowhere.tsv")).examples())
    (data / "val.tsv").write_text(line(9) + "\n")
    with pytest.raises(DataError, match="None of the 3 questions is about an image"):
        list(task_of(data).examples())
    (data / "v2_mscoco_val2014_annotations.json").write_text(json.dumps({"annotations": [{"question_id": 1}]}))
    with pytest.raises(DataError, match=r"Entry 0 of .*annotations.json cannot be used \(no 'answers'\)"):
        list(task_of(data).examples())
    with pytest.raises(DataError, match="needs the list of answers"):
        list(load_task("vqa").examples())


def test_questions_without_answers_are_measured_but_not_scored(data):
    (data / "v2_mscoco_val2014_annotations.json").unlink()
    task = task_of(data)
    assert len(list(task.feed(lxmert(), TOKENIZER))) == 1
    with pytest.raises(DataError, match="2 of the 2 questions of validation have no answers"):
        evaluate(lxmert(), task, TOKENIZER)


def test_pictures(data, caplog):
    from PIL import Image

    folder = data / "images"
    folder.mkdir()
    Image.fromarray(np.full((100, 200, 3), 7, np.uint8)).save(folder / "COCO_val2014_000000000007.png")
    (folder / "8.jpg").write_bytes(b"no image")
    task = task_of(data, images=str(folder))
    picture = task.picture(0)
    assert picture.image.shape == (100, 200, 3)
    np.testing.assert_array_equal(picture.boxes, regions(7)[1])
    assert picture.answers == ("red", "blue")
    with pytest.raises(DataError, match=r"8.jpg is no readable image"):
        task.picture(1)
    with pytest.raises(DataError, match="no example -1"):
        task.picture(-1)
    explainer, examples = Explainer(lxmert()), Examples(task, lxmert(), TOKENIZER)
    with caplog.at_level(logging.WARNING):
        charts = explain_examples(explainer, examples, [1, 0], (0,), data / "drawn")
    assert [chart.name for chart in charts] == ["example-0"]
    assert "Example 1 is left out" in caplog.text
    assert "8.jpg is no readable image" in caplog.text
    with pytest.raises(DataError, match=r"8.jpg is no readable image"):
        explain_examples(explainer, examples, [1], (0,), data / "drawn")


def test_the_fingerprint_covers_the_features_and_a_task_can_be_pickled(data):
    task = task_of(data)
    before = task.fingerprint()
    assert pickle.loads(pickle.dumps(task)).fingerprint() == before
    (data / "val.tsv").write_text("\n".join([line(7), line(8, features=encoded(np.ones((5, 4))))]) + "\n")
    assert task_of(data).fingerprint() != before
    assert dataclasses.replace(task).fingerprint() != before


@MODELS
def test_models_are_loaded_with_their_head(data, make, tmp_path):
    """From a folder, and from the cache of the hub under their published names, with the tokenizer they lack there."""
    folder = tmp_path / "model"
    make().save_pretrained(folder)
    assert saved_kind(folder) == "visual-question-answering"
    model = task_of(data).load_model(str(folder))
    assert type(model) is type(make())
    bare = make().base_model
    bare.save_pretrained(tmp_path / "bare")
    with pytest.raises(ArtefactError, match="no trained visual-question-answering head"):
        task_of(data).load_model(str(tmp_path / "bare"))
    fresh = task_of(data).load_model(str(tmp_path / "bare"), new_head=True)
    task_of(data).check(fresh)
    name, tokens = {
        lxmert: ("unc-nlp/lxmert-vqa-uncased", "unc-nlp/lxmert-base-uncased"),
        visualbert: ("uclanlp/visualbert-vqa", "google-bert/bert-base-uncased"),
    }[make]
    for repository, files in ((name, make()), (tokens, TOKENIZER)):
        cached = tmp_path / "cache" / f"models--{repository.replace('/', '--')}"
        (cached / "refs").mkdir(parents=True)
        (cached / "refs" / "main").write_text("0" * 40)
        files.save_pretrained(cached / "snapshots" / ("0" * 40))
    options = {"cache_dir": str(tmp_path / "cache"), "local_files_only": True}
    assert type(load_model(name, "visual-question-answering", **options)) is type(make())
    # A tokenizer without a configuration beside it is not found in the cache, which looks for config.json.
    (tmp_path / "cache" / f"models--{tokens.replace('/', '--')}" / "snapshots" / ("0" * 40) / "config.json").write_text(
        json.dumps({"model_type": "bert"})
    )
    assert len(load_tokenizer(name, **options)) == len(TOKENIZER)


def test_keys_of_images():
    assert image_key("COCO_val2014_000000000042") == image_key("000042") == image_key(42) == "42"
    assert image_key("my_photo_7") == "my_photo_7"
    assert image_key("0") == "0"


def test_the_real_regions_and_questions(shared_data):
    """All ten rows of COCO regions are read, and the six questions of VQA v2 about them are scored."""
    path = shared_data / "coco_region_features" / "train2014_obj36.tsv.gz"
    with gzip.open(path, "rt") as stream:
        images = {image_key(row.split("\t", 1)[0]) for row in stream}
    file = RegionFile(path, images)
    assert len(file.images) == 10
    assert file.damaged == []
    for image in file.images:
        found = file.read(image)
        assert found.features.shape == (36, 2048)
        assert found.features.min() >= 0  # after a rectified linear unit
        assert (found.boxes[:, 2:] > found.boxes[:, :2]).all()
        assert found.boxes[:, 2].max() <= found.width
        assert found.boxes[:, 3].max() <= found.height
    folders = {"data": str(shared_data / "vqa_v2_subset"), "images": str(shared_data / "coco_images")}
    task = load_task("vqa", **folders, features=str(path), split="test")
    assert len(task.answer_list) == 3129
    model = lxmert(width=2048, answers=3129)
    result = evaluate(model, task, TOKENIZER)
    assert result.outputs.shape == (1, 3129)
    [example] = task.examples()
    assert example.texts == ("Is this person color coordinated?",)
    assert {task.answer_list[number]: score for number, score in example.answers[0]} == pytest.approx(
        {"yes": 1, "no": 0.3}
    )
    assert task.picture(0).image.shape[2] == 3


@pytest.mark.slow
def test_all_real_questions_about_images_with_regions(shared_data):
    """Six questions of the subset are about five of the ten images."""
    path = shared_data / "coco_region_features" / "train2014_obj36.tsv.gz"
    task = load_task("vqa", data=str(shared_data / "vqa_v2_subset"), features=str(path), split="all")
    for make in (lxmert, visualbert):
        result = evaluate(make(width=2048, answers=3129), task, TOKENIZER)
        assert result.outputs.shape == (6, 3129)
    assert len({example.answers[2] for example in task.examples()}) == 5
