"""Maps of examples as charts: tokens as they are read, answers as texts, regions over their image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.charts import MapLevel, RelevanceStrip, Words
from ..core.wording import percent
from .explainer import Maps

SHOWN = 8
"""Answers at several places that are written out."""
TEXTS = {"tokens": "", "source": "source", "target": "target"}
"""Parts that are texts, and what they are called where there are several."""


@dataclass(frozen=True, eq=False)
class Scene:
    """The image of an example.

    Attributes
    ----------
    path : of the image file; empty without one.
    width, height : in pixels.
    boxes : ``[R, 4]``, left, top, right and bottom of the regions, in pixels; None for patches.
    relevant : numbers of the regions that are known to be relevant.
    """

    path: str
    width: int
    height: int
    boxes: NDArray[Any] | None = None
    relevant: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads the tokens and answers of a model as a person does.

    Parameters
    ----------
    tokenizer : of the model; None for a model of images alone.
    answers : the names of the answers; by default those of the model's configuration.
    """

    model: nn.Module
    tokenizer: Any = None
    answers: Sequence[str] | None = None

    def strip(
        self,
        maps: Maps,
        example: int,
        batch: Mapping[str, Tensor],
        name: str,
        *,
        title: str = "",
        facts: Sequence[str] = (),
        scene: Scene | None = None,
        shared: bool = True,
        normalise: Literal["scores", "mask"] = "mask",
    ) -> RelevanceStrip:
        """The chart of one example; special tokens are left out.

        Parameters
        ----------
        example : its place in the batch.
        batch : what the maps were made of.
        name : of the files that the chart is written to.
        shared, normalise : see :class:`RelevanceStrip`.
        """
        texts = {part: self._words(maps, part, example, batch) for part in TEXTS if part in maps.relevance}
        picture = next((part for part in ("regions", "patches") if part in maps.relevance and scene is not None), None)
        levels = [
            MapLevel(
                label=f"{percent(level)} of heads out" if level else "all heads",
                answer=self._answer(maps, example, batch, maps.predicted[number, example], number),
                texts=[maps.relevance[part][number, example][kept].numpy() for part, (_, kept) in texts.items()],
                regions=None if picture is None else maps.of(picture, example)[number].numpy(),
            )
            for number, level in enumerate(maps.levels)
        ]
        return RelevanceStrip(
            name,
            title,
            levels=levels,
            explained=self._answer(maps, example, batch, maps.answers[example], None),
            texts=[Words(words, TEXTS[part]) for part, (words, _) in texts.items()],
            facts=facts,
            shared=shared,
            normalise=normalise,
            **_placed(maps, picture, scene),
        )

    def _words(self, maps: Maps, part: str, example: int, batch: Mapping[str, Tensor]) -> tuple[list[str], Tensor]:
        """The tokens of a text without padding and special tokens, and where they stand, bool ``[L]``."""
        tokens = batch["decoder_input_ids" if part == "target" else "input_ids"][example].cpu()
        kept = maps.real[part][example].clone()
        special = set(getattr(self.tokenizer, "all_special_ids", ())) - {getattr(self.tokenizer, "unk_token_id", None)}
        plain = kept & Tensor.new_tensor(kept, [number not in special for number in tokens.tolist()])
        kept = plain if bool(plain.any()) else kept
        return [self.word(number) for number in tokens[kept].tolist()], kept

    def word(self, number: int) -> str:
        """A token of the vocabulary as a text."""
        if self.tokenizer is None:
            return str(number)
        piece = str(self.tokenizer.convert_ids_to_tokens(number))
        text = piece if piece.startswith("##") else self.decoded([number])
        return text or "␣"

    def decoded(self, numbers: Sequence[int]) -> str:
        """Several tokens as one text."""
        if self.tokenizer is None:
            return " ".join(map(str, numbers))
        text = self.tokenizer.decode(list(numbers), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text).strip().replace("\n", "\\n")

    def _answer(self, maps: Maps, example: int, batch: Mapping[str, Tensor], answers: Tensor, level: int | None) -> str:
        """The answers int64 ``[P]`` at the places of an example as a text."""
        if maps.answer_kind == "number":
            return f"{float(maps.logits[level or 0, example]):.3g}"
        if maps.answer_kind == "span":
            first, last = answers.tolist()
            return self.decoded(batch["input_ids"][example, first : last + 1].tolist()) if first <= last else "(none)"
        chosen = answers[maps.counted[example]].tolist()
        shown = " ".join(map(self.named if maps.answer_kind == "label" else self.word, chosen[:SHOWN]))
        return shown + (" …" if len(chosen) > SHOWN else "")

    def named(self, number: int) -> str:
        """A label by its number."""
        if self.answers is not None:
            return self.answers[number]
        names: Mapping[int, str] = getattr(getattr(self.model, "config", None), "id2label", None) or {}
        return names.get(number, str(number))


def _placed(maps: Maps, picture: str | None, scene: Scene | None) -> dict[str, Any]:
    """The fields of the chart about its image."""
    if picture is None or scene is None:
        return {}
    fields: dict[str, Any] = {"image": scene.path, "width": scene.width, "height": scene.height}
    if picture == "patches":
        return {**fields, "grid": maps.parts["patches"].grid}
    return {**fields, "boxes": np.asarray(scene.boxes), "relevant": scene.relevant}
