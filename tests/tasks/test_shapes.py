"""The task shapes: a world that is as it says, the same every time, and models that can be trained on it."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch

from attrim.errors import DataError, UnknownName
from attrim.evaluation import evaluate
from attrim.models.loading import load_model, load_tokenizer
from attrim.models.shape_models import ANSWERS, COLORS, SHAPE_MODELS, SHAPES, WORDS
from attrim.models.sources import SHIPPED
from attrim.tasks import load_task
from attrim.tasks.shapes import KINDS, MOST, PAINT, SIZE, make_world
from attrim.tasks.visual import soft_accuracy, soft_scores

WORLD = make_world("validation", 0)
TOKENIZER = load_tokenizer("shapes-lxmert")


@pytest.fixture(params=SHAPE_MODELS)
def model(request):
    return load_model(request.param, "visual-question-answering")


def test_soft_accuracy_is_that_of_the_official_script():
    """Oracle 7 of the specification, and the mean over the ten ways to leave one person out, counted one by one."""
    answers = ["red"] * 5 + ["blue"] * 3 + ["dark red", "crimson"]
    assert soft_scores(answers) == pytest.approx({"red": 1.0, "blue": 0.9, "dark red": 0.3, "crimson": 0.3})
    np.testing.assert_allclose(soft_accuracy(np.arange(5)), [0, 0.3, 0.6, 0.9, 1])
    for answer, score in soft_scores(answers).items():
        ways = [min(1, (answers[:left] + answers[left + 1 :]).count(answer) / 3) for left in range(10)]
        assert score == pytest.approx(np.mean(ways))
    assert soft_scores(["cat", "dog", "cow"]) == pytest.approx({"cat": 1.0, "dog": 0.9, "cow": 0.9})


def test_the_answers_are_what_is_to_be_seen():
    """Every answer and every relevant region is found again from the objects alone."""
    scenes = WORLD.scenes
    for place, text in enumerate(WORLD.texts):
        words = text.split()
        objects = [
            (COLORS[scenes.color[place, one]], SHAPES[scenes.shape[place, one]]) for one in range(scenes.number[place])
        ]
        colors, shapes = {*words} & {*COLORS}, {*words} & {*SHAPES}
        fitting = [one for one in objects if colors <= {one[0]} and shapes <= {one[1]}]
        expected = {
            "color": lambda fitting=fitting: fitting[0][0],
            "shape": lambda fitting=fitting: fitting[0][1],
            "existence": lambda fitting=fitting: "yes" if fitting else "no",
            "count": lambda fitting=fitting: str(len(fitting)),
        }[KINDS[WORLD.kind[place]]]()
        assert ANSWERS[WORLD.answer[place]] == expected, (text, objects)
        assert WORLD.relevant[place].sum() == len(fitting)
        assert {*words} <= {*WORDS}
    existence = WORLD.answer[WORLD.kind == KINDS.index("existence")]
    assert abs(np.mean(existence == ANSWERS.index("yes")) - 0.5) < 0.1


def test_relevant_regions_hold_their_objects():
    """The middle of a relevant region has the colour of the object that is asked for."""
    chosen = np.flatnonzero(WORLD.kind == KINDS.index("shape"))
    for place in chosen[:100]:
        [region] = np.flatnonzero(WORLD.relevant[place])
        x, y = (WORLD.boxes[place, region, :2] + WORLD.boxes[place, region, 2:]) // 2
        color = next(COLORS.index(word) for word in WORLD.texts[place].split() if word in COLORS)
        seen = WORLD.images[place, y, x].astype(float)
        assert np.abs(PAINT - seen).sum(1).argmin() == color
    assert WORLD.boxes.min() >= 0
    assert WORLD.boxes.max() <= SIZE
    assert (WORLD.boxes[..., 2:] > WORLD.boxes[..., :2]).all()


def test_objects_do_not_touch():
    scenes = WORLD.scenes
    for first in range(MOST):
        for second in range(first):
            gap = np.abs(scenes.center[:, first] - scenes.center[:, second]).max(1)
            reach = scenes.radius[:, first] + scenes.radius[:, second] + 1
            assert (gap > reach)[scenes.there[:, first] & scenes.there[:, second]].all()


def test_no_scene_is_in_two_splits_and_everything_is_the_same_again():
    keys = {split: {*make_world(split, 0).scenes.keys().tolist()} for split in ("validation", "test")}
    keys["train"] = {*make_world("train", 0).scenes.keys().tolist()}
    assert len(keys["train"]) == 12_000
    assert not keys["train"] & keys["validation"]
    assert not keys["train"] & keys["test"]
    assert not keys["validation"] & keys["test"]
    make_world.cache_clear()
    again = make_world("validation", 0)
    np.testing.assert_array_equal(again.images, WORLD.images)
    assert again.texts == WORLD.texts
    assert load_task("shapes").fingerprint() == load_task("shapes").fingerprint()
    assert load_task("shapes").fingerprint() != load_task("shapes", data_seed=1).fingerprint()


def test_the_fingerprint_covers_the_features():
    task = load_task("shapes", limit=3)
    before = task.fingerprint()
    examples = list(task.examples())
    feats = examples[1].arrays["visual_feats"].copy()
    feats[4, 7] += 1e-3
    changed = dataclasses.replace(examples[1], arrays={**examples[1].arrays, "visual_feats": feats})
    task.read = lambda: iter([examples[0], changed, examples[2]])
    assert task.fingerprint() != before


def test_a_batch(model):
    task = load_task("shapes", limit=20, batch_size=8)
    batch = next(task.batches(TOKENIZER))
    assert batch.inputs["visual_feats"].shape == (8, 10, 108)
    assert batch.inputs["visual_feats"].abs().max() <= 1
    assert batch.inputs["visual_pos"].shape == (8, 10, 4)
    assert batch.targets["scores"].shape == (8, len(ANSWERS))
    assert ((batch.targets["scores"] % 1) > 0).any()
    assert batch.targets["relevant"].dtype == torch.int64
    assert batch.targets["relevant"].shape == (8, 10)
    picture = task.picture(int(batch.index[2]))
    assert picture.question == TOKENIZER.decode(batch.inputs["input_ids"][2], skip_special_tokens=True)
    np.testing.assert_allclose(picture.boxes / SIZE, batch.inputs["visual_pos"][2].numpy(), atol=1e-6)
    assert ANSWERS.index(picture.answers[0]) == batch.labels[2]
    arguments = task.arguments(batch.inputs, model)
    assert task.arguments(arguments, model) == arguments
    model(**arguments)


def test_padding_questions_and_regions_changes_no_answer(model):
    """What fills up a batch is not seen, in LXMERT and in VisualBERT."""
    task = load_task("shapes", limit=6, batch_size=6)
    [batch] = task.batches(TOKENIZER)
    alone = torch.cat(
        [task.run(model, {name: t[place : place + 1] for name, t in batch.inputs.items()}) for place in range(6)]
    )
    longer = dict(batch.inputs)
    longer["input_ids"] = torch.nn.functional.pad(longer["input_ids"], (0, 3))
    longer["attention_mask"] = torch.nn.functional.pad(longer["attention_mask"], (0, 3))
    for name in ("visual_feats", "visual_pos"):
        longer[name] = torch.nn.functional.pad(longer[name], (0, 0, 0, 2), value=0.7)
    longer["visual_attention_mask"] = torch.nn.functional.pad(longer["visual_attention_mask"], (0, 2))
    torch.testing.assert_close(task.run(model, longer), alone, atol=1e-5, rtol=1e-4)


def test_the_loss_is_binary_cross_entropy_over_all_answers(model):
    task = load_task("shapes", limit=5, batch_size=5, split="train")
    [inputs] = task.train_batches(TOKENIZER, model)
    assert inputs["labels"].shape == (5, len(ANSWERS))
    plain = {name: tensor for name, tensor in inputs.items() if name != "labels"}
    output = model(**plain)
    logits = output.question_answering_score if hasattr(output, "question_answering_score") else output.logits
    chance, wanted = logits.sigmoid(), inputs["labels"]
    expected = -(wanted * chance.log() + (1 - wanted) * (1 - chance).log()).sum(1).mean()
    torch.testing.assert_close(task.loss(model, inputs), expected, atol=1e-4, rtol=1e-4)


def test_the_columns_say_what_an_answer_is_worth():
    task = load_task("shapes", limit=40)
    examples = list(task.examples())
    right = np.array([example.label for example in examples])
    outputs = np.eye(len(ANSWERS))[right.astype(int)]
    columns = task.columns(outputs, right)
    assert task.score(columns)["soft-accuracy"] > 98
    assert task.hits(columns).all()
    kinds = [example.answers[1] for example in examples]
    assert columns["question_kind"].tolist() == kinds
    never = np.zeros((40, len(ANSWERS)))
    never[:, ANSWERS.index("5")] = 1
    assert task.score(task.columns(never, right)) == dict.fromkeys(("soft-accuracy", *KINDS), 0.0)


def test_evaluation_works_with_both_models(model):
    task = load_task("shapes", limit=30)
    half = evaluate(copy.deepcopy(model).to(torch.bfloat16), task, TOKENIZER)
    result = evaluate(model, task, TOKENIZER)
    assert np.abs(half.outputs - result.outputs).max() < 0.2
    assert list(result.metrics) == ["soft-accuracy", *KINDS]
    assert result.outputs.shape == (30, len(ANSWERS))


def test_the_seed_draws_the_weights_of_a_model_to_train():
    def weights(seed=None):
        if seed is not None:
            torch.manual_seed(seed)
        made = load_model("shapes-visualbert", "visual-question-answering", new_head=seed is not None)
        return made.visual_bert.encoder.layer[0].attention.self.query.weight

    torch.testing.assert_close(weights(), weights())
    torch.testing.assert_close(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


def test_what_shapes_refuses():
    with pytest.raises(UnknownName, match="split of shapes"):
        next(load_task("shapes", split="holdout").examples())
    with pytest.raises(DataError, match="draws its own pictures"):
        next(load_task("shapes", data="somewhere").examples())
    with pytest.raises(DataError, match="takes no image regions"):
        load_task("shapes").check(load_model("tiny-bert"))
    with pytest.raises(DataError, match="no example 5"):
        load_task("shapes", limit=2).picture(5)


def test_the_models_that_ship_with_the_package_are_small():
    assert sum(path.stat().st_size for folder in SHIPPED.values() for path in folder.iterdir()) < 2e6


@pytest.mark.parametrize("name", SHIPPED)
def test_a_model_that_ships_with_the_package_answers_new_questions(name):
    """200 questions of the split that nothing was trained or chosen on."""
    task = load_task("shapes", split="test", limit=200)
    result = evaluate(task.load_model(name), task, load_tokenizer(name))
    assert result.metrics["soft-accuracy"] > 85
    scores = np.mean([task.scores(example) for example in task.examples()], axis=0)
    assert result.metrics["soft-accuracy"] > 100 * scores.max() + 50  # the best answer to all questions
