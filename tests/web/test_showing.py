"""``attrim.show``: the attention that a page shows is that of the model, with edits and without."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attrim
import paged
from attrim.errors import ParameterError
from browser import accessibility, chromium, open_file, tab

TEXT = f"The owl sleeps {paged.HOSTILE} by day {paged.TURNED}."


def matrix(packed: dict[str, Any]) -> np.ndarray:
    assert packed["type"] == "float16"
    return np.frombuffer(base64.b64decode(packed["bytes"]), "<f2").reshape(packed["shape"])[0].astype(float)


def test_it_shows_the_attention_of_the_model() -> None:
    model, tokenizer = attrim.load_model("tiny-bert"), attrim.load_tokenizer("tiny-bert")
    shown = attrim.show(model, TEXT, tokenizer=tokenizer).payload
    (group,) = shown["groups"]
    batch = tokenizer(TEXT, return_tensors="pt")
    assert len(group["queries"]) == len(group["keys"]) == batch["input_ids"].shape[1]
    eager = attrim.load_model("tiny-bert")
    eager.set_attn_implementation("eager")
    with torch.inference_mode():
        expected = eager(**batch, output_attentions=True).attentions
    full = group["patterns"]["full"]
    assert len(full) == sum(layer.shape[1] for layer in expected)
    for layer, weights in enumerate(expected):
        for head in range(weights.shape[1]):
            np.testing.assert_allclose(matrix(full[f"{layer},{head}"]), weights[0, head], atol=1e-3)


def test_edits_change_what_is_shown() -> None:
    shown = attrim.show("tiny-bert", "a few words", edits=[attrim.Gate(0.0), attrim.Uniform()]).payload
    assert "uniform" in shown["title"]
    values = matrix(shown["groups"][0]["patterns"]["full"]["0,0"])
    assert np.allclose(values, values[0, 0])


def test_sites_of_several_roles_have_their_own_groups() -> None:
    groups = attrim.show("tiny-t5", "a few words").payload["groups"]
    assert {group["name"] for group in groups} == {"encoder", "decoder", "cross"}
    cross = next(group for group in groups if group["name"] == "cross")
    assert (len(cross["queries"]), len(cross["keys"])) == tuple(cross["patterns"]["thumbnails"]["shape"][1:])


def test_what_cannot_be_shown_is_one_sentence() -> None:
    model = attrim.load_model("tiny-bert")
    model.config._name_or_path = "/nowhere"
    with pytest.raises(ParameterError, match=r"give tokenizer=\.\.\."):
        attrim.show(model, "a text")
    with pytest.raises(ParameterError, match="give a shorter one"):
        attrim.show("tiny-bert", "a" * 10**6)


def test_its_page_shows_where_a_token_looks(tmp_path: Path) -> None:
    view = attrim.show("tiny-bert", TEXT)
    path = view.save(tmp_path / "show.html")
    assert view._repr_html_().startswith("<iframe srcdoc=")
    with chromium() as browser, tab(browser) as page:
        open_file(page, path)
        assert page.evaluate("() => window.harmed") is None
        assert page.locator("main > p bdi").inner_text() == TEXT
        group = view.payload["groups"][0]
        expected = matrix(group["patterns"]["full"]["0,0"])
        source, target = page.locator(".look .tokens").nth(0), page.locator(".look .tokens").nth(1)
        source.focus()
        for key in ("ArrowRight", "ArrowRight", "Enter"):
            page.keyboard.press(key)
        assert page.locator(".look > .note").inner_text().startswith("Where 1 ")
        target.focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        said = page.locator(".look .readout").nth(1).inner_text()
        assert float(said.rpartition(": ")[2]) == pytest.approx(expected[1, 2], rel=1e-3)
        page.locator(".look select").select_option("by")
        target.focus()
        page.keyboard.press("ArrowRight")
        said = page.locator(".look .readout").nth(1).inner_text()
        assert float(said.rpartition(": ")[2]) == pytest.approx(expected[0, 0], rel=1e-3)
        assert accessibility(page) == []
