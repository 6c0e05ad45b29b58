"""Layouts: every text on the same fixed slots, so that one matrix can serve them all.

Hassid et al. 2022, https://arxiv.org/abs/2211.03495, put texts on such a grid before they average attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from ..errors import DataError, UnknownName
from .encoding import IGNORED, Encode, Example, Row
from .reading import warn_once

if TYPE_CHECKING:
    from .base import Task

Layout = Literal["", "papa", "grid"]
TOKENWISE = frozenset({"token-classification", "masked-lm"})
"""Kinds of models that answer for every token: no token leaves its slot but the last separator."""
POINTERS = ("start_positions", "end_positions")
"""Targets that are the place of a token."""
SHORTEST = 4
CUT = -1
"""In place of a slot: the token is left out."""


@dataclass
class Cuts:
    """What a layout left out.

    Attributes
    ----------
    texts, tokens : how many there were.
    cut_texts, cut_tokens : those that lost tokens, and the tokens.
    full : texts with as many tokens as there are slots, which the tokenizer may have cut before.
    """

    texts: int = 0
    tokens: int = 0
    cut_texts: int = 0
    cut_tokens: int = 0
    full: int = 0

    def add(self, tokens: int, cut: int, slots: int) -> None:
        """Count one text."""
        self.texts += 1
        self.tokens += tokens
        self.cut_texts += cut > 0
        self.cut_tokens += cut
        self.full += tokens >= slots

    def sentence(self, layout: str, slots: int) -> str:
        """What was lost, for a reader; empty if nothing can have been."""
        parts = []
        if self.cut_tokens:
            parts.append(
                f"cut {self.cut_tokens:,} of {self.tokens:,} tokens, in {self.cut_texts:,} of {self.texts:,} texts"
            )
        if self.full:
            parts.append(
                f"was given {self.full:,} of {self.texts:,} texts that fill all slots, so the tokenizer may have cut "
                "them before"
            )
        ending = "raise max_length to keep more."
        return f"The layout {layout!r} with {slots} slots {' and '.join(parts)}; {ending}" if parts else ""


def arranged(encode: Encode, layout: Layout, kind: str, report: Callable[[Cuts, int], None] | None = None) -> Encode:
    """Rows of ``encode`` on fixed slots, as many as the largest number of tokens.

    Parameters
    ----------
    kind : the model kind of the task, which says whether tokens may move.
    report : called with the counts and the number of slots after the last row; by default what was cut is logged, once.
    """
    if layout not in get_args(Layout) or not layout:
        raise UnknownName("layout", layout, get_args(Layout)[1:])

    def rows(examples: Iterable[Example], tokenizer: Any, max_length: int) -> Iterator[Row]:
        if max_length < SHORTEST:
            raise DataError(f"A layout needs at least {SHORTEST} slots, not {max_length}; raise max_length.")
        cuts = Cuts()
        for row in encode(examples, tokenizer, max_length):
            laid, cut = arrange(row, layout, kind, tokenizer, max_length)
            cuts.add(len(row.inputs["input_ids"]), cut, max_length)
            yield laid
        if report is not None:
            report(cuts, max_length)
        elif sentence := cuts.sentence(layout, max_length):
            warn_once(sentence)

    return rows


def count_cuts(task: Task, tokenizer: Any, max_length: int | None = None) -> Cuts:
    """Count what the layout of a task leaves out of its examples."""
    found: list[Cuts] = []
    longest = task.max_length if max_length is None else min(task.max_length, max_length)
    encode = arranged(task.rows, task.layout, task.kind, lambda cuts, _: found.append(cuts))
    for _ in encode(task.examples(), tokenizer, longest):
        pass
    return found[0]


def arrange(row: Row, layout: Layout, kind: str, tokenizer: Any, slots: int) -> tuple[Row, int]:
    """One row on ``slots`` slots, and how many of its tokens were cut.

    Token numbers, segment numbers (but in ``papa``, whose authors forgot them) and targets move with their tokens.
    """
    tokens = row.inputs["input_ids"]
    places = slots_of(tokens, layout, kind, tokenizer.sep_token_id, slots)
    fills = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    inputs = {
        name: values if isinstance(values, np.ndarray) else _placed(values, places, slots, fills.get(name, 0))
        for name, values in row.inputs.items()
    }
    inputs["attention_mask"] = _placed([1] * len(tokens), places, slots, 0)
    if layout == "papa" and "token_type_ids" in inputs:
        inputs["token_type_ids"] = _padded(row.inputs["token_type_ids"], slots, fills["token_type_ids"])
    targets = {name: _target(value, places, slots) for name, value in row.targets.items()}
    if all(name in targets for name in POINTERS):
        ends = [places[targets[name]] for name in POINTERS]
        first = tokens.index(tokenizer.cls_token_id) if tokenizer.cls_token_id in tokens else 0
        # An answer that is not all there is none, as in a window that does not hold it.
        targets |= zip(POINTERS, [places[first]] * 2 if CUT in ends else ends, strict=True)
    return Row(row.index, inputs, row.label, targets), places.count(CUT)


def slots_of(tokens: Sequence[int], layout: Layout, kind: str, separator: int | None, slots: int) -> list[int]:
    """The slot of every token, :data:`CUT` for those that find no room.

    Parameters
    ----------
    separator : the number of the token that ends texts; None or absent means that tokens stand from slot 0 on.
    """
    whole = list(range(len(tokens)))
    if kind == "causal-lm":  # a token is predicted from the slot before it, so there may be no gap
        return _within(whole, slots)
    ends = [place for place, token in enumerate(tokens) if token == separator]
    if not ends:
        if layout == "papa":
            raise DataError("The layout 'papa' needs texts that end with a separator token; use the layout 'grid'.")
        return _within(whole, slots)
    first, last = ends[0], ends[-1]
    tail = len(tokens) - last  # the last separator, and what a tokenizer may put behind it
    ending = list(range(slots - tail, slots))
    if kind in TOKENWISE or (layout == "grid" and first == last):
        return _within(whole[:last], slots - tail) + ending
    half = slots // 2
    return (
        _within(whole[:first], half) + _within([half + place for place in range(last - first)], slots - tail) + ending
    )


def _within(places: Sequence[int], stop: int) -> list[int]:
    return [place if place < stop else CUT for place in places]


def _placed(values: Sequence[Any], places: Sequence[int], slots: int, fill: Any) -> list[Any]:
    """Values on their slots, ``fill`` on all others."""
    result = [fill] * slots
    for value, place in zip(values, places, strict=True):
        if place != CUT:
            result[place] = value
    return result


def _padded(values: Sequence[int], slots: int, fill: int) -> list[int]:
    return [*values, *[fill] * (slots - len(values))]


def _target(value: Any, places: Sequence[int], slots: int) -> Any:
    """A target with its tokens; a single number, and an array that is not about tokens, stay as they are."""
    if isinstance(value, (int, float, np.ndarray)):
        return value
    wide = next((tuple(IGNORED for _ in entry) for entry in value if not isinstance(entry, (int, float))), IGNORED)
    return _placed(value, places, slots, wide)
