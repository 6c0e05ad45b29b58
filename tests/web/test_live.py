"""The live model: what the app answers is what Python computes, for every control and every kind of model."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

import attrim
from attrim.attention.context import attach
from attrim.core.text import parse_chain
from attrim.measurement import measure
from attrim.stats.mean import Mean
from attrim.studies.bench import Bench, Source
from attrim.web.catalogue import Catalogue
from attrim.web.live import LiveModel
from served import client

TEXT = "The cat sat on the mat, and a dog looked at it."
EDITS: dict[str, dict[str, Any]] = {
    "bar": {"threshold": {"value": 0.02}},
    "bar of the row": {"threshold": {"value": 0.5, "relative_to": "row-maximum", "renormalize": True}},
    "top": {"threshold": {"rule": "top", "value": 3}},
    "share": {"threshold": {"rule": "top", "value": 0.25}},
    "mass": {"threshold": {"rule": "mass", "value": 0.5}},
    "bits": {"quantize": {"method": "linear-slog-clamped-midval", "bits": 3}},
    "window": {"window": {"size": 3, "first": 1}},
    "heads off": {"off": {"order": "confidence", "heads": 3}},
    "random heads off": {"off": {"order": "random", "heads": 5}},
    "gradient heads off": {"off": {"order": "gradient-attention", "heads": 2}},
    "together": {
        "window": {"size": 6, "first": 1},
        "threshold": {"value": 0.01},
        "quantize": {"method": "linear-slog-clamped-midval", "bits": 4},
        "off": {"order": "confidence", "heads": 1},
    },
}


def looked(asked: TestClient, text: str = TEXT, edits: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The answer to a text."""
    answer = asked.post("/api/live/look", json={"input": {"text": text, **more}, "edits": edits or {}})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def batch_of(live: LiveModel, text: str = TEXT) -> dict[str, torch.Tensor]:
    return dict(live.tokenizer(text, return_tensors="pt"))


def attention(asked: TestClient, key: str, site: int, head: int) -> np.ndarray:
    """The attention of a head, as the app sends it."""
    answer = asked.get(f"/api/live/looks/{key}/tile", params={"site": site, "head": head})
    assert answer.status_code == 200, answer.text
    rows, columns = map(int, answer.headers["x-shapes"].split(","))
    return np.frombuffer(answer.content, "<f2").reshape(rows, columns).astype(np.float64)


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
def test_predictions_are_what_python_computes_from_the_exported_edit(
    ask: TestClient, classifier: LiveModel, edits: dict[str, Any]
) -> None:
    """The text that reproduces the edit is read back, and the model is run with it by hand."""
    found = looked(ask, edits=edits)
    chain = parse_chain(found["edit"]["text"])
    with torch.no_grad(), attrim.edit(classifier.model, *chain):
        expected = classifier.model(**batch_of(classifier)).logits[0].double()
    given = {each["id"]: each for each in found["edited"]["answer"]["candidates"]}
    for number, logit in enumerate(expected.tolist()):
        assert given[number]["logit"] == pytest.approx(logit, abs=1e-5)
        assert given[number]["probability"] == pytest.approx(float(expected.softmax(0)[number]), abs=1e-5)
    with torch.no_grad():
        unedited = classifier.model(**batch_of(classifier)).logits[0].double()
    best = int(unedited.argmax())
    assert found["change"]["before"] == pytest.approx(float(unedited.softmax(0)[best]), abs=1e-5)
    assert found["change"]["value"] == pytest.approx(float(expected.softmax(0)[best]), abs=1e-5)


@pytest.mark.parametrize("edits", [{}, *EDITS.values()], ids=["unedited", *EDITS])
def test_attention_is_what_attrim_measures(ask: TestClient, classifier: LiveModel, edits: dict[str, Any]) -> None:
    found = looked(ask, edits=edits)
    chain = parse_chain(found["edit"]["text"]) if found["edit"]["text"] else []
    mean = measure(classifier.model, [batch_of(classifier)], Mean(), edits=chain)[Mean]
    zeros = cells = 0
    for place, site in enumerate(classifier.sites):
        expected = mean.matrix(site).numpy()
        zeros, cells = zeros + int((expected == 0).sum()), cells + expected.size
        for head in range(site.heads):
            given = attention(ask, found["edited"]["key"], place, head)
            np.testing.assert_allclose(given, expected[head], rtol=1e-3, atol=1e-5)
            assert found["edited"]["facts"]["zeros"][place][head] == pytest.approx((expected[head] == 0).mean())
    assert found["edited"]["sparsity"] == pytest.approx(zeros / cells)


