"""Maps of the examples of a task: charts of some of them, and the quality of all."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.charts import RelevanceStrip
from ..core.progress import progress_bar
from ..errors import DataError, shorten
from ..models.loading import longest_input
from ..runs.files import storage
from ..runs.run import Run
from ..tasks.base import Task
from ..tasks.batching import Batch
from .explainer import Explainer
from .quality import Examiner, Quality
from .shown import Reader, Scene

log = logging.getLogger(__name__)
GENERATED = 24
"""Tokens that an encoder-decoder model writes, where the task has none for its decoder."""


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples of a task, as a model takes them.

    Parameters
    ----------
    labels : give them to the model's batches, for maps of the label.
    """

    task: Task
    model: nn.Module
    tokenizer: Any = None
    labels: bool = False

    def batches(self) -> Iterator[tuple[Batch, dict[str, Tensor]]]:
        """Every batch, and the inputs of the model."""
        for batch in self.task.batches(self.tokenizer, longest_input(self.model, self.tokenizer)):
            yield batch, self.inputs(batch)

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """What the model takes of a batch, with labels where they are wanted."""
        inputs = dict(batch.inputs)
        if self.labels:
            inputs |= self.task.train_labels(batch, self.model)
        elif getattr(getattr(self.model, "config", None), "is_encoder_decoder", False):
            inputs = self._written(inputs)
        return self.task.arguments(inputs, self.model)

    def _written(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inputs of an encoder-decoder model with what it writes as decoder input."""
        model: Any = self.model
        if "decoder_input_ids" in inputs or not hasattr(model, "generate") or not model.can_generate():
            return inputs
        device = next(model.parameters()).device
        given = {name: inputs[name].to(device) for name in ("input_ids", "attention_mask") if name in inputs}
        with torch.no_grad():
            written = model.generate(**given, max_new_tokens=GENERATED, num_beams=1, do_sample=False)
        padding = model.config.pad_token_id
        mask = torch.ones_like(written) if padding is None else (written != padding).long()
        mask[:, 0] = 1  # the first token is often the one that pads
        return {**inputs, "decoder_input_ids": written, "decoder_attention_mask": mask}

    def rows(self, wanted: Sequence[int]) -> Iterator[tuple[Batch, int, str]]:
        """The rows of some examples by their numbers, in this order: batch, place and a name.

        An example that is read in several windows has several rows.
        """
        found: dict[int, list[tuple[Batch, int]]] = {}
        asked = set(wanted)
        left = set(wanted)
        for batch in self.task.batches(self.tokenizer, longest_input(self.model, self.tokenizer)):
            for place, number in enumerate(batch.index.tolist()):
                if number in asked:
                    found.setdefault(number, []).append((batch, place))
                    left.discard(number)
        if left:
            raise DataError(
                f"The task {self.task.registered_name} has no example {min(left)} among those that are used; give "
                "other numbers, or a larger limit."
            )
        for number in dict.fromkeys(wanted):
            for window, (batch, place) in enumerate(found[number]):
                yield batch, place, f"example-{number}" + (f"-window-{window}" if window else "")


def explain_examples(
    explainer: Explainer,
    examples: Examples,
    wanted: Sequence[int],
    levels: Sequence[float],
    folder: Path | None = None,
    *,
    shared: bool = True,
    normalise: Literal["scores", "mask"] = "mask",
    progress: bool = False,
) -> list[RelevanceStrip]:
    """Charts of some examples; those whose image cannot be read are left out and named on the log.

    Parameters
    ----------
    wanted : numbers of the examples in their task.
    levels : shares of heads that are left out.
    folder : for the images of the examples; without one, charts have regions and patches but show no image.
    """
    task, charts = examples.task, []
    damaged: list[DataError] = []
    reader = Reader(examples.model, examples.tokenizer, task.answer_names(examples.model))
    with progress_bar(len(wanted), "explaining examples", progress) as bar:
        for batch, place, name in examples.rows(wanted):
            one = _only(batch, place)
            number = int(batch.index[place])
            try:
                title, facts, scene = _about(task, one, number, folder, reader)
            except DataError as error:
                log.warning("Example %d is left out: %s", number, error)
                damaged.append(error)
                continue
            inputs = examples.inputs(one)
            maps = explainer(inputs, levels)
            options: dict[str, Any] = {"shared": shared, "normalise": normalise}
            charts.append(reader.strip(maps, 0, inputs, name, title=title, facts=facts, scene=scene, **options))
            bar.advance()
    if damaged and not charts:
        raise damaged[0]
    return charts


def examine(
    examiner: Examiner, examples: Examples, run: Run | None = None, name: str = "quality", progress: bool = False
) -> Quality:
    """The quality of the maps of all examples of a task.

    Parameters
    ----------
    run : keeps every batch as soon as it is done; batches that it already has are read, not repeated.
    name : what the run keeps them under.
    """
    parts: list[Quality] = []
    with progress_bar(None, "measuring maps", progress) as bar:
        for number, batch in enumerate(
            examples.task.batches(examples.tokenizer, longest_input(examples.model, examples.tokenizer))
        ):
            setting = f"{name}-{number:05d}"
            known = None if run is None else Quality.load(run, setting)
            if known is None:
                known = examiner(examples.inputs(batch), batch.index, batch.targets.get("relevant"))
                if run is not None:
                    known.store(run, setting)
            parts.append(known)
            bar.describe(f"measuring maps, {sum(len(part.index) for part in parts)} examples")
            bar.advance()
    return Quality.join(parts)


def _only(batch: Batch, place: int) -> Batch:
    """One row of a batch."""
    here = slice(place, place + 1)
    return Batch(
        index=batch.index[here],
        inputs={name: tensor[here] for name, tensor in batch.inputs.items()},
        labels=batch.labels[here],
        targets={name: tensor[here] for name, tensor in batch.targets.items()},
    )


def _about(
    task: Task, batch: Batch, number: int, folder: Path | None, reader: Reader
) -> tuple[str, list[str], Scene | None]:
    """Title, facts and image of an example."""
    label = float(batch.labels[0])
    facts = []
    if not hasattr(task, "picture") or getattr(task, "images", None) == "":  # vqa can do without its images
        names = getattr(task, "labels", ())
        if not np.isnan(label) and names and label.is_integer() and 0 <= label < len(names):
            facts.append(f"label: {names[int(label)]}")
        return f"example {number}", facts, None
    picture = task.picture(number)
    if picture.answers:
        said = "people answered" if picture.question else "label"
        facts.append(f"{said}: {', '.join(shorten(answer, str, 40) for answer in picture.answers)}")
    title = picture.question or f"example {number}"
    image = _seen(picture.image, getattr(reader.tokenizer, "image_processor", reader.tokenizer))
    path = "" if folder is None else str(_stored(image, folder / f"image-{number}.png"))
    high, wide = image.shape[:2]
    marks = batch.targets.get("relevant")
    relevant = () if marks is None else tuple(torch.nonzero(marks[0] == 1)[:, 0].tolist())
    boxes = picture.boxes if len(picture.boxes) else None
    return title, facts, Scene(path, wide, high, boxes, relevant)


def _stored(image: NDArray[np.uint8], path: Path) -> Path:
    """The file that an image ``[height, width, 3]`` is written to."""
    from PIL import Image

    with storage(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return path


def _seen(image: NDArray[np.uint8], prepare: Any) -> NDArray[np.uint8]:
    """The middle of an image ``[height, width, 3]``, where its processor crops it: a model does not see the margins."""
    if not getattr(prepare, "do_center_crop", False):
        return image
    size, crop = (dict(getattr(prepare, name, None) or {}) for name in ("size", "crop_size"))
    lengths = image.shape[:2]
    resized: tuple[float, float] = lengths
    if getattr(prepare, "do_resize", True):
        factor = size.get("shortest_edge", min(lengths)) / min(lengths)
        resized = size.get("height", lengths[0] * factor), size.get("width", lengths[1] * factor)
    kept = []
    for length, whole, side in zip(lengths, resized, ("height", "width"), strict=True):
        part = max(1, round(length * min(1.0, crop.get(side, whole) / whole)))
        kept.append(slice((length - part) // 2, (length - part) // 2 + part))
    return image[kept[0], kept[1]]
