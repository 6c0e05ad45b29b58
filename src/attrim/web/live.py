"""A model to try edits on: what it answers to an input with and without edits, and where that comes from."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import secrets
import shlex
from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..attention.context import attach
from ..attention.discover import find_sites
from ..core.charts import dump
from ..core.modes import device_of
from ..core.registry import METHODS
from ..core.site import Select
from ..core.text import spell
from ..edits.base import Edit
from ..edits.gate import Gate
from ..errors import DataError, ParameterError
from ..maps.examples import Examples
from ..maps.explainer import Explainer, MapOptions
from ..maps.shown import Reader, Scene
from ..models.loading import check_tokens, longest_input
from ..scores.target import is_causal
from ..studies.bench import Bench, Source
from ..tasks.base import Task
from ..tasks.batching import make_batches
from ..tasks.encoding import Example
from ..tasks.texts import Given
from ..tasks.visual import Picture
from .answers import compare_answers
from .catalogue import Catalogue
from .controls import LONGEST_TEXT, EditControls, LiveInput
from .guard import Refused
from .looking import FACTS, Look, Remembered, lengths_of, look, tokens_of
from .materials import Materials
from .tiles import TILE, levels
from .worker import Cancelled

SUGGESTED = 40
"""Examples of a task that the page offers."""
LONGEST = 512
"""Tokens of a text, where nothing else is said."""
MEMORY = 512 * 2**20
"""Bytes of attention that are remembered."""


@dataclasses.dataclass(frozen=True)
class Spelled:
    """One edit, and the text of ``--edit`` that makes it."""

    edit: Edit
    text: str


class LiveModel:
    """The model that was named at the start.

    Parameters
    ----------
    source : where the model, its tokenizer and, if it is a bench, the examples to choose from come from.
    averages : folders of averages for edits.
    max_length : tokens of a text; longer ones are cut.
    memory : bytes of attention that are remembered.
    """

    def __init__(
        self,
        source: Source,
        catalogue: Catalogue,
        averages: Sequence[Path] = (),
        *,
        max_length: int = LONGEST,
        memory: int = MEMORY,
    ) -> None:
        self.source = source
        self.model, self.tokenizer = source.loaded_model, source.loaded_tokenizer
        self.task: Task | None = source.loaded_task if isinstance(source, Bench) else None
        self.sites = find_sites(self.model)
        self.materials = Materials(self.model, self.tokenizer, catalogue, averages)
        longest = longest_input(self.model, self.tokenizer)
        self.max_length = max_length if longest is None else min(longest, max_length)
        self.remembered = Remembered(memory)
        answers = None if self.task is None else self.task.answer_names(self.model)
        self.reader = Reader(self.model, getattr(self.tokenizer, "tokenizer", self.tokenizer), answers)
        self._secret = secrets.token_bytes(16)

    @property
    def pictured(self) -> bool:
        """Whether questions are about the images of a task."""
        return self.task is not None and hasattr(self.task, "picture") and getattr(self.task, "images", None) != ""

    @property
    def worded(self) -> bool:
        """Whether the model reads texts at all."""
        return hasattr(self.reader.tokenizer, "convert_ids_to_tokens")

    @property
    def writes(self) -> bool:
        """Whether the model goes on with a text, token by token."""
        return is_causal(self.model) or self._writes_another

    @property
    def _writes_another(self) -> bool:
        config = getattr(self.model, "config", None)
        able = getattr(self.model, "can_generate", lambda: False)
        return bool(getattr(config, "is_encoder_decoder", False)) and able()

    def describe(self) -> dict[str, Any]:
        """What the page needs to know to offer its controls, as JSON values."""
        methods = [
            {"name": name, "bits": "bits" in METHODS[name].options}
            for name in sorted(METHODS)
            if METHODS[name].kind != "fitted"
        ]
        return {
            "model": self.source.name,
            "class": type(self.model).__name__,
            "task": self.source.task_name if isinstance(self.source, Bench) else "",
            "sites": [
                {"name": site.name, "role": site.role, "layer": site.layer, "heads": site.heads,
                 "queries": site.streams[0], "keys": site.streams[1]}
                for site in self.sites
            ],
            "input": {"text": self.worded, "pair": self._pairs, "image": self.pictured, "writes": self.writes},
            "limits": {"characters": LONGEST_TEXT, "tokens": self.max_length, "tile": TILE},
            "facts": list(FACTS),
            "methods": methods,
            "averages": [{"id": each.id, "label": each.label} for each in self.materials.averages()],
            "orders": [{"id": each.id, "label": each.label} for each in self.materials.orders()],
            "examples": self.examples,
        }  # fmt: skip

    @property
    def _pairs(self) -> bool:
        """Whether a second text makes sense: tokenizers of language models only know one."""
        return self.worded and not self.pictured and not self.writes

    @cached_property
    def examples(self) -> list[dict[str, Any]]:
        """The first examples of the task, to begin with."""
        if self.task is None:
            return []
        found = []
        for number, example in enumerate(islice(self.task.examples(), SUGGESTED)):
            texts = [text[:LONGEST_TEXT] for text in example.texts]
            if len(texts) > 2:
                texts = [" ".join(texts)[:LONGEST_TEXT]]  # the words of a sentence
            found.append({"number": number, "texts": texts})
        return found

    def image(self, number: int) -> bytes:
        """The image of an example as a PNG file."""
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(self._picture(number).image).save(file, format="PNG")
        return file.getvalue()

    def _picture(self, number: int) -> Picture:
        if not self.pictured:
            raise Refused(404, "The model is not asked about images.")
        return self.task.picture(number)  # type: ignore[union-attr]

    def look(self, asked: LiveInput, controls: EditControls, cancelled: Cancelled) -> dict[str, Any]:
        """What the model answers with edits and without, as JSON values; attention is fetched by the keys."""
        before = self._look(asked, EditControls(), cancelled)
        cancelled.check()
        spelled = self._edits(controls, before)
        after = before if controls.empty else self._look(asked, controls, cancelled, spelled, before)
        lengths = lengths_of(before.views)
        shown = {
            "tokens": tokens_of(self.reader, self.model, before.batch, lengths),
            "sites": [
                {"name": view.site.name, "queries": view.weights.shape[1], "keys": view.weights.shape[2],
                 "levels": levels(*view.weights.shape[1:])}
                for view in before.views
            ],
            "unedited": _shown(before),
            "edited": _shown(after),
            "change": compare_answers(after.reply, before.reply),
            "cut": self._is_cut(asked, before),
            **self._exported(spelled, controls, before),
        }  # fmt: skip
        if asked.example is not None and self.pictured:
            picture = self._picture(asked.example)
            shown["picture"] = {
                "width": picture.image.shape[1],
                "height": picture.image.shape[0],
                "boxes": np.asarray(picture.boxes, dtype=float).tolist(),
            }
        return shown

    def known(self, key: str) -> Look:
        """The look of a key, or a sentence that says that it is gone."""
        found = self.remembered.get(key)
        if found is None:
            raise Refused(410, "This picture is not remembered any more; ask the model again.")
        return found

    def relevance(self, key: str, shares: Sequence[float], example: int | None, cancelled: Cancelled) -> dict[str, Any]:
        """Which tokens and regions the answer of a look comes from: a chart as JSON values.

        Parameters
        ----------
        shares : of the heads that are left out, those with the lowest gradient x attention first.
        """
        known = self.known(key)
        if known.reply.shown["kind"] == "embedding":
            raise DataError(
                f"{type(self.model).__name__} has no head that answers, so there is no answer to explain; load the "
                "model with one (--kind, or --task)."
            )
        cancelled.check()
        explainer = Explainer(self.model, MapOptions())
        with attach(self.model, known.edits, strict=False):
            maps = explainer(known.batch, tuple(shares))
        scene = None
        if example is not None and self.pictured:
            picture = self._picture(example)
            high, wide = picture.image.shape[:2]
            scene = Scene("", wide, high, picture.boxes if len(picture.boxes) else None)
        return dump(self.reader.strip(maps, 0, known.batch, "relevance", scene=scene))

    def _look(
        self,
        asked: LiveInput,
        controls: EditControls,
        cancelled: Cancelled,
        spelled: Sequence[Spelled] = (),
        before: Look | None = None,
    ) -> Look:
        """One pass through the model, or what it gave the last time."""
        key = self._key(asked, controls)
        known = self.remembered.get(key)
        if known is not None:
            return known
        batch = self._batch(asked) if before is None else before.batch
        edits = [each.edit for each in spelled]
        return self.remembered.add(look(self.model, batch, self.reader, key, cancelled, edits, before))

    def _key(self, asked: LiveInput, controls: EditControls) -> str:
        # With a secret, so that nobody can find out from its key what somebody else has typed.
        content = f"{asked.model_dump_json()} {controls.model_dump_json()}".encode()
        return hashlib.blake2b(content, digest_size=16, key=self._secret).hexdigest()

    def _batch(self, asked: LiveInput) -> dict[str, Tensor]:
        """The input as the model takes it."""
        if asked.example is not None and self.pictured:
            task, rows = self._asked_about(asked)
        elif not self.worded:
            raise DataError("This model reads no texts; choose an image of the task.")
        elif not asked.text.strip():
            raise DataError("There is no text; type one.")
        else:
            if asked.pair and not self._pairs:
                raise DataError("This model takes one text; leave the second one out.")
            task = Given(texts=(asked.text,), pairs=(asked.pair,) if asked.pair else (), max_length=self.max_length)
            rows = task.batches(self.tokenizer, self.max_length)
        batch = next(iter(rows))
        inputs = dict(batch.inputs)
        if is_causal(self.model) and not self._writes_another:
            inputs = self._continued(inputs, asked.steps)
        elif self._writes_another and asked.steps:
            inputs |= self._begun(inputs, asked.steps)
        elif asked.steps:
            raise ParameterError(f"{type(self.model).__name__} does not go on with a text; leave out the steps.")
        if "input_ids" in inputs:
            check_tokens(self.model, inputs)
        inputs = Examples(task, self.model, self.tokenizer).inputs(dataclasses.replace(batch, inputs=inputs))
        return {name: tensor.to(device_of(self.model)) for name, tensor in inputs.items()}

    def _asked_about(self, asked: LiveInput) -> tuple[Task, Any]:
        """The task, and the one batch of a question about one of its images."""
        task = self.task
        assert task is not None
        assert asked.example is not None
        found = next(islice(task.examples(), asked.example, None), None)
        if found is None:
            raise DataError(f"The task {task.registered_name} has no example {asked.example}; its first one is 0.")
        texts = (asked.text,) if found.texts and asked.text.strip() else found.texts
        one: Example = dataclasses.replace(found, texts=texts)
        return task, make_batches([one], self.tokenizer, 1, self.max_length, task.laid_out(task.rows))

    def _continued(self, inputs: dict[str, Tensor], steps: Sequence[int]) -> dict[str, Tensor]:
        """The input of a language model with the tokens that it went on with, and without a mark of the text's end."""
        tokens = inputs["input_ids"]
        ends = {getattr(self.reader.tokenizer, f"{name}_token_id", None) for name in ("eos", "sep")}
        kept = tokens.shape[1] - int(tokens.shape[1] > 1 and int(tokens[0, -1]) in ends)
        further = torch.tensor([list(steps)], dtype=tokens.dtype)
        cut = {"input_ids": torch.cat([tokens[:, :kept], further], dim=1)}
        if cut["input_ids"].shape[1] > self.max_length:
            raise DataError(f"Text and steps are longer than {self.max_length} tokens; begin again.")
        cut["attention_mask"] = torch.ones_like(cut["input_ids"])
        return cut

    def _begun(self, inputs: dict[str, Tensor], steps: Sequence[int]) -> dict[str, Tensor]:
        """What a model that writes another text has written so far."""
        config: Any = self.model.config
        start = config.decoder_start_token_id
        first = start if start is not None else config.bos_token_id or config.pad_token_id or 0
        written = torch.tensor([[first, *steps]], dtype=inputs["input_ids"].dtype)
        return {"decoder_input_ids": written, "decoder_attention_mask": torch.ones_like(written)}

    def _edits(self, controls: EditControls, before: Look) -> list[Spelled]:
        """The edits that the controls stand for, in the order in which they are applied."""
        made: list[Spelled] = []
        if controls.window is not None:
            made.append(_plain(controls.window.edit()))
        if controls.pattern is not None:
            pattern, folder = self.materials.pattern(
                controls.pattern.averages, controls.pattern.tau, controls.pattern.scope
            )
            made.append(Spelled(pattern, spell(pattern, averages=str(folder))))
        if controls.constant is not None:
            heads = self._first(controls.constant.order, controls.constant.heads, before)
            constant, folder = self.materials.constant(controls.constant.averages, self._select(heads))
            made.append(Spelled(constant, spell(constant, matrix=str(folder))))
        made += [_plain(each.edit()) for each in (controls.threshold, controls.quantize) if each is not None]
        if controls.off is not None:
            heads = self._first(controls.off.order, controls.off.heads, before)
            made.append(_plain(Gate(0.0, select=self._select(heads))))
        return made

    def _first(self, order: str, number: int, before: Look) -> list[tuple[str, int]]:
        """The first heads of an order."""
        heads = self.materials.order(order, before.batch).heads
        if number > len(heads):
            raise ParameterError(f"The order has {len(heads)} heads, not {number}; choose fewer.")
        return heads[:number]

    def _select(self, heads: Sequence[tuple[str, int]]) -> Select:
        """A selection of heads, by layer where that is clear, which makes short texts."""
        layers = {site.name: site.layer for site in self.sites}
        clear = len(set(layers.values())) == len(layers)
        return Select(heads=[(layers[name] if clear else name, head) for name, head in heads])

    def _usual_task(self, before: Look) -> list[str]:
        """The flags of a task that scores such a model, where none was named; capitals are to be filled in."""
        if before.reply.shown["kind"] == "embedding":
            return ["--task", "retrieval", "--data", "built-in"]
        kind = ["--kind", self.source.kind] if self.source.kind not in ("", "saved") else []
        if is_causal(self.model) and not self._writes_another:
            return [*kind, "--task", "causal-lm", "--data", "TEXTS"]
        return [*kind, "--task", "TASK"]

    def _exported(self, spelled: Sequence[Spelled], controls: EditControls, before: Look) -> dict[str, Any]:
        """The edits as a text, as the command that evaluates them, and as they can be loaded again."""
        text = " then ".join(each.text for each in spelled)
        words = ["attrim", "evaluate", self.source.name]
        if isinstance(self.source, Bench):
            words += _flags(self.source)
        else:
            words += self._usual_task(before)
        command = shlex.join([*words, "--edit", text]) if text else ""
        return {"edit": {"text": text, "command": command, "controls": controls.model_dump(exclude_none=True)}}

    def _is_cut(self, asked: LiveInput, before: Look) -> bool:
        """Whether the text was longer than the model, or the server, takes."""
        tokens = before.batch.get("input_ids")
        if tokens is None or tokens.shape[1] < self.max_length or not self.worded:
            return False
        texts = (asked.text, *filter(None, [asked.pair]))
        whole = self.reader.tokenizer(*texts, truncation=False, verbose=False)["input_ids"]
        return len(whole) > self.max_length


def _plain(edit: Edit) -> Spelled:
    return Spelled(edit, spell(edit))


def _flags(bench: Bench) -> list[str]:
    """The flags of a command for the task of a bench."""
    words = ["--task", bench.task_name]
    for name in ("data", "validation_file", "limit"):
        value = getattr(bench, name)
        words += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
    for option in bench.option:
        words += ["--option", option]
    return words + (["--kind", bench.kind] if bench.kind else [])


def _shown(seen: Look) -> dict[str, Any]:
    """A look as JSON values."""
    facts = {
        name: [view.facts[name] for view in seen.views]
        for name in FACTS
        if all(name in view.facts for view in seen.views)
    }
    return {"key": seen.key, "answer": seen.reply.shown, "sparsity": seen.sparsity, "facts": facts}