def test_unedited_attention_is_that_of_eager_attention(ask: TestClient) -> None:
    model = attrim.load_model("tiny-bert", "sequence-classification")
    model.set_attn_implementation("eager")
    found = looked(ask)
    with torch.no_grad():
        expected = model(**attrim.load_tokenizer("tiny-bert")(TEXT, return_tensors="pt"), output_attentions=True)
    for site, layer in enumerate(expected.attentions):
        for head in range(layer.shape[1]):
            given = attention(ask, found["unedited"]["key"], site, head)
            np.testing.assert_allclose(given, layer[0, head].numpy(), rtol=1e-3, atol=1e-5)


def test_facts_of_heads_are_those_of_their_attention(ask: TestClient, classifier: LiveModel) -> None:
    found = looked(ask, edits=EDITS["top"])
    for place, site in enumerate(classifier.sites):
        for head in range(site.heads):
            before, after = (attention(ask, found[side]["key"], place, head) for side in ("unedited", "edited"))
            facts = {name: rows[place][head] for name, rows in found["edited"]["facts"].items()}
            assert facts["confidence"] == pytest.approx(after.max(1).mean(), rel=1e-3)
            positive = np.where(after > 0, after, 1)
            assert facts["entropy"] == pytest.approx(-(after * np.log(positive)).sum(1).mean(), rel=2e-3)
            assert facts["change"] == pytest.approx(np.abs(after - before).sum(1).mean() / 2, rel=2e-3)
    assert "change" not in found["unedited"]["facts"]


