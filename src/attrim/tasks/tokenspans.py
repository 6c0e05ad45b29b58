"""Spans in sequences of IOB tags: conversion to IOB2, and the spans themselves as the CoNLL scorer counts them.

A span is what ``conlleval`` and ``seqeval`` count (Tjong Kim Sang and De Meulder 2003, https://aclanthology.org/W03-0419):
``B-X`` begins one, and so does ``I-X`` after ``O`` or after another type.
"""

from __future__ import annotations

from collections.abc import Sequence

OUTSIDE = "O"


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Begin every span with ``B-``; in IOB1 only a span right after one of its own type does. IOB2 stays as it is."""
    result = []
    before = OUTSIDE
    for tag in tags:
        prefix, _, kind = tag.partition("-")
        result.append(f"B-{kind}" if prefix == "I" and before.partition("-")[2] != kind else tag)
        before = tag
    return result


def spans(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """The spans of IOB tags (1 or 2): type, first word, last word + 1."""
    found = set()
    begin = 0
    tidy = [*to_iob2(tags), OUTSIDE]
    for place, tag in enumerate(tidy):
        if not tag.startswith("I-"):
            before = tidy[place - 1].partition("-")[2] if place else ""
            if before:
                found.add((before, begin, place))
            begin = place
    return found
