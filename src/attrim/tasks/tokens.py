"""One tag a word: named entities, parts of speech and chunks in CoNLL-2003 files.

Tjong Kim Sang and De Meulder 2003, https://aclanthology.org/W03-0419.
"""

from __future__ import annotations

from dataclasses import dataclass

from .base import register
from .tokensbase import Spans, Tokens
from .tokenspans import OUTSIDE


def _iob2(*kinds: str) -> tuple[str, ...]:
    return (OUTSIDE, *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))


@register("tokens/ner")
@dataclass(kw_only=True)
class NamedEntities(Spans):
    """Find the names of persons, organisations, places and others. F1 of whole names."""

    column: int = 3
    labels: tuple[str, ...] = _iob2("PER", "ORG", "LOC", "MISC")


@register("tokens/chunk")
@dataclass(kw_only=True)
class Chunks(Spans):
    """Find the chunks of a sentence, such as noun phrases. F1 of whole chunks."""

    column: int = 2
    labels: tuple[str, ...] = _iob2(
        "ADJP", "ADVP", "CONJP", "INTJ", "LST", "NP", "PP", "PRT", "SBAR", "UCP", "VP"
    )  # fmt: skip


@register("tokens/pos")
@dataclass(kw_only=True)
class PartsOfSpeech(Tokens):
    """Name the part of speech of every word (Penn Treebank tags). Accuracy."""

    column: int = 1
    labels: tuple[str, ...] = (
        *('"', "''", "``", "#", "$", "(", ")", ",", ".", ":"),
        *("CC", "CD", "DT", "EX", "FW", "IN", "JJ", "JJR", "JJS", "LS", "MD", "NN", "NNP", "NNPS", "NNS", "NN|SYM"),
        *("PDT", "POS", "PRP", "PRP$", "RB", "RBR", "RBS", "RP", "SYM", "TO", "UH"),
        *("VB", "VBD", "VBG", "VBN", "VBP", "VBZ", "WDT", "WP", "WP$", "WRB"),
    )
