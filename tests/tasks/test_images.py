"""The task images: folders, CIFAR's binary files and npz, for models with a classifier and for CLIP."""

from __future__ import annotations

import logging
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    CLIPConfig,
    CLIPForImageClassification,
    CLIPImageProcessor,
    CLIPModel,
    CLIPProcessor,
    ViTConfig,
    ViTForImageClassification,
)

import attrim
from attrim.cli import main
from attrim.errors import DataError
from attrim.evaluation import evaluate
from attrim.models.tiny import tiny_tokenizer
from attrim.tasks import load_task

NAMES = ("bright", "dark")
SIDE = 8
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
PATCHES = {"image_size": SIDE, "patch_size": 4}


def pictures(number, seed=0):
    """Bright and dark pictures in turn, ``[N, 8, 8, 3]``, and their labels."""
    generator = np.random.default_rng(seed)
    labels = np.arange(number) % 2
    light = np.where(labels == 0, 190, 60)[:, None, None, None]
    return np.clip(generator.normal(light, 20, size=(number, SIDE, SIDE, 3)), 0, 255).astype(np.uint8), labels


def vit(**changes):
    names = {"id2label": dict(enumerate(NAMES)), "label2id": {name: place for place, name in enumerate(NAMES)}}
    return ViTForImageClassification(ViTConfig(**SMALL, **PATCHES, **{**names, **changes})).eval()


@pytest.fixture
def folder(tmp_path):
    """``train`` and ``val`` with a folder for each class."""
    for split, seed in (("train", 1), ("val", 2)):
        images, labels = pictures(20, seed)
        for place, (image, label) in enumerate(zip(images, labels, strict=True)):
            (tmp_path / "photos" / split / NAMES[label]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(tmp_path / "photos" / split / NAMES[label] / f"{place}.png")
    return tmp_path / "photos"


@pytest.fixture
def saved(tmp_path):
    vit().save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


def test_folders(folder, saved):
    task = load_task("images", data=str(folder), batch_size=6)
    assert task.labels == NAMES
    processor = task.load_tokenizer(str(saved))
    batches = list(task.batches(processor))
    assert [batch.inputs["pixel_values"].shape for batch in batches] == [(6, 3, 8, 8)] * 3 + [(2, 3, 8, 8)]
    for batch in batches:  # bright ones are class 0
        light = batch.inputs["pixel_values"].mean((1, 2, 3))
        np.testing.assert_array_equal(batch.labels, (light < 0).double().numpy())
    assert len(list(load_task("images", data=str(folder / "train")).examples())) == 20
    picture = task.picture(0)
    assert picture.image.shape == (8, 8, 3)
    assert picture.answers == ("bright",)
    assert pickle.loads(pickle.dumps(task)).fingerprint() == task.fingerprint()
    assert load_task("images", data=str(folder), split="train").fingerprint() != task.fingerprint()


def test_three_formats_give_the_same_inputs(tmp_path, saved):
    images = np.random.default_rng(0).integers(0, 256, size=(4, 32, 32, 3), dtype=np.uint8)
    labels = np.array([0, 1, 1, 0], dtype=np.uint8)
    binary = tmp_path / "cifar"
    binary.mkdir()
    records = np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(4, -1)], 1)
    records.tofile(binary / "test_batch.bin")
    np.concatenate([labels[:, None] * 0 + 9, records], 1)[:3].tofile(binary / "train.bin")
    (binary / "batches.meta.txt").write_text("bright\ndark\n\n")
    np.savez(tmp_path / "images.npz", images=images, labels=labels, names=np.array(NAMES))
    for place, (image, label) in enumerate(zip(images, labels, strict=True)):
        (tmp_path / "classes" / NAMES[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "classes" / NAMES[label] / f"{place}.png")
    found = {}
    for name in ("cifar", "images.npz", "classes"):
        task = load_task("images", data=str(tmp_path / name))
        [batch] = task.batches(task.load_tokenizer(str(saved)))
        order = np.argsort(batch.labels, kind="stable")
        found[name] = batch.inputs["pixel_values"][order]
        assert task.labels == NAMES
    torch.testing.assert_close(found["cifar"], found["images.npz"])
    torch.testing.assert_close(found["cifar"], found["classes"])
    hundred = load_task("images", data=str(binary), split="train")  # a coarse label before the fine one
    assert [example.label for example in hundred.examples()] == [0, 1, 1]


def test_pickles_are_not_read(tmp_path):
    """CIFAR's Python version could run any code."""
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({"data": 1}))
    with pytest.raises(DataError, match=r"could run any code; fetch the binary version"):
        load_task("images", data=str(tmp_path))
    np.savez(tmp_path / "objects.npz", images=np.array([{}], dtype=object), labels=np.zeros(1, int))
    with pytest.raises(DataError, match="not a readable npz file"):
        load_task("images", data=str(tmp_path / "objects.npz"))


