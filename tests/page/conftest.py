"""One browser for all tests of pages, and a report with everything in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paged
from attrim.report.page.single_file import write_report
from browser import chromium, open_file, tab


@pytest.fixture(scope="module")  # no longer: playwright keeps an event loop running, and other modules need their own
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one run."""
    folder = tmp_path_factory.mktemp("reports")
    return write_report([paged.found(folder / "run-0123")], folder / "report.html")


@pytest.fixture
def page(browser: Any, report: Path) -> Iterator[Any]:
    """The report, open in a tab of its own."""
    with tab(browser) as opened:
        open_file(opened, report)
        yield opened
