"""Relevance strips as figures, as text in the terminal and as a page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from rich.console import Console

from attrim.core.charts import MapLevel, RelevanceStrip, Words
from attrim.errors import ArtefactError
from attrim.report.page.single_file import write_charts
from attrim.report.painted import DARK, glued, painted_levels, token_shares
from attrim.report.paper import draw, save
from attrim.report.terminal import show

TOKENS = ["what", "col", "##or", "<b>", "$x$"]

pytestmark = pytest.mark.usefixtures("rendered")


@pytest.fixture
def image(tmp_path: Path) -> str:
    path = tmp_path / "image.png"
    matplotlib.image.imsave(path, np.full((20, 40, 3), 0.8))
    return str(path)


def strip(image: str = "", **fields: Any) -> RelevanceStrip:
    """Two levels: half of the relevance is gone at the second, and the answer is another one."""
    numbers = np.array([0.0, 0.2, 0.4, 0.1, 0.3])
    regions = np.array([0.5, 1.0])
    levels = [
        MapLevel("all heads", "red", [numbers], regions if image else None),
        MapLevel("90 % of heads out", "blue <i>", [numbers / 2], regions / 2 if image else None),
    ]
    common: dict[str, Any] = {"levels": levels, "texts": [Words(TOKENS)], "explained": "red"}
    if image:
        boxes = [[0, 0, 10, 10], [20, 0, 40, 20]]
        common |= {"image": image, "width": 40, "height": 20, "boxes": boxes, "relevant": [1]}
    return RelevanceStrip("example", "a question", **{**common, **fields})


def test_levels_have_one_scale_or_each_its_own() -> None:
    shared = token_shares(strip())
    np.testing.assert_allclose(shared[0][0], [0, 0.5, 1, 0.25, 0.75])
    np.testing.assert_allclose(shared[1][0], np.array([0, 0.5, 1, 0.25, 0.75]) / 2)
    each = token_shares(strip(shared=False))
    np.testing.assert_allclose(each[1][0], each[0][0])


def test_what_is_irrelevant_is_dark(image: str) -> None:
    first, second = painted_levels(strip(image))
    bright, half, dark = first[5, -5], first[5, 5], first[-5, 5]
    assert bright.tolist() == [204] * 3
    assert abs(int(half[0]) - 204 * (DARK + (1 - DARK) / 2)) <= 1
    assert abs(int(dark[0]) - 204 * DARK) <= 1
    assert second[5, -5].tolist() == half.tolist()
    own = painted_levels(strip(image, shared=False))[1]
    assert own[5, -5].tolist() == bright.tolist()


def test_patches_are_laid_over_the_image(image: str) -> None:
    levels = [MapLevel("all heads", "cat", regions=[0, 0, 0, 1])]
    chart = RelevanceStrip("vit", levels=levels, image=image, width=40, height=20, grid=[2, 2])
    (painted,) = painted_levels(chart)
    assert painted[-1, -1, 0] == 204
    assert painted[0, 0, 0] < 30
    assert draw(chart).axes


def test_continued_words_are_joined() -> None:
    assert glued(("play", "##ing", "##")) == [("play", False), ("ing", True), ("##", False)]


def test_a_figure_has_the_image_the_levels_and_the_texts(image: str, tmp_path: Path) -> None:
    figure = draw(strip(image))
    titles = [axes.get_title() for axes in figure.axes if axes.images]
    assert titles == ["image\n", "all heads\nred", "90 % of heads out\nblue <i>"]
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert texts.count("or") == 2  # a continuation without its sign, at both levels
    assert "$x$" in texts
    first = [axes for axes in figure.axes if axes.images][1]
    (frame,) = first.patches  # around the region with the most relevance
    assert frame.get_bbox().bounds == (20, 0, 20, 20)
    files = save(strip(image), tmp_path / "out")
    assert [file.name for file in files] == ["example.png", "example.svg"]
    assert "\n" not in files[1].name
    assert matplotlib.image.imread(files[0])[..., :3].std() > 0.05


def test_texts_without_an_image_name_the_answer_of_each_level() -> None:
    figure = draw(strip())
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert {"all heads", "red", "90 % of heads out", "blue <i>"} <= set(texts)


def test_long_texts_are_wrapped() -> None:
    tokens = ["word"] * 200
    levels = [MapLevel("all heads", "yes", [np.linspace(0, 1, 200)])]
    figure = draw(RelevanceStrip("long", levels=levels, texts=[Words(tokens)]))
    axes = figure.axes[0]
    places = [text.get_position() for text in axes.texts if text.get_text() == "word"]
    assert len({round(y, 3) for _, y in places}) > 5
    assert max(x for x, _ in places) < 6.6


def test_an_image_that_is_none_is_refused(image: str) -> None:
    Path(image).write_text("no image")
    with pytest.raises(ArtefactError, match="cannot be read"):
        draw(strip(image))


def test_the_terminal_shows_weights_and_both_answers(image: str) -> None:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(show(strip(image)))
    text = captured.get()
    assert "what 0 col 0.2or 0.4" in text
    assert "all heads: red" in text
    assert "90 % of heads out: blue <i>" in text
    assert "regions with the most relevance: 1: 1, 0: 0.5" in text
    assert "relevant regions: 1" in text


def test_a_page_needs_nothing_else_and_escapes_everything(image: str, tmp_path: Path) -> None:
    charts = [strip(image, facts=["</script><script>alert(1)</script>"]), strip()]
    path = write_charts(charts, tmp_path / "deep" / "page.html", 'model "</title><x>"')
    text = path.read_text()
    assert "<script>alert" not in text
    assert "</title><x>" not in text
    assert re.findall(r"""(?:src|href)=["'](?!#)""", text.split('<script type="application/json"')[0]) == []
    payload = json.loads(re.search(r'id="payload">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    assert payload["charts"][0]["facts"] == ["</script><script>alert(1)</script>"]
    assert payload["charts"][0]["image"].startswith("data:image/")
    assert payload["charts"][0]["levels"][1]["answer"] == "blue <i>"
