"""The heads study on every kind of task, and what it says about single changes of heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attrim
from attrim.attention.context import attach
from attrim.core.site import Select
from attrim.evaluation import Prepared
from attrim.models.tiny import tiny_tokenizer
from attrim.studies.heads.findings import HeadsFindings
from attrim.studies.heads.prediction import (
    MeanOutput,
    Pair,
    choose_pairs,
    mean_outputs,
    measure_rises,
    predicted_rises,
    rank_interval,
)
from attrim.studies.heads.scoring import Scoring, labelled_batches, score_task
from attrim.tasks.base import load_task
from one_letter import write_sst2
from squads import LONG, squad
from tagged import FILE

QUICK: dict[str, Any] = {"scores": ("gradient-attention", "random"), "steps": (0.5,), "seeds": (0,), "pairs": 6}


def run(model: str, folder: Path, bench: dict[str, Any], **asked: Any) -> HeadsFindings:
    shared = {"output": folder / "runs", "quiet": True}
    found = attrim.Heads(**{**QUICK, **asked}).run(attrim.Bench(model, **{**shared, **bench}))
    assert isinstance(found, HeadsFindings)
    assert attrim.findings(found.folder) == found
    return found


def write_squad(folder: Path) -> str:
    paragraphs = [(LONG, [("Who?", ["Ada Lovelace"]), ("And?", ["fox"])]), ("Ada was born.", [("Who?", ["Ada"])])]
    squad(folder, paragraphs)
    return squad(folder, [("The fox is red.", [("Colour?", ["red"])])], "train-v1.1.json")


def write_tags(folder: Path) -> str:
    (folder / "eng.testa").write_text(FILE)
    (folder / "eng.train").write_text("-DOCSTART- -X- O O\n\n" + FILE.replace("Peter", "Mary").replace("EU", "UN"))
    return str(folder)


def write_texts(folder: Path) -> str:
    (folder / "dev.txt").write_text("the fox is red and the sky is blue. " * 6)
    (folder / "train.txt").write_text("a bird sings in the tree, and the sun is up. " * 8)
    return str(folder / "dev.txt")


TASKS = [
    pytest.param("tiny-bert", "squad", write_squad,
                 {"max_length": 100, "option": ("stride=20", "max_question_length=8")}, (), id="squad"),
    pytest.param("tiny-bert", "tokens/ner", write_tags, {}, (), id="tokens"),
    pytest.param("tiny-gpt2", "causal-lm", write_texts, {"max_length": 24}, "data={}/train.txt", id="gpt2"),
    pytest.param("tiny-llama", "causal-lm", write_texts, {"max_length": 24}, "data={}/train.txt", id="llama"),
    pytest.param("tiny-bert", "masked-lm", write_texts, {"max_length": 24, "option": ("unit=line",)},
                 "data={}/train.txt", id="masked-lm"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "task", "write", "options", "other"), TASKS)
def test_any_task(model: str, task: str, write: Any, options: dict[str, Any], other: Any, tmp_path: Path) -> None:
    data = write(tmp_path)
    scoring = (other.format(tmp_path),) if other else ()
    bench = {"task": task, "data": data, "batch_size": 4, **options}
    found = run(model, tmp_path, bench, score_option=scoring, parts=("prune", "correlation"))
    assert found.pruned is not None
    assert found.predicted is not None
    assert found.ground.examples > 1 or task == "masked-lm"
    assert len(found.predicted.pairs) == 6
    for curve in found.pruned.curves:
        assert [step.removed for step in curve.steps] == [0, 4]
    if task == "causal-lm":
        assert found.pruned.smaller_is_better
        assert found.pruned.right is None


def test_windows_of_a_paragraph_share_the_mask_of_their_question(tmp_path: Path) -> None:
    data = write_squad(tmp_path)
    task = load_task("squad", data=data, max_length=100, stride=20, max_question_length=8, batch_size=4)
    prepared = Prepared(task.load_model("tiny-bert"), task, tiny_tokenizer(), count_zeros=False)
    rows = [batch.index for batch in prepared.batches]
    assert len(np.concatenate(rows)) > 3
    scores = score_task(prepared, attrim.GradientAttention(scope="example"))
    assert {len(values) for values in scores.values.values()} == {3}
    name = scores.sites[0].name
    total = torch.zeros(3, 4, dtype=torch.float64)
    for batch in prepared.batches:
        for number, place in enumerate(batch.index):
            one = {key: tensor[number : number + 1] for key, tensor in batch.inputs.items()}
            total[place] += attrim.GradientAttention(scope="example")(prepared.model, [one]).values[name][0]
    torch.testing.assert_close(scores.values[name], total, rtol=1e-4, atol=1e-7)


def test_images(tmp_path: Path) -> None:
    from PIL import Image
    from transformers import ViTConfig, ViTForImageClassification

    generator = np.random.default_rng(0)
    for split in ("train", "val"):
        for place in range(8):
            folder = tmp_path / "photos" / split / ("bright", "dark")[place % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(folder / f"{place}.png")
    config = ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=16, image_size=8,
                       patch_size=4, id2label={0: "bright", 1: "dark"}, label2id={"bright": 0, "dark": 1})  # fmt: skip
    ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    bench = {"task": "images", "data": str(tmp_path / "photos"), "batch_size": 3}
    found = run(
        str(tmp_path / "vit"),
        tmp_path,
        bench,
        scores=("gradient-attention", "lrp", "random"),
        parts=("prune", "correlation"),
    )
    assert found.pruned is not None
    assert found.pruned.units == 8
    assert found.ground.examples == 8
    assert found.ground.scored_examples == 8


@pytest.mark.slow
@pytest.mark.parametrize("model", ["shapes-lxmert", "shapes-visualbert"])
def test_questions_about_images(model: str, tmp_path: Path) -> None:
    bench = {"task": "shapes", "limit": 12}
    found = run(model, tmp_path, bench, score_examples=8, parts=("prune", "correlation"), scores=("lrp", "random"))
    assert found.pruned is not None
    assert found.pruned.metric == "soft-accuracy"
    assert len(found.ground.idle) == (2 if model == "shapes-lxmert" else 0)
    assert found.pruned.units == (40 if model == "shapes-lxmert" else 16)


# Single changes


@pytest.fixture
def scoring(tmp_path: Path) -> Any:
    glue = write_sst2(tmp_path / "glue", train=24, dev=12)
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(1)
    config = BertConfig(vocab_size=300, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=24, num_labels=2, initializer_range=0.4)  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    bench = attrim.Bench(model, tokenizer=tiny_tokenizer(), task="glue/sst2", data=str(glue), quiet=True, batch_size=5)
    return Scoring(bench, attrim.Heads())


def mean_loss(scoring: Any, *edits: Any) -> float:
    total = 0.0
    with torch.no_grad(), attach(scoring.model, edits):
        for batch in labelled_batches(scoring.evaluated, labelled=True):
            total += float(scoring.model(**batch).loss) * len(batch["labels"])
    return total / scoring.examples


def test_the_rise_of_the_loss_is_that_of_the_changed_model(scoring: Any) -> None:
    means = mean_outputs(scoring.scored)
    cells = torch.ones(1, 64, 64).triu(2).bool() | torch.ones(1, 64, 64).tril(-2).bool()
    edits = {"removed": attrim.Gate(0.0, at="output"), "mean": MeanOutput(means), "window": attrim.Mask(cells)}
    names = [site.name for site in scoring.sites]
    pairs = [Pair(name, head, change) for name in names for head in (0, 3) for change in edits]  # type: ignore[arg-type]
    found = measure_rises(scoring.evaluated, pairs, edits)  # type: ignore[arg-type]
    unchanged = mean_loss(scoring)
    import dataclasses

    for pair, (rise, moved, loss) in zip(pairs, found, strict=True):
        edit = dataclasses.replace(edits[pair.change], select=Select(heads=[(pair.site, pair.head)]))
        assert rise == pytest.approx(mean_loss(scoring, edit) - unchanged, abs=2e-6)
        assert moved > 0
        assert loss == pytest.approx(unchanged, abs=1e-6)


def test_means_are_those_of_real_tokens(scoring: Any) -> None:
    means = mean_outputs(scoring.scored)
    site = scoring.sites[1]
    outputs = []
    layer = scoring.model.bert.encoder.layer[1].attention.output.dense
    handle = layer.register_forward_pre_hook(lambda module, args: outputs.append(args[0]))
    with torch.no_grad():
        for batch in scoring.scored.batches:
            for number in range(len(batch.index)):
                length = int(batch.inputs["attention_mask"][number].sum())
                scoring.model(**{key: tensor[number : number + 1, :length] for key, tensor in batch.inputs.items()})
    handle.remove()
    expected = torch.cat([each[0] for each in outputs]).mean(0).reshape(4, 4)
    torch.testing.assert_close(means[site.name], expected, rtol=1e-4, atol=1e-5)


def test_predictions_are_those_of_the_scores(scoring: Any) -> None:
    found = predicted_rises(scoring.scored, attrim.Gate(0.0, at="output"), Select())
    batches = lambda: labelled_batches(scoring.scored, labelled=True)
    scores = {
        "fisher": attrim.Fisher(),
        "|gradient|": attrim.Gradient(towards="nothing"),
        "gradient": attrim.Gradient(towards="nothing", signed=True),
    }
    for name, score in scores.items():
        expected = score(scoring.model, batches()).values
        for site, values in expected.items():
            torch.testing.assert_close(found[name][site], values, rtol=1e-4, atol=1e-8)


def test_pairs_are_shared_among_the_changes(scoring: Any) -> None:
    study = attrim.Heads(pairs=12)
    pairs = choose_pairs(scoring.chosen, study)
    assert len({(pair.site, pair.head, pair.change) for pair in pairs}) == 12
    assert [sum(pair.change == change for pair in pairs) for change in study.changes] == [4, 4, 4]
    assert choose_pairs(scoring.chosen, study) == pairs
    assert len(choose_pairs(scoring.chosen, attrim.Heads(pairs=1000))) == 24


def test_ranks_that_agree_correlate() -> None:
    numbers = np.arange(30.0)
    assert rank_interval(numbers, numbers**3).value == pytest.approx(1)
    assert rank_interval(numbers, -numbers).low == pytest.approx(-1)
    drawn = rank_interval(numbers, np.random.default_rng(0).random(30))
    assert drawn.low < 0 < drawn.high