def test_the_small_pictures_are_those_of_the_attention(ask: TestClient, classifier: LiveModel) -> None:
    found = looked(ask, "a long text " * 12)
    answer = ask.get(f"/api/live/looks/{found['edited']['key']}/overview", params={"side": 16, "format": "float16"})
    shapes = [tuple(map(int, shape.split(","))) for shape in answer.headers["x-shapes"].split(";")]
    assert len(shapes) == len(classifier.sites)
    values = np.frombuffer(answer.content, "<f2")
    for place, shape in enumerate(shapes):
        size = int(np.prod(shape))
        small, values = values[:size].reshape(shape), values[size:]
        assert max(shape[1:]) <= 16
        for head in range(shape[0]):
            whole = attention(ask, found["edited"]["key"], place, head)
            assert small[head].max() == pytest.approx(whole.max())
            factor = -(-max(whole.shape) // 16)
            assert small[head][0, 0] == pytest.approx(whole[:factor, :factor].max())
    assert not len(values)


def test_a_token_looks_and_is_looked_at(ask: TestClient, classifier: LiveModel) -> None:
    found = looked(ask)
    answer = ask.get(f"/api/live/looks/{found['edited']['key']}/token", params={"stream": "encoder", "position": 4})
    shapes = [tuple(map(int, shape.split(","))) for shape in answer.headers["x-shapes"].split(";")]
    values, looks = np.frombuffer(answer.content, "<f2"), int(answer.headers["x-looks"])
    assert looks == len(classifier.sites) == len(shapes) // 2
    for place, shape in enumerate(shapes):
        size = int(np.prod(shape))
        part, values = values[:size].reshape(shape), values[size:]
        whole = [attention(ask, found["edited"]["key"], place % looks, head) for head in range(shape[0])]
        expected = [head[4] if place < looks else head[:, 4] for head in whole]
        np.testing.assert_array_equal(part.astype(np.float64), np.stack(expected))


@pytest.mark.parametrize(
    "address",
    ["tile?site=9&head=0", "tile?site=0&head=99", "tile?site=0&head=0&level=7", "tile?site=0&head=0&row=9",
     "token?stream=nowhere&position=0", "token?stream=encoder&position=9999"],
)  # fmt: skip
def test_what_is_not_there_is_not_found(ask: TestClient, address: str) -> None:
    key = looked(ask)["edited"]["key"]
    assert ask.get(f"/api/live/looks/{key}/{address}").status_code == 404


def test_a_picture_that_is_forgotten_is_gone(classifier: LiveModel) -> None:
    asked = client(classifier)
    assert asked.get(f"/api/live/looks/{'0' * 32}/overview").status_code == 410
    small = LiveModel(classifier.source, Catalogue([]), memory=1)
    forgetful = client(small)
    first = looked(forgetful)["edited"]["key"]
    looked(forgetful, "another text")
    answer = forgetful.get(f"/api/live/looks/{first}/overview")
    assert answer.status_code == 410
    assert "not remembered" in answer.json()["error"]


def test_memory_is_bounded(classifier: LiveModel) -> None:
    small = LiveModel(classifier.source, Catalogue([]), memory=200_000)
    asked = client(small)
    for number in range(30):
        looked(asked, f"{TEXT} {number}", EDITS["bar"])
        assert small.remembered.size <= 200_000


def test_the_same_question_is_answered_from_memory(classifier: LiveModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = client(classifier)
    first = looked(asked, "once", EDITS["bar"])
    calls: list[None] = []
    forward = type(classifier.model).forward
    monkeypatch.setattr(
        type(classifier.model), "forward", lambda *given, **named: calls.append(None) or forward(*given, **named)
    )
    assert looked(asked, "once", EDITS["bar"]) == first
    assert not calls
    looked(asked, "once", EDITS["top"])
    assert len(calls) == 1  # the unedited model is known


def test_orders_and_averages_of_runs_make_edits(equipped: LiveModel, runs: Path) -> None:
    asked = client(equipped, Catalogue([runs]))
    about = asked.get("/api/live").json()
    averages = [each for each in about["averages"] if each["label"].endswith("/averages")]
    orders = [each for each in about["orders"] if "gradient-attention" in each["label"] and ":" in each["label"]]
    assert len(averages) == 1
    assert len(orders) == 2
    heads = equipped.materials.order(orders[0]["id"], {}).heads
    assert len(heads) == sum(site.heads for site in equipped.sites)
    controls = {
        "constant": {"averages": averages[0]["id"], "order": orders[0]["id"], "heads": 3},
        "pattern": {"averages": averages[0]["id"], "tau": 0.4, "scope": "head"},
        "off": {"order": orders[0]["id"], "heads": 1},
    }
    for chosen in (*({name: control} for name, control in controls.items()), controls):
        found = looked(asked, "a b", chosen)
        chain = parse_chain(found["edit"]["text"])
        with torch.no_grad(), attrim.edit(equipped.model, *chain):
            expected = equipped.model(**batch_of(equipped, "a b")).logits[0].double().softmax(0)
        given = {each["id"]: each["probability"] for each in found["edited"]["answer"]["candidates"]}
        np.testing.assert_allclose([given[number] for number in range(len(given))], expected.numpy(), atol=1e-5)
        assert found["edited"] != found["unedited"]
        relevance = asked.post("/api/live/relevance", json={"key": found["edited"]["key"]})
        assert relevance.status_code == 200, relevance.text
        words = shlex.split(found["edit"]["command"])
        assert words[:3] == ["attrim", "evaluate", equipped.source.name]
        assert words[-2:] == ["--edit", found["edit"]["text"]]


def test_a_text_longer_than_the_averages_is_one_sentence(equipped: LiveModel, runs: Path) -> None:
    asked = client(equipped, Catalogue([runs]))
    averages = asked.get("/api/live").json()["averages"][0]["id"]
    edits = {"constant": {"averages": averages, "order": "random", "heads": 2}}
    answer = asked.post("/api/live/look", json={"input": {"text": "long " * 60}, "edits": edits})
    assert answer.status_code == 422
    assert answer.json()["error"].endswith(".")


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ({"quantize": {"method": "no-such-method"}}, "no quantising method|There is no"),
        ({"quantize": {"method": "linear-slog", "bits": 17}}, "bits"),
        ({"threshold": {"rule": "mass", "value": 0}}, "mass must lie above 0"),
        ({"threshold": {"rule": "top", "value": 0}}, "top must be"),
        ({"threshold": {"value": -1}}, "greater than or equal"),
        ({"off": {"order": "nowhere", "heads": 1}}, "not there any more"),
        ({"off": {"order": "random", "heads": 10_000}}, "heads, not 10000"),
        ({"off": {"order": "random", "heads": 0}}, "heads"),
        ({"constant": {"averages": "../..", "order": "random", "heads": 1}}, "not there any more"),
        ({"pattern": {"averages": "/etc", "tau": 0.5}}, "not there any more"),
        ({"gate": {"factors": 0}}, "gate"),
        ({"threshold": "constant:/etc"}, "threshold"),
    ],
)
def test_edits_that_cannot_be_made_are_one_sentence(ask: TestClient, edits: dict[str, Any], said: str) -> None:
    answer = ask.post("/api/live/look", json={"input": {"text": TEXT}, "edits": edits})
    assert answer.status_code == 422
    assert re.search(said, answer.json()["error"]), answer.json()


