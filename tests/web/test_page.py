"""The page in a browser: what is typed and moved changes what is shown, and that is what Python computes."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import attrim
from attrim.core.text import parse_chain
from attrim.runs.run import Run
from browser import accessibility, chromium, saved, tab
from served import serving

TEXT = "The cat sat on the mat."
HOSTILE = "<img src=x onerror=alert(1)> </script><b>bold</b> \u202eabc"
CONTROLS: dict[str, list[tuple[str, str, str]]] = {
    "bar": [("fill", "threshold", "0.03")],
    "bar by slider": [("fill", "threshold-slider", "-1")],
    "relative bar": [("fill", "threshold", "0.8"), ("choose", "threshold-relative", "row-maximum")],
    "renormalised": [("fill", "threshold", "0.03"), ("check", "threshold-renormalize", "")],
    "top": [("choose", "threshold-rule", "top"), ("fill", "threshold-top", "2")],
    "mass": [("choose", "threshold-rule", "mass"), ("fill", "threshold-mass", "0.3")],
    "bits": [("fill", "quantize-bits", "2")],
    "method": [("choose", "quantize-method", "linear-slog"), ("fill", "quantize-bits", "3")],
    "window": [("fill", "window-size", "2")],
    "first tokens": [("fill", "window-size", "1"), ("fill", "window-first", "3")],
    "heads off": [("fill", "off-heads", "4")],
    "order": [("choose", "off-order", "random"), ("fill", "off-heads", "3")],
    "constant heads": [("choose", "constant-order", "random"), ("fill", "constant-heads", "5")],
    "pattern": [("fill", "pattern-tau", "0.6")],
    "scope": [("choose", "pattern-scope", "row"), ("fill", "pattern-tau", "0.7")],
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def address(runs: Path, lively: Path) -> Iterator[str]:
    """A server with a small classifier, its runs, and a run whose names are hostile."""
    with Run.open(runs.parent / "hostile", {"study": HOSTILE, "model": HOSTILE, "task": {"name": HOSTILE}}) as run:
        run.store(HOSTILE, {HOSTILE: 1.0})
    with serving(str(runs), str(runs.parent / "hostile"), "--model", str(lively)) as (_, url):
        yield url


@pytest.fixture(scope="module")
def model(lively: Path) -> Any:
    return attrim.load_model(str(lively), "sequence-classification")


def opened(page: Any, url: str) -> None:
    """Open the page and wait for the first answer. Not by wait_for_function: the page forbids what that does."""
    page.goto(url)
    page.wait_for_selector("html[data-ready=yes]")
    looked(page, 1)


def looks(page: Any) -> int:
    return int(page.get_attribute(".live", "data-looks"))


def looked(page: Any, least: int) -> None:
    """Wait until the model has answered so many times, and is not at work."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        page.wait_for_selector(".live[data-state=ready]", state="attached")
        if looks(page) >= least:
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"{looks(page)} looks, not {least}: {page.inner_text('.live')[:300]}")


def typed(page: Any, text: str) -> None:
    before = looks(page)
    page.fill("[data-control=text]", text)
    looked(page, before + 1)


def move(page: Any, moves: list[tuple[str, str, str]]) -> None:
    """Move controls, one after the other."""
    for action, name, value in moves:
        before = looks(page)
        node = page.locator(f"[data-control={name}]")
        if action == "fill":
            node.fill(value)
        elif action == "choose":
            node.select_option(value)
        else:
            node.check()
        looked(page, before + 1)


def shown(page: Any) -> dict[int, float]:
    """The probability of every answer with edits, as the page has it."""
    rows = page.locator(".candidates tr[data-answer]")
    return {
        int(rows.nth(at).get_attribute("data-answer")): float(rows.nth(at).get_attribute("data-probability"))
        for at in range(rows.count())
    }


def exported(page: Any) -> str:
    """The text of the edit in the command that the page shows."""
    words = shlex.split(page.input_value("[data-control=command]"))
    return words[words.index("--edit") + 1] if words else ""


def computed(model: Any, text: str, edit: str) -> dict[int, float]:
    """The same by Python."""
    batch = attrim.load_tokenizer("tiny-bert")(text, return_tensors="pt")
    with torch.no_grad(), attrim.edit(model, *(parse_chain(edit) if edit else [])):
        chances = model(**batch).logits[0].double().softmax(0)
    return dict(enumerate(chances.tolist()))


def test_a_wrong_token_is_refused(browser: Any, address: str) -> None:
    base = address.partition("/?")[0]
    for wrong in ("/", "/?token=wrong", "/#/live"):
        with tab(browser) as page:
            answer = page.goto(f"{base}{wrong}")
            assert answer.status == 401
            assert "token is missing or wrong" in page.content()
            page.complaints.clear()  # the browser says that the page was refused


def test_the_token_does_not_stay_in_the_address(browser: Any, address: str) -> None:
    with tab(browser) as page:
        opened(page, address)
        assert "token" not in page.url
        assert page.evaluate("() => document.cookie") == ""  # a script cannot read it
        page.reload()
        page.wait_for_selector("html[data-ready=yes]")
        looked(page, 1)


