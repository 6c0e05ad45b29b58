"""A headless Chromium for tests of pages: found on this machine or skipped with a reason, never downloaded."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
READY = "() => document.documentElement.dataset.ready === 'yes'"
"""Holds when a page has been built. A function: the page's own policy forbids texts that are evaluated."""


def executable() -> str:
    """The path of Chromium; skips the test where there is none. ``ATTRIM_CHROMIUM`` names another one."""
    pytest.importorskip("playwright.sync_api", reason="pages are tested with the extra 'dev' (playwright)")
    names = (
        os.environ.get("ATTRIM_CHROMIUM", ""),
        "/usr/bin/chromium",
        "chromium",
        "chromium-browser",
        "google-chrome",
    )
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("there is no Chromium on this machine (make browser installs it on Debian)")
    return found


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of playwright, which is closed at the end."""
    path = executable()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def tab(browser: Any, *, width: int = 1280, height: int = 900, dark: bool = False, **options: Any) -> Iterator[Any]:
    """A page of its own; whatever its console complains about, or a script throws, fails the test in the end."""
    scheme = "dark" if dark else "light"
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **options)
    page = context.new_page()
    page.set_default_timeout(60_000)  # a machine may be busy
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.complaints = complaints
    try:
        yield page
        assert complaints == []
    finally:
        context.close()


def open_file(page: Any, path: Path) -> None:
    """Open a page from disk, and wait until it is built."""
    page.goto(path.resolve().as_uri())
    page.wait_for_function(READY)


def scroll_through(page: Any) -> None:
    """Go down the whole page, so that everything is drawn that is drawn when it comes near, and back."""
    place = 0
    while place < page.evaluate("document.documentElement.scrollHeight"):
        page.evaluate("(y) => window.scrollTo({ top: y, behavior: 'instant' })", place)
        page.wait_for_timeout(40)
        place += 600
    page.evaluate("() => window.scrollTo({ top: 0, behavior: 'instant' })")
    page.wait_for_timeout(100)


def accessibility(page: Any) -> list[str]:
    """What axe-core finds serious or critical on the page, one line each."""
    pytest.importorskip(
        "axe_playwright_python", reason="accessibility is tested with the extra 'dev' (axe-playwright-python)"
    )
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run({ resultTypes: ['violations'] })")
    return [
        f"{violation['id']} ({violation['impact']}): {json.dumps([node['target'] for node in violation['nodes'][:3]])}"
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical")
    ]


def saved(page: Any, press: Any) -> bytes:
    """The content of the file that a press of a button saves."""
    with page.expect_download() as waiting:
        press()
    return Path(waiting.value.path()).read_bytes()
