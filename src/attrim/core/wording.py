"""How numbers are said in sentences, titles and captions."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun: "1 example", "12 examples"; ``plural`` where it is not made with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def percent(share: float) -> str:
    """A share as a percentage: "40 %", "2.5 %"."""
    return f"{100 * share:.3g} %"