@pytest.mark.parametrize(
    "text",
    ["<script>alert(1)</script>", "</textarea><img src=x onerror=alert(1)>", "\u202eright to left", "a\x00b", "\ufffe",
     "🤖" * 300, "x" * 20_000,
     "\n" * 50 + "a", "' OR 1=1 --", "{{7*7}}", "\u0301" * 400, "[MASK] [SEP] [CLS] <s> </s>"],
)  # fmt: skip
def test_hostile_texts_are_texts(ask: TestClient, text: str) -> None:
    answer = ask.post("/api/live/look", json={"input": {"text": text}})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("text", ["", "   ", "\n", "x" * 20_001])
def test_texts_that_are_none_or_too_long_are_refused(ask: TestClient, text: str) -> None:
    answer = ask.post("/api/live/look", json={"input": {"text": text}})
    assert answer.status_code == 422
    assert answer.json()["error"].endswith(".")


def test_half_of_a_character_is_refused(ask: TestClient) -> None:
    body = b'{"input": {"text": "half \\ud800 of one"}}'
    answer = ask.post("/api/live/look", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422


def test_a_long_text_is_cut_and_that_is_said(ask: TestClient) -> None:
    found = looked(ask, "word " * 300)
    assert found["cut"]
    assert len(found["tokens"]["encoder"]) == 512
    assert not looked(ask)["cut"]
    assert found["sites"][0]["levels"] == 2


def test_a_prompt_is_gone_on_with_step_by_step(writer: LiveModel) -> None:
    """Each step is the most probable next token, as greedy generation gives it."""
    asked = client(writer)
    steps: list[int] = []
    for _ in range(5):
        found = looked(asked, "once upon", steps=steps)
        assert found["edited"]["answer"]["kind"] == "words"
        assert found["edited"]["answer"]["at"] == len(found["tokens"]["decoder"]) - 1
        steps.append(found["edited"]["answer"]["candidates"][0]["id"])
    prompt = writer.tokenizer("once upon", return_tensors="pt")["input_ids"][:, :-1]  # without the mark of the end
    with torch.no_grad():
        written = writer.model.generate(prompt, max_new_tokens=5, do_sample=False, eos_token_id=[-1], pad_token_id=0)
    assert written[0, prompt.shape[1] :].tolist() == steps


def test_steps_of_an_encoder_decoder_are_its_own_text() -> None:
    live = LiveModel(Source("tiny-t5", kind="seq2seq-lm"), Catalogue([]))
    asked = client(live)
    begun = looked(asked, "a text", steps=[70, 71])
    assert len(begun["tokens"]["decoder"]) == 3
    inputs = {
        **batch_of(live, "a text"),
        "decoder_input_ids": torch.tensor([[live.model.config.decoder_start_token_id, 70, 71]]),
    }
    with torch.no_grad():
        expected = live.model(**inputs).logits[0, -1].double().softmax(0)
    best = begun["edited"]["answer"]["candidates"][0]
    assert best["probability"] == pytest.approx(float(expected.max()), abs=1e-5)
    assert looked(asked, "a text")["tokens"]["decoder"]  # what it writes by itself


@pytest.mark.parametrize("steps", [[10**6], [-1], [2**31], list(range(600))])
def test_steps_that_are_no_tokens_are_refused(writer: LiveModel, steps: list[int]) -> None:
    answer = client(writer).post("/api/live/look", json={"input": {"text": "a", "steps": steps}})
    assert answer.status_code == 422


def test_a_classifier_does_not_go_on_with_a_text(ask: TestClient) -> None:
    answer = ask.post("/api/live/look", json={"input": {"text": "a", "steps": [5]}})
    assert answer.status_code == 422
    assert "does not go on" in answer.json()["error"]


def test_questions_about_an_image(seer: LiveModel) -> None:
    asked = client(seer)
    about = asked.get("/api/live").json()
    assert about["input"]["image"]
    question = about["examples"][3]["texts"][0]
    found = looked(asked, question, {"off": {"order": "gradient-attention", "heads": 4}}, example=3)
    assert set(found["tokens"]) == {"language", "vision"}
    assert len(found["picture"]["boxes"]) == 10
    image = asked.get("/api/live/examples/3/image")
    assert image.content.startswith(b"\x89PNG")
    task = dataclasses.replace(seer.source.loaded_task, batch_size=1)  # type: ignore[attr-defined]
    batch = next(batch for batch in task.batches(seer.tokenizer, 15) if int(batch.index[0]) == 3)
    with torch.no_grad(), attach(seer.model, parse_chain(found["edit"]["text"])):
        expected = task.run(seer.model, dict(batch.inputs))[0].double()
    given = found["edited"]["answer"]["candidates"][0]
    assert given["id"] == int(expected.argmax())
    assert given["logit"] == pytest.approx(float(expected.max()), abs=1e-5)
    assert given["text"] == task.answer_list[given["id"]]
    relevance = asked.post("/api/live/relevance", json={"key": found["edited"]["key"], "example": 3}).json()
    assert len(relevance["levels"][0]["regions"]) == 10
    assert asked.get("/api/live/examples/999999/image").status_code == 422


def test_relevance_is_that_of_the_edited_model(ask: TestClient, classifier: LiveModel) -> None:
    from attrim.maps.explainer import Explainer

    found = looked(ask, edits=EDITS["window"])
    answer = ask.post("/api/live/relevance", json={"key": found["edited"]["key"], "levels": [0, 0.5]})
    assert answer.status_code == 200, answer.text
    with attach(classifier.model, parse_chain(found["edit"]["text"])):
        maps = Explainer(classifier.model)(batch_of(classifier), (0, 0.5))
    for level, given in enumerate(answer.json()["levels"]):
        np.testing.assert_allclose(given["texts"][0], maps.of("tokens", 0)[level][1:-1].numpy(), atol=1e-5)


def test_a_model_without_a_head_says_so() -> None:
    asked = client(LiveModel(Source("tiny-bert", kind="auto"), Catalogue([])))
    found = looked(asked, edits=EDITS["bar"])
    assert found["edited"]["answer"]["kind"] == "embedding"
    first, second = (np.array(found[side]["answer"]["vector"]) for side in ("edited", "unedited"))
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert found["change"] == {"measure": "cosine", "value": pytest.approx(cosine)}
    answer = asked.post("/api/live/relevance", json={"key": found["edited"]["key"]})
    assert answer.status_code == 422
    assert "no head that answers" in answer.json()["error"]


@pytest.mark.parametrize("kind", ["question-answering", "token-classification", "masked-lm"])
def test_other_heads(kind: str) -> None:
    live = LiveModel(Source("tiny-bert", kind=kind), Catalogue([]))
    text = f"a {live.tokenizer.mask_token} c" if kind == "masked-lm" else "who?"
    pair = {"pair": "me"} if kind == "question-answering" else {}
    found = looked(client(live), text, EDITS["bar"], **pair)
    batch = dict(live.tokenizer(text, *pair.values(), return_tensors="pt"))
    with torch.no_grad(), attrim.edit(live.model, *parse_chain(found["edit"]["text"])):
        output = live.model(**batch)
    answer = found["edited"]["answer"]
    if kind == "question-answering":
        np.testing.assert_allclose(answer["starts"], output.start_logits[0].double().softmax(0), atol=1e-5)
        best = answer["candidates"][0]
        chances = np.outer(answer["starts"], answer["ends"])
        assert best["probability"] == pytest.approx(np.triu(chances).max())
        assert best["start"] <= best["end"]
        return
    logits = output.logits[0].double().softmax(-1)
    assert [place["id"] for place in answer["places"]] == logits.argmax(-1).tolist()
    if kind == "masked-lm":
        assert answer["at"] == batch["input_ids"][0].tolist().index(live.tokenizer.mask_token_id)
    assert answer["candidates"][0]["probability"] == pytest.approx(float(logits[answer["at"]].max()), abs=1e-5)


def test_averages_of_another_model_are_refused(tmp_path: Path, classifier: LiveModel) -> None:
    other = attrim.load_model("tiny-roberta", "sequence-classification")
    measure(other, [dict(attrim.load_tokenizer("tiny-roberta")(TEXT, return_tensors="pt"))], Mean()).save(tmp_path)
    with pytest.raises(attrim.errors.AttrimError, match=r"do not fit|other sites"):
        LiveModel(classifier.source, Catalogue([]), [tmp_path])


def test_without_a_model_there_is_nothing_live() -> None:
    asked = client()
    assert asked.get("/api/about").json()["model"] is None
    for answer in (asked.get("/api/live"), asked.post("/api/live/look", json={"input": {"text": "a"}})):
        assert answer.status_code == 404
        assert "--model" in answer.json()["error"]


def test_examples_of_a_task_are_offered(shared_data: Path) -> None:
    bench = Bench("tiny-bert", task="squad", data=str(shared_data / "squad"), limit=5, quiet=True)
    about = client(LiveModel(bench, Catalogue([]))).get("/api/live").json()
    assert len(about["examples"]) == 5
    assert len(about["examples"][0]["texts"]) == 2
    assert json.dumps(about)