def test_a_typed_text_is_answered_as_python_does(browser: Any, address: str, model: Any) -> None:
    with tab(browser) as page:
        opened(page, address)
        typed(page, TEXT)
        assert shown(page) == pytest.approx(computed(model, TEXT, ""), abs=1e-5)
        assert page.locator(".group canvas").count() >= 2
        tokens = page.locator(".token-card .tokens").first.inner_text()
        assert "[CLS]" in tokens


def test_every_control_changes_the_answer_to_what_python_computes(browser: Any, address: str, model: Any) -> None:
    with tab(browser) as page:
        opened(page, address)
        typed(page, TEXT)
        unedited = computed(model, TEXT, "")
        seen = set()
        for name, moves in CONTROLS.items():
            before = looks(page)
            page.get_by_role("button", name="All edits off").click()
            looked(page, before + 1)
            move(page, moves)
            edit = exported(page)
            assert edit, name
            assert edit not in seen, name
            seen.add(edit)
            assert page.locator(".problem:visible").count() == 0, name
            assert shown(page) == pytest.approx(computed(model, TEXT, edit), abs=1e-5), (name, edit)
            assert shown(page) != pytest.approx(unedited, abs=1e-5), (name, edit)
            assert "%" in page.inner_text(".answers .findings")


def test_an_edit_is_saved_and_loaded_again(browser: Any, address: str, tmp_path: Path) -> None:
    with tab(browser, accept_downloads=True) as page:
        opened(page, address)
        move(page, [*CONTROLS["top"], *CONTROLS["heads off"]])
        edit, answers = exported(page), shown(page)
        content = saved(page, lambda: page.get_by_role("button", name="Save the edit as JSON").click())
        kept = json.loads(content)
        assert kept["text"] == edit
        assert kept["command"].startswith("attrim evaluate /")
        assert kept["controls"]["threshold"] == {
            "rule": "top", "value": 2, "relative_to": "one", "renormalize": False,
        }  # fmt: skip
        (tmp_path / "edit.json").write_bytes(content)
        before = looks(page)
        page.get_by_role("button", name="All edits off").click()
        looked(page, before + 1)
        assert exported(page) == ""
        page.set_input_files("input[type=file]", tmp_path / "edit.json")
        looked(page, before + 2)
        assert exported(page) == edit
        assert shown(page) == pytest.approx(answers)
        (tmp_path / "edit.json").write_text("no edit")
        page.set_input_files("input[type=file]", tmp_path / "edit.json")
        page.get_by_text("This file holds no edit").wait_for()


def test_heads_are_opened_by_mouse_and_keyboard(browser: Any, address: str) -> None:
    with tab(browser) as page:
        opened(page, address)
        board = page.locator(".group .board").nth(1)
        board.focus()
        for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
            page.keyboard.press(key)
        page.get_by_role("heading", name="encoder, layer 1, head 2").wait_for()
        full = page.locator(".group .opened .board").nth(1)
        full.focus()
        for key in ("ArrowDown", "ArrowDown", "Enter"):
            page.keyboard.press(key)  # chooses the query's token
        page.get_by_text("Where 2").first.wait_for()
        assert page.input_value("[data-control=heads]") == "open"
        full.focus()
        page.keyboard.press("Escape")
        page.locator(".group .opened").wait_for(state="hidden")
        page.locator(".facts-card .board").click(position={"x": 90, "y": 60})
        page.locator(".group .opened").wait_for(state="visible")
        line = page.locator(".token-card .tokens").first
        line.focus()
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        page.get_by_text("[SEP]” looks").first.wait_for()


def test_hostile_texts_are_shown_as_texts(browser: Any, address: str) -> None:
    with tab(browser) as page:
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        opened(page, address)
        typed(page, HOSTILE)
        assert page.locator("main img").count() == 0
        assert page.locator("main b").count() == 0
        letters = "".join(page.locator(".token-card .tokens").first.locator("bdi").all_inner_texts())
        assert "<img" in letters.replace("␣", " ")


