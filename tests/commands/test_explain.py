"""``attrim explain``: pictures, numbers and the quality of maps from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import transformers
from PIL import Image

from attrim.cli import main
from attrim.maps.quality import Examiner
from attrim.models.tiny import tiny_tokenizer
from one_letter import write_sst2

SHAPES = ["explain", "shapes-lxmert-trained", "--task", "shapes"]


def test_examples_of_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    assert main([*SHAPES, "--examples", "3", "0", "--levels", "0", "0.9", "--output", str(output)]) == 0
    text = capsys.readouterr().out
    assert "can you see a green triangle ?" in text
    assert "90 % of heads out:" in text
    assert "relevant regions: 4" in text
    names = {path.name for path in output.iterdir()}
    assert {"example-0.png", "example-0.svg", "example-3.png", "explained.html", "explained.json"} <= names
    found = json.loads((output / "explained.json").read_text())
    assert [example["name"] for example in found["examples"]] == ["example-3", "example-0"]
    assert found["examples"][0]["explained"] == "yes"
    assert found["maps"]["mask_in"] == "aggregation"
    assert [level["label"] for level in found["examples"][0]["levels"]] == ["all heads", "90 % of heads out"]


def test_quality_is_measured_and_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    words = [*SHAPES, "--quality", "--limit", "6", "--batch-size", "3", "--levels", "0", "0.9", "--json"]
    words += ["--output", str(tmp_path / "out"), "--formats", "png"]
    measured: list[int] = []
    whole = Examiner.__call__

    def stopping(self, batch, index, relevant=None):
        if len(measured) == 1:
            measured.append(0)
            raise KeyboardInterrupt
        measured.append(len(index))
        return whole(self, batch, index, relevant)

    monkeypatch.setattr(Examiner, "__call__", stopping)
    assert main(words) == 130
    assert main(words) == 0
    assert measured == [3, 0, 3]  # the first batch is not measured again
    found = json.loads(capsys.readouterr().out)["quality"]
    assert found["examples"] == 6
    assert found["part"] == "regions"
    assert 0 <= found["levels"][0]["pointing"]["value"] <= 1
    assert (tmp_path / "out" / "quality.csv").read_text().startswith("heads left out,")
    assert (tmp_path / "out" / "deletion.png").is_file()
    assert json.loads((tmp_path / "out" / "quality.json").read_text())["levels"] == found["levels"]


def test_texts_and_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "tiny-bert", "--kind", "question-answering", "--text", "who", "--pair", "anna", "--json"]
    assert main([*words, "--levels", "0"]) == 0
    (example,) = json.loads(capsys.readouterr().out)["examples"]
    assert example["texts"][0]["tokens"] == [*"who", *"anna"]
    assert len(example["levels"][0]["texts"][0]) == 7


def test_the_next_word_of_a_causal_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "tiny-gpt2", "--kind", "causal-lm", "--text", "ab", "abc", "--levels", "0", "--json"]
    assert main(words) == 0
    first, second = json.loads(capsys.readouterr().out)["examples"]
    assert first["texts"][0]["tokens"] == ["a", "b"]
    assert len(second["levels"][0]["texts"][0]) == 3
    assert first["levels"][0]["answer"] == first["explained"] != ""


def test_labels_of_a_classification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    glue = write_sst2(tmp_path / "glue", train=8, dev=8)
    words = ["explain", "tiny-bert", "--task", "glue/sst2", "--data", str(glue), "--target", "label", "--examples", "1"]
    assert main([*words, "--json", "--mask-in", "model", "--start-layer", "1"]) == 0
    (example,) = json.loads(capsys.readouterr().out)["examples"]
    assert example["facts"] == [f"label: {example['explained']}"]
    assert {level["answer"] for level in example["levels"]} <= {"negative", "positive"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("explain tiny-bert", "either --task, or --text"),
        ("explain tiny-bert --text a --task shapes", "either --task, or --text"),
        ("explain tiny-bert --task shapes --pair a", "--pair gives second texts"),
        ("explain tiny-bert --text a --quality", "are about a --task"),
        ("explain tiny-bert --text a --part tokens", "are about --quality"),
        ("explain tiny-bert --text a --select-layers 0", "--select-..."),
        ("explain tiny-bert --text a", "gives no logits"),
        ("explain tiny-bert --text a --kind sequence-classification --target best", "not a whole number"),
        ("explain tiny-bert --text a --kind sequence-classification --target 7", "is not an answer"),
        ("explain tiny-bert --text a --kind sequence-classification --levels 40", "from 0 to 1"),
        ("explain tiny-bert --text a --kind sequence-classification --as-coded", "attend to each other"),
        ("explain tiny-bert --text a b --pair c --kind sequence-classification", "2 texts and 1 second texts"),
        ("explain shapes-lxmert-trained --task shapes --limit 4 --examples 4", "no example 4"),
        ("explain shapes-lxmert-trained --task shapes --start-layer 9", "is not a layer"),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


NAMES = ("bright", "dark")
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with one image of each class, wider than high."""
    generator = np.random.default_rng(0)
    for name, light in zip(NAMES, (190, 60), strict=True):
        (tmp_path / "photos" / name).mkdir(parents=True)
        image = np.clip(generator.normal(light, 20, size=(16, 24, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(image).save(tmp_path / "photos" / name / "0.png")
    return tmp_path / "photos"


def test_patches_of_images(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"id2label": dict(enumerate(NAMES)), "label2id": {name: place for place, name in enumerate(NAMES)}}
    config = transformers.ViTConfig(**SMALL, image_size=8, patch_size=4, **names)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    words = [
        "explain",
        str(tmp_path / "vit"),
        "--task",
        "images",
        "--data",
        str(photos),
        "--output",
        str(tmp_path / "out"),
    ]
    assert main([*words, "--examples", "1", "--quality", "--levels", "0", "0.5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (example,) = found["examples"]
    assert example["grid"] == [2, 2]
    assert (example["width"], example["height"]) == (24, 16)
    assert example["facts"] == ["label: dark"]
    assert found["quality"]["part"] == "patches"
    assert found["quality"]["levels"][0]["pointing"] is None
    assert (tmp_path / "out" / "example-1.png").is_file()


@pytest.mark.parametrize(("model", "kind"), [("shapes-lxmert-trained", "regions"), ("vit", "patches")])
def test_what_is_relevant_in_an_image_is_listed_without_a_folder_to_draw_to(
    model: str, kind: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--task", "shapes"]
    if model == "vit":
        names = {"id2label": dict(enumerate(NAMES)), "label2id": {name: place for place, name in enumerate(NAMES)}}
        config = transformers.ViTConfig(**SMALL, image_size=8, patch_size=4, **names)
        transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
        model, words = str(tmp_path / "vit"), ["--task", "images", "--data", str(photos)]
    before = sorted(tmp_path.rglob("*"))
    assert main(["explain", model, *words, "--levels", "0", "--limit", "2"]) == 0
    assert f"{kind} with the most relevance: " in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before


def test_classes_of_images_by_their_names(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CLIP: every class is a text, and the image's tower is explained."""
    tokenizer = tiny_tokenizer()
    texts = {
        **SMALL,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 64,
        "eos_token_id": tokenizer.sep_token_id,
    }
    config = transformers.CLIPConfig(
        text_config=texts, vision_config={**SMALL, "image_size": 8, "patch_size": 4}, projection_dim=8
    )
    transformers.CLIPModel(config).save_pretrained(tmp_path / "clip")
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    transformers.CLIPProcessor(images, tokenizer).save_pretrained(tmp_path / "clip")
    words = ["explain", str(tmp_path / "clip"), "--task", "images/zero-shot", "--data", str(photos)]
    assert main([*words, "--examples", "0", "1", "--json", "--output", str(tmp_path / "out"), "--formats", "png"]) == 0
    first, second = json.loads(capsys.readouterr().out)["examples"]
    assert first["explained"] in NAMES
    assert "texts" not in first
    assert first["grid"] == second["grid"] == [2, 2]
    assert (first["width"], first["height"]) == (16, 16)  # the middle, which is what the model sees


@pytest.mark.parametrize(
    ("size", "crop", "seen"),
    [
        ({"shortest_edge": 8}, {"height": 4, "width": 4}, (8, 8)),
        ({"height": 16, "width": 16}, {"height": 8, "width": 8}, (12, 8)),
        ({"shortest_edge": 8}, {"height": 99, "width": 99}, (24, 16)),
    ],
    ids=["smaller than the shorter side", "of a squeezed image", "larger than the image"],
)
def test_an_image_is_shown_as_far_as_the_model_sees_it(
    size: dict[str, int], crop: dict[str, int], seen: tuple[int, int],
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A classifier on CLIP's vision tower, which reads the mean of the patches."""
    names = {"id2label": dict(enumerate(NAMES)), "label2id": {name: place for place, name in enumerate(NAMES)}}
    vision = {**SMALL, "image_size": crop["height"], "patch_size": crop["height"] // 2}
    config = transformers.CLIPConfig(vision_config=vision, text_config=SMALL, projection_dim=8, **names)
    transformers.CLIPForImageClassification(config).save_pretrained(tmp_path / "clip")
    transformers.CLIPImageProcessor(size=size, crop_size=crop).save_pretrained(tmp_path / "clip")
    words = ["explain", str(tmp_path / "clip"), "--task", "images", "--data", str(photos)]
    assert main([*words, "--examples", "0", "--json", "--output", str(tmp_path / "out"), "--formats", "png"]) == 0
    (example,) = json.loads(capsys.readouterr().out)["examples"]
    assert (example["width"], example["height"]) == seen
    assert example["grid"] == [2, 2]
