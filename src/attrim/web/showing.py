"""The live view's static form: what a model does with one text, for a notebook cell or a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.cells import Cell
from ..core.charts import file_name
from ..core.text import describe
from ..edits.base import Edit
from ..errors import AttrimError, ParameterError
from ..models.loading import load_tokenizer
from ..report.page.average_patterns import FULL, HeadPatterns
from ..report.page.single_file import page, write_page
from ..stats.display import site_label
from ..studies.bench import Source
from .catalogue import Catalogue
from .controls import LONGEST_TEXT, EditControls, LiveInput
from .live import LONGEST, LiveModel
from .looking import Look, SiteView, lengths_of, look, tokens_of
from .worker import Cancelled


@dataclass(frozen=True, eq=False)
class AttentionView(Cell):
    """The attention of every head to one text; a notebook shows it as a page."""

    payload: dict[str, Any]

    def save(self, path: str | Path) -> Path:
        """Write it to one HTML file that needs nothing else."""
        return write_page(page(self.payload), Path(path))


def show(
    model: Any,
    text: str,
    pair: str = "",
    *,
    tokenizer: Any = None,
    edits: Sequence[Edit] = (),
    max_length: int = LONGEST,
    everything: bool = False,
) -> AttentionView:
    """What a model does with a text: its answer, and the attention of every site and head, token by token.

    Parameters
    ----------
    model : a live model, or a name as in :func:`attrim.load_model`.
    pair : a second text, such as the paragraph of a question.
    tokenizer : of the model; by default the one of the folder or hub name that the model was loaded from.
    edits : what is changed in the model's attention.
    max_length : tokens of the text; a longer one is cut.
    everything : the attention of every head at full size; by default as many heads as fit into two megabytes.

    Examples
    --------
    >>> attrim.show("minilm", "The owl sleeps by day.")
    """
    if max(len(text), len(pair)) > LONGEST_TEXT:
        raise ParameterError(f"A text to show may have {LONGEST_TEXT} characters; give a shorter one.")
    source = _source(model, tokenizer)
    live = LiveModel(source, Catalogue([]), max_length=max_length)
    asked = LiveInput(text=text, pair=pair, example=None, steps=())
    key = live.look(asked, EditControls(), Cancelled())["unedited"]["key"]
    seen = live.known(key)
    if edits:
        seen = look(live.model, seen.batch, live.reader, "edited", Cancelled(), edits, seen)
    tokens = tokens_of(live.reader, live.model, seen.batch, lengths_of(seen.views))
    groups = list(_groups(seen.views))
    edited = f" with {describe(*edits)}" if edits else ""
    return AttentionView(
        {
            "format": 1,
            "page": "attention",
            "title": f"{source.name}{edited}",
            "text": " · ".join(filter(None, (text, pair))),
            "prediction": _prediction(seen),
            "groups": [
                {
                    "name": views[0].site.role,
                    "patterns": patterns.payload(FULL // len(groups), everything),
                    "queries": tokens[views[0].site.streams[0]],
                    "keys": tokens[views[0].site.streams[1]],
                }
                for patterns, views in groups
            ],
        }
    )


def _source(model: Any, tokenizer: Any) -> Source:
    source = Source(model, tokenizer=tokenizer, kind="saved" if isinstance(model, (str, Path)) else "")
    if tokenizer is None and source.live:
        try:
            return Source(model, tokenizer=load_tokenizer(source.name))
        except AttrimError as error:
            raise ParameterError(f"The tokenizer of this model is not known ({error}); give tokenizer=... .") from error
    return source


def _groups(views: Sequence[SiteView]) -> Iterator[tuple[HeadPatterns, list[SiteView]]]:
    """The sites of each role and shape together."""
    groups: dict[tuple[str, tuple[int, ...]], list[SiteView]] = {}
    for view in views:
        groups.setdefault((view.site.role, view.weights.shape[1:]), []).append(view)
    for (role, shape), own in groups.items():
        heads = max(view.site.heads for view in own)
        matrices = np.zeros((len(own) * heads, *shape), dtype=np.float32)
        for row, view in enumerate(own):
            matrices[row * heads : row * heads + len(view.weights)] = view.weights
        yield (
            HeadPatterns(
                name=file_name("attention", role),
                title=f"Attention, {role}: all heads",
                label="attention weight",
                rows=[site_label(view.site) for view in own],
                heads=heads,
                present=[head < len(view.weights) for view in own for head in range(heads)],
                matrices=matrices,
            ),
            own,
        )


def _prediction(seen: Look) -> list[list[Any]]:
    """The most probable answers with their probabilities; a number; nothing where the model only embeds."""
    answer = seen.reply.shown
    if answer["kind"] == "number":
        return [["answer", answer["value"]]]
    return [[each["text"], each["probability"]] for each in answer.get("candidates", ())[:5]]