def test_runs_are_listed_searched_opened_and_compared(browser: Any, address: str, runs: Path) -> None:
    base = address.partition("/?")[0]
    with tab(browser) as page:
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        opened(page, address)
        page.get_by_role("link", name="Runs").click()
        rows = page.locator("tr[data-run]")
        rows.first.wait_for()
        assert rows.count() == 3
        assert page.locator("main img").count() == 0
        hostile = rows.filter(has_text="<img src=x")
        assert hostile.count() == 1
        page.fill("input[type=search]", "heads lively")
        assert rows.count() == 2
        page.fill("input[type=search]", "nothing has this name")
        assert rows.count() == 0
        page.fill("input[type=search]", "")
        page.locator("select[data-key=state]").select_option("stopped")
        assert rows.count() == 1
        page.locator("select[data-key=state]").select_option("")
        for at in range(3):
            box = rows.nth(at).locator("input[type=checkbox]")
            if box.is_enabled():
                box.check()
        page.get_by_role("button", name="Compare the chosen runs").click()
        page.get_by_role("heading", name="Differences").wait_for()
        for folder in runs.iterdir():
            assert page.get_by_text(folder.name).count() > 0
        page.goto(f"{base}/#/runs")
        rows.filter(has_text=next(runs.iterdir()).name).get_by_role("link").click()
        page.get_by_role("heading", name="Findings").wait_for()
        assert accessibility(page) == []
        page.goto(f"{base}/#/runs")
        rows.first.wait_for()
        hostile.get_by_role("link").click()
        page.get_by_text("Results so far").first.wait_for()
        assert page.locator("main img").count() == 0
        assert page.locator("td", has_text="<img src=x").count() > 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_the_page_is_accessible_and_nothing_sticks_out(browser: Any, address: str, width: int, dark: bool) -> None:
    base = address.partition("/?")[0]
    with tab(browser, width=width, dark=dark) as page:
        opened(page, address)
        move(page, CONTROLS["bar"])
        page.locator(".group .board").nth(1).click(position={"x": 120, "y": 60})
        page.locator(".group .opened").wait_for(state="visible")
        page.locator(".relevance-card figure").first.wait_for()
        assert accessibility(page) == []
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        page.goto(f"{base}/#/runs")
        page.locator("tr[data-run]").first.wait_for()
        assert accessibility(page) == []
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_a_prompt_is_gone_on_with(browser: Any) -> None:
    with serving("--model", "tiny-gpt2", "--kind", "causal-lm") as (_, url), tab(browser) as page:
        opened(page, url)
        typed(page, "once")
        first = page.locator(".candidates tr[data-answer]").first.get_attribute("data-answer")
        for number in range(3):
            before = looks(page)
            page.get_by_role("button", name="Step: take").click()
            looked(page, before + 1)
            assert page.locator(".steps .written").count() == number + 1
        model, tokenizer = attrim.load_model("tiny-gpt2", "causal-lm"), attrim.load_tokenizer("tiny-gpt2")
        prompt = tokenizer("once", return_tensors="pt")["input_ids"][:, :-1]
        with torch.no_grad():
            written = model.generate(prompt, max_new_tokens=4, do_sample=False, eos_token_id=[-1], pad_token_id=0)
        after = written[0, prompt.shape[1] :].tolist()
        assert int(first) == after[0]
        assert int(page.locator(".candidates tr[data-answer]").first.get_attribute("data-answer")) == after[3]
        before = looks(page)
        page.locator(".candidates tr[data-answer] button").nth(2).click()  # another one than the best
        looked(page, before + 1)
        assert page.locator(".steps .written").count() == 4
        page.get_by_role("button", name="Begin again").click()
        looked(page, before + 2)
        assert page.locator(".steps .written").count() == 0
        assert accessibility(page) == []


def test_questions_about_an_image(browser: Any) -> None:
    with serving("--model", "shapes-lxmert-trained") as (_, url), tab(browser) as page:
        opened(page, url)
        before = looks(page)
        page.locator("[data-control=example]").select_option("4")
        looked(page, before + 1)
        best = page.locator(".candidates tr[data-answer] bdi").first.inner_text()
        page.locator(".relevance-card canvas").first.wait_for()
        assert page.locator(".group").count() == 4  # two streams, and two directions between them
        typed(page, "how many red objects are there ?")
        assert page.locator(".candidates tr[data-answer] bdi").first.inner_text() in "012345"
        assert best
        assert page.evaluate("() => document.querySelector('canvas.image').width") > 32
        assert accessibility(page) == []


def test_long_inputs_are_fetched_in_tiles_as_they_are_looked_at(browser: Any, address: str) -> None:
    """The coarse level first; then, of the finer one, the tiles that can be seen."""
    asked: list[str] = []

    def fetched(place: str) -> bool:
        end = time.monotonic() + 20
        while not any(place in url for url in asked) and time.monotonic() < end:
            page.wait_for_timeout(50)
        return any(place in url for url in asked)

    with tab(browser, width=700, height=240) as page:  # so small that a head is drawn with less than a pixel a cell
        page.on("request", lambda request: asked.append(request.url) if "/tile?" in request.url else None)
        opened(page, address)
        typed(page, "long text " * 50)
        page.locator(".group .board").nth(1).click(position={"x": 120, "y": 60})
        page.locator(".group .opened").wait_for(state="visible")
        page.wait_for_timeout(500)
        assert {url.partition("level=")[2] for url in asked} == {"1&row=0&column=0"}
        page.locator(".group .opened select").nth(1).select_option("8")
        assert fetched("level=0&row=0&column=0")
        page.wait_for_timeout(300)
        assert not any("level=0&row=1" in url for url in asked)
        page.locator(".group .opened .board").nth(1).evaluate("(board) => { board.scrollTop = 1200; }")
        assert fetched("level=0&row=1&column=0")
