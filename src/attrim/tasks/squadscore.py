"""SQuAD's official comparison of answers: exact match and F1 after normalisation.

The rules are those of the evaluation scripts at https://rajpurkar.github.io/SQuAD-explorer (version 2.0, which differs
from 1.1 only where an answer is empty).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize(answer: str) -> str:
    """Lower case, without ASCII punctuation and articles, single blanks."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """1 when both are the same after normalisation."""
    return float(normalize(prediction) == normalize(answer))


def f1(prediction: str, answer: str) -> float:
    """F1 of the words that both have, counted with repetition; an empty answer only equals an empty one."""
    first, second = normalize(prediction).split(), normalize(answer).split()
    if not first or not second:
        return float(first == second)
    shared = (Counter(first) & Counter(second)).total()
    return 2 * shared / (len(first) + len(second))


def accepted(answers: Sequence[str]) -> list[str]:
    """The answers that normalisation leaves something of; the empty one when there is none (no answer is right)."""
    return [answer for answer in answers if normalize(answer)] or [""]


def best(score: Callable[[str, str], float], prediction: str, answers: Sequence[str]) -> float:
    """The score against the accepted answer that fits best."""
    return max(score(prediction, answer) for answer in accepted(answers))
