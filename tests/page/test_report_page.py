"""The report in a browser: views reached by mouse and by keyboard, exports read back, hostile texts shown as text."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import paged
from attrim.report.page.single_file import write_report
from browser import accessibility, open_file, saved, scroll_through, tab

SVG = "{http://www.w3.org/2000/svg}"


def figure(page: Any, name: str) -> Any:
    """A figure by its name, in view and drawn."""
    found = page.locator(f'figure[data-figure="{name}"]')
    if not found.count():
        scroll_through(page)
    found.scroll_into_view_if_needed()
    return found


def press(shown: Any, form: str) -> Any:
    return lambda: shown.locator(".toolbar button", has_text=form).click()


def test_it_opens_from_disk_and_loads_nothing(browser: Any, report: Path) -> None:
    asked: list[str] = []
    with tab(browser) as page:
        page.on("request", lambda request: asked.append(request.url))
        open_file(page, report)
        scroll_through(page)
        assert page.title() == "attrim demo · tiny · retrieval"
        assert [url for url in asked if not url.startswith("data:")] == [report.resolve().as_uri()]
        headings = page.locator("h2").all_inner_texts()
        assert headings == [
            "Findings",
            "What was asked",
            "Heads",
            "Average patterns",
            "Curves",
            "Training",
            "Distributions",
            "Comparisons",
            "Patterns",
            "Texts and images",
            "Tables",
            "Configuration",
        ]
        names = page.locator("figure").evaluate_all("(all) => all.map((one) => one.dataset.figure)")
        drawn = {chart.name for chart in paged.every_chart() if type(chart).__name__ != "HeadMatrix"}
        assert drawn <= set(names)


def test_what_is_hostile_is_text(page: Any) -> None:
    scroll_through(page)
    assert page.evaluate("window.harmed") is None
    assert page.locator("img, #attrim script").count() == 0
    assert page.locator(".findings").inner_text().count(paged.HOSTILE) == 1
    assert paged.HOSTILE in figure(page, "hostile").inner_text()
    tokens = figure(page, "example-0").locator(".token").all_inner_texts()
    assert tokens == ["what", "col", "or", *paged.TOKENS[3:]]


def test_a_run_with_a_hostile_name(browser: Any, tmp_path: Path) -> None:
    name = "<img src=x onerror=harmed=1>"
    both = [paged.found(tmp_path / "one" / name), paged.found(tmp_path / "two" / name, model=paged.MARKUP)]
    path = write_report(both, tmp_path / "report.html")
    with tab(browser) as page:
        open_file(page, path)
        scroll_through(page)
        assert page.evaluate("window.harmed") is None
        assert page.locator("img").count() == 0
        assert {name, f"{name} (2)"} <= set(page.locator(".run-name").all_inner_texts())


def test_contents_lead_to_their_sections(page: Any) -> None:
    links = page.locator(".contents a")
    assert links.count() == 12
    links.filter(has_text="Tables").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.textContent === 'Tables'")
    heading = page.locator("h2", has_text="Tables")
    page.wait_for_function("(node) => node.getBoundingClientRect().top < innerHeight", arg=heading.element_handle())


def test_curves_are_read_by_the_pointer_and_the_keys(page: Any) -> None:
    shown = figure(page, "score-against-budget")
    plot = shown.locator(".plot")
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3)
    tip = plot.locator(".tip")
    tip.wait_for()
    assert "ordered by score (half): 80 [77, 83]" in tip.inner_text()
    assert "random: 60" in tip.inner_text()
    page.mouse.move(0, 0)
    plot.focus()
    page.keyboard.press("ArrowRight")
    said = page.locator('[role="status"]')
    assert "unedited: 90" in said.inner_text()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert said.inner_text() == "heads removed (%) 50 ordered by score (half): 80 [77, 83]"
    page.keyboard.press("ArrowDown")
    assert "random: 60" in said.inner_text()
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_a_legend_switches_series(page: Any) -> None:
    shown = figure(page, "score-against-budget")
    button = shown.locator("button.series", has_text="random")
    lines = shown.locator('.plot svg path[stroke="#d55e00"]')
    assert lines.count() == 1
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert lines.count() == 0
    button.press("Enter")
    assert lines.count() == 1


def test_a_scrubber_goes_through_the_steps_of_a_training(page: Any) -> None:
    shown = figure(page, "training")
    slider = shown.locator('input[type="range"]')
    out = shown.locator("output")
    assert out.inner_text() == "step 300\nmean of seeds: 0.9"
    slider.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert out.inner_text() == "step 100\nmean of seeds: 0.4"
    both = figure(page, "two-panels")
    both.locator('input[type="range"]').press("Home")
    assert both.locator("output").inner_text().count("mean of seeds: 0.1") == 2


def test_heads_are_coloured_by_any_number_and_open_their_pattern(page: Any) -> None:
    shown = figure(page, "heads")
    choice = shown.locator("select")
    assert choice.locator("option").all_inner_texts() == ["Confidence", "Change", "spread of a head"]
    board = shown.locator(".board")
    board.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert shown.locator(".readout").inner_text() == "encoder 1, head 1: 0.4167"
    choice.select_option(label="Change")
    board.focus()
    page.keyboard.press("ArrowRight")
    assert shown.locator(".readout").inner_text() == "encoder 1, head 2: 0"
    page.keyboard.press("Enter")
    opened = figure(page, "average-patterns-encoder").locator(".opened")
    opened.wait_for()
    assert opened.locator("h4").inner_text() == "encoder 1, head 2"


def test_patterns_open_by_mouse_and_keyboard_and_show_the_averages(page: Any) -> None:
    mean = paged.averages()["Mean"]
    shown = figure(page, "average-patterns-encoder")
    board = shown.locator(".overview .board")
    board.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    opened = shown.locator(".opened")
    opened.wait_for()
    assert opened.locator("h4").inner_text() == "encoder 1, head 2"
    map_ = opened.locator(".board")
    map_.focus()
    for key in ("ArrowDown", *["ArrowRight"] * 2):
        page.keyboard.press(key)
    text = opened.locator(".readout").inner_text()
    value = float(re.fullmatch(r"query 1 → key 2: (.*)", text)[1])  # type: ignore[index]
    assert value == pytest.approx(float(mean.matrix("encoder.1")[2, 1, 2]), rel=2e-3)
    opened.get_by_role("button", name="Next head").click()
    assert opened.locator("h4").inner_text() == "encoder 1, head 3"
    page.keyboard.press("Escape")
    assert not opened.is_visible()
    box = board.bounding_box()
    canvas = board.locator("canvas").bounding_box()
    page.mouse.click(canvas["x"] + canvas["width"] - 30, box["y"] + 40)
    opened.wait_for()
    assert opened.locator("h4").inner_text() == "encoder 0, head 3"


def test_hover_makes_no_nodes(page: Any) -> None:
    shown = figure(page, "average-patterns-encoder")
    box = shown.locator(".overview canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    count = "(node) => node.getElementsByTagName('*').length"  # of this figure: others are drawn as they come near
    before = shown.evaluate(count)
    for step in range(20):
        page.mouse.move(box["x"] + 80 + 7 * step, box["y"] + 40 + 3 * step)
    assert "largest weight" in shown.locator(".overview .readout").inner_text()
    assert shown.evaluate(count) == before


PIXEL = """(node) => {
  const copy = Object.assign(document.createElement('canvas'), { width: node.width, height: node.height });
  const context = copy.getContext('2d', { willReadFrequently: true });
  context.drawImage(node, 0, 0);
  return context.getImageData(280, 80, 1, 1).data[0];
}"""


def test_relevance_has_a_slider_over_levels(page: Any) -> None:
    shown = figure(page, "example-0")
    answer = shown.locator("output.answer")
    colour = lambda: shown.locator(".token").nth(2).evaluate("(node) => getComputedStyle(node).backgroundColor")
    pixels = lambda: shown.locator("canvas.image").evaluate(PIXEL)
    page.wait_for_timeout(200)
    assert answer.inner_text() == "all heads: red"
    assert colour() == "rgb(217, 72, 1)"  # the most relevant of all
    assert pixels() == 200
    shown.locator('input[type="range"]').press("ArrowRight")
    assert answer.inner_text() == "90 % of heads out: blue <i> (changed)"
    assert colour() == "rgb(251, 235, 227)"  # 0.1 where the largest of all levels is 0.9
    assert pixels() == pytest.approx(200 * (0.12 + 0.88 * 0.1), abs=2)
    line = shown.locator(".tokens")
    line.focus()
    page.keyboard.press("ArrowRight")
    assert shown.locator(".token-line .readout").inner_text() == "0 “what”: relevance 0.15"


def test_a_small_panel_opens_at_full_size(page: Any) -> None:
    shown = figure(page, "histogram-of-heads")
    panel = shown.get_by_role("button", name="1 / 2", exact=True)
    panel.focus()
    page.keyboard.press("Enter")
    assert panel.get_attribute("aria-pressed") == "true"
    plot = shown.locator(".chosen .plot")
    plot.focus()
    page.keyboard.press("End")
    assert "share: 1" in page.locator('[role="status"]').inner_text()


def test_tables_are_sorted_and_copied(browser: Any, report: Path) -> None:
    with tab(browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        open_file(page, report)
        shown = figure(page, "results")
        first = lambda: shown.locator("tbody td:first-child").all_inner_texts()
        assert first() == ["unedited", "threshold:0.1", "uniform"]
        head = shown.locator("th", has_text="top-1")
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        assert first() == ["threshold:0.1", "unedited", "uniform"]
        head.locator("button").press("Enter")
        assert head.get_attribute("aria-sort") == "descending"
        shown.get_by_role("button", name="Copy as CSV").click()
        page.wait_for_function("() => document.querySelector('[role=status]').textContent === 'Copied as CSV.'")
        text = page.evaluate("navigator.clipboard.readText()")
        rows = list(csv.reader(io.StringIO(text)))
        assert rows[0] == ["setting", "top-1", "change", "kept"]
        assert rows[2] == ["threshold:0.1", "77.5", "-12.5 [-14, -11]", "false"]


CHARTS = [chart.name for chart in paged.every_chart() if type(chart).__name__ != "HeadMatrix"]


@pytest.mark.parametrize("name", ["heads", "average-patterns-encoder", *CHARTS])
def test_every_figure_is_saved_as_svg_png_and_csv(page: Any, name: str) -> None:
    shown = figure(page, name).first
    page.wait_for_timeout(100)
    drawn = ElementTree.fromstring(saved(page, press(shown, "SVG")))
    assert drawn.tag == f"{SVG}svg"
    assert len(list(drawn.iter())) > 5
    picture = Image.open(io.BytesIO(saved(page, press(shown, "PNG")))).convert("RGB")
    assert picture.width == 2 * round(float(drawn.get("width", 0)))
    assert np.asarray(picture).std() > 3  # not blank
    rows = list(csv.reader(io.StringIO(saved(page, press(shown, "CSV")).decode())))
    assert len(rows) > 1
    assert len({len(row) for row in rows}) == 1


def test_saved_numbers_are_those_of_the_charts(page: Any) -> None:
    table = list(csv.DictReader(io.StringIO(saved(page, press(figure(page, "score-against-budget"), "CSV")).decode())))
    half = next(row for row in table if row["label"] == "half")
    assert [float(half[key]) for key in ("x", "y", "low", "high")] == [50, 80, 77, 83]
    matrix = list(csv.reader(io.StringIO(saved(page, press(figure(page, "heads"), "CSV")).decode())))
    np.testing.assert_allclose(
        [[float(cell) for cell in row[2:]] for row in matrix[1:]], np.arange(12).reshape(3, 4) / 12, atol=1e-6
    )
    pattern = list(csv.reader(io.StringIO(saved(page, press(figure(page, "pattern"), "CSV")).decode())))
    assert pattern[0][1:] == paged.TOKENS
    numbers = np.array([0.1, 0.4, 0.9, 0.5, 0.2, 0.7, 0.3])
    np.testing.assert_allclose(
        [[float(cell) for cell in row[1:]] for row in pattern[1:]], numbers[:, None] * numbers, rtol=1e-6
    )


def test_runs_stand_side_by_side_with_their_differences(browser: Any, tmp_path: Path) -> None:
    one = paged.found(tmp_path / "first")
    other = paged.found(tmp_path / "second", model="small", read=paged.every_table(80.0), shown=paged.every_chart()[:1])
    path = write_report([one, other], tmp_path / "report.html")
    with tab(browser) as page:
        open_file(page, path)
        asked = figure(page, "differences-configuration").locator("tbody tr").all_inner_texts()
        assert [row.split("\t") for row in asked] == [["model", "tiny", "small"]]
        rows = [row.split("\t") for row in figure(page, "differences-results").locator("tbody tr").all_inner_texts()]
        assert rows[0] == ["unedited", "top-1", "90", "80", "-10"]
        scroll_through(page)
        curves = page.locator('section:has(> h2:text-is("Curves")) .columns').first
        left, right = (curves.locator(".of-run").nth(at).bounding_box() for at in (0, 1))
        assert left["y"] == right["y"]
        assert left["x"] < right["x"]
        assert page.get_by_text("This run has none.").count() > 5


def test_two_reports_live_in_one_page(browser: Any, report: Path, tmp_path: Path) -> None:
    from html import escape

    frames = f'<iframe srcdoc="{escape(report.read_text())}" width="900" height="700"></iframe>' * 2
    outer = tmp_path / "outer.html"
    outer.write_text(f"<!doctype html><html data-ready='yes'><body>{frames}</body></html>")
    with tab(browser) as page:
        open_file(page, outer)
        first, second = page.frames[1:]
        for frame in (first, second):
            frame.wait_for_function("() => document.documentElement.dataset.ready === 'yes'")
        choice = first.locator('figure[data-figure="heads"] select')
        choice.select_option(label="Change")
        assert second.locator('figure[data-figure="heads"] select').input_value() == "0"
        content = saved(page, press(second.locator('figure[data-figure="heads"]'), "CSV"))
        assert content.startswith(b"role,layer,0,1,2,3")
        # A frame is made as high as its page, up to a bound.
        heights = page.locator("iframe").evaluate_all("(all) => all.map((one) => one.clientHeight)")
        assert heights == [1400, 1400]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_it_is_accessible_and_fits_the_window(browser: Any, report: Path, width: int, dark: bool) -> None:
    with tab(browser, width=width, dark=dark) as page:
        open_file(page, report)
        scroll_through(page)
        figure(page, "average-patterns-encoder").locator(".overview .board").press("Enter")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(22, 24, 28)" if dark else "rgb(255, 255, 255)")
        assert accessibility(page) == []


def test_the_switch_changes_the_colours(page: Any) -> None:
    button = page.locator("button.theme")
    ground = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground() == "rgb(255, 255, 255)"
    button.click()
    assert ground() == "rgb(255, 255, 255)"
    button.click()
    assert ground() == "rgb(22, 24, 28)"
    assert "dark" in button.inner_text()


def test_it_prints_with_light_colours_and_every_figure(browser: Any, report: Path) -> None:
    with tab(browser, dark=True) as page:
        open_file(page, report)
        content = page.pdf()
        assert content.startswith(b"%PDF")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.wait_for_timeout(300)
        assert page.locator(".later:not(:has(figure))").count() == 0
        axis = page.locator('figure[data-figure="score-against-budget"] .plot svg').get_attribute("color")
        assert axis == "#5b5e63"  # that of the light palette
