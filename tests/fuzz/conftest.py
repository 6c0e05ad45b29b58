"""Say how many cases were tried."""

from __future__ import annotations

from typing import Any

from fuzz.scale import SEED, tried


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if tried:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(tried.items()))
        terminalreporter.write_line(f"fuzz: {tried.total():,} cases with seed {SEED} ({kinds})")