def test_an_image_that_cannot_be_read_is_left_out_and_named(folder, caplog):
    broken = folder / "val" / "dark" / "1.png"
    broken.write_bytes(broken.read_bytes()[:40])
    task = load_task("images", data=str(folder))
    with caplog.at_level(logging.WARNING):
        assert len(list(task.examples())) == 19
    assert "1 damaged image left out" in caplog.text
    assert str(broken) in caplog.text
    for path in (folder / "val").rglob("*.png"):
        path.write_bytes(b"nothing")
    with pytest.raises(DataError, match="is no readable image"):
        list(load_task("images", data=str(folder)).examples())


def test_what_images_refuses(tmp_path, folder):
    with pytest.raises(DataError, match="reads local files"):
        load_task("images")
    with pytest.raises(DataError, match="There is no file or folder"):
        load_task("images", data=str(tmp_path / "nowhere"))
    (tmp_path / "short.bin").write_bytes(b"x" * 4000)
    with pytest.raises(DataError, match=r"short.bin has 4000 bytes, which are neither"):
        load_task("images", data=str(tmp_path / "short.bin"))
    with pytest.raises(DataError, match="no folders with images"):
        load_task("images", data=str(folder / "val" / "dark"))
    np.savez(tmp_path / "floats.npz", images=np.zeros((2, 4, 4, 3)), labels=np.zeros(2, int))
    with pytest.raises(DataError, match=r"are float64 \[2, 4, 4, 3\]; uint8"):
        load_task("images", data=str(tmp_path / "floats.npz"))
    with pytest.raises(DataError, match="has the labels 0 to 1, but 1 classes have names"):
        list(load_task("images", data=str(folder), labels=("one",)).examples())
    with pytest.raises(DataError, match="labels of ViTForImageClassification"):
        load_task("images", data=str(folder)).check(vit(id2label={0: "cat", 1: "dog"}, label2id={"cat": 0, "dog": 1}))


def test_a_model_is_trained_and_measured_on_images(folder, saved, tmp_path, capsys):
    """From the command line, with a run that resumes; a bright picture is told from a dark one."""
    options = ["--task", "images", "--data", str(folder), "--output", str(tmp_path / "runs"), "--quiet"]
    recipe = ["--steps", "30", "--learning-rate", "3e-3", "--batch-size", "10"]
    assert main(["train", str(saved), *options, *recipe, "--save", str(tmp_path / "trained")]) == 0
    assert main(["evaluate", str(tmp_path / "trained"), *options, "--edit", "gate:0.5"]) == 0
    assert "100.00" in capsys.readouterr().out
    measured = ["--output", str(tmp_path / "stats"), "--limit", "6", "--stats", "moments", "--batch-size", "4"]
    assert main(["measure", str(tmp_path / "trained"), "--task", "images", "--data", str(folder), *measured]) == 0
    assert main(["sites", str(tmp_path / "trained")]) == 0


@pytest.fixture
def clip(tmp_path):
    """A small CLIP with its tokenizer and image processor, in a folder."""
    tokenizer = tiny_tokenizer()
    text = {
        **SMALL,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 64,
        "eos_token_id": tokenizer.eos_token_id,
    }
    config = CLIPConfig(text_config=text, vision_config={**SMALL, **PATCHES}, projection_dim=12)
    CLIPModel(config).eval().save_pretrained(tmp_path / "clip")
    images = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    CLIPProcessor(images, tokenizer).save_pretrained(tmp_path / "clip")
    return tmp_path / "clip"


def test_clip_tells_classes_by_their_names(folder, clip):
    task = load_task("images/zero-shot", data=str(folder), batch_size=8)
    model, processor = task.load_model(str(clip)), task.load_tokenizer(str(clip))
    result = evaluate(model, task, processor)
    assert result.outputs.shape == (20, 2)
    images = np.stack([example.arrays["image"] for example in task.examples()])
    texts = ["a photo of a bright.", "a photo of a dark."]
    inputs = processor(images=list(images), text=texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        expected = model(**inputs).logits_per_image
    torch.testing.assert_close(torch.tensor(result.outputs), expected, atol=1e-4, rtol=1e-4)
    stats = attrim.measure(model, task.feed(model, processor), attrim.Moments(), progress=False)
    assert stats["Moments"]
    with pytest.raises(DataError, match="trains nothing"):
        next(task.train_batches(processor, model))
    with pytest.raises(DataError, match="does not compare images with texts"):
        task.check(vit())
    with pytest.raises(DataError, match="must have"):
        load_task("images/zero-shot", data=str(folder), prompt="a photo")


def test_the_vision_tower_of_clip_with_a_classifier(folder, clip):
    task = load_task("images", data=str(folder))
    model = task.load_model(str(clip), new_head=True)
    assert isinstance(model, CLIPForImageClassification)
    result = evaluate(model, task, task.load_tokenizer(str(clip)))
    assert result.outputs.shape == (20, 2)
