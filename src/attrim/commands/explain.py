"""``attrim explain``: which tokens and regions an answer comes from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from ..errors import DataError, ParameterError
from ..studies.bench import Bench
from .base import Command, Outcome, register

if TYPE_CHECKING:
    from ..core.charts import Chart, RelevanceStrip
    from ..maps.examples import Examples
    from ..maps.explainer import Explainer, MapOptions
    from ..maps.quality import Quality, QualityOptions
    from ..tasks.base import Task

PageFormat = Literal["png", "svg", "pdf", "html"]
ROWS = ("", "first", "last", "before-last", "mean", "mean-after-first")


@register("explain")
@dataclass(frozen=True, kw_only=True)
class Explain(Command, Bench):
    """Show which tokens and regions a model's answers come from, with more and more heads left out."""

    task: Annotated[Any, arg(constructor=str)] = ""
    """Name of the task that gives the examples (attrim ls tasks)."""
    output: Path | None = None
    """Folder to write pictures, numbers and a page to; --quality that was interrupted resumes there."""
    examples: tuple[int, ...] = ()
    """Numbers of the examples of the task to explain (default: 0, or none with --quality)."""
    text: tuple[str, ...] = ()
    """Texts to explain, written out here instead of taken from a task."""
    pair: tuple[str, ...] = ()
    """The second text of each --text, such as the paragraph of a question."""
    levels: tuple[float, ...] = (0.0, 0.4, 0.6, 0.9)
    """Shares of the heads to leave out, those with the lowest gradient x attention of the example first."""
    mask_in: Literal["aggregation", "model", "both"] = "aggregation"
    """Where heads are missing: in the average over heads, or in the model, which is differentiated without them."""
    target: str = "predicted"
    """Which answer is explained: predicted, label, or the number of an answer."""
    use: Literal["attention", "lrp"] = "attention"
    """What the gradient is multiplied by: attention, or the relevance that LRP gives to it."""
    rules: Literal["original", "safe"] = "original"
    """Rules of LRP."""
    start_layer: int = 0
    """Leave out self-attention of the layers below; negative numbers count from the end."""
    normalize: bool = True
    """Scale what self-attention mixed before attention between sequences; only for these."""
    self_in_cross_rule: bool = True
    """Take what self-attention mixed into attention between sequences at all; only for these."""
    as_coded: bool = False
    """As the original's code, in which one token without relevance empties all regions; only for two sequences."""
    row: str = ""
    """Token that the model's head reads: first, last, before-last, mean, mean-after-first or a number (default: by
    architecture)."""
    where: str = ""
    """Of a model that answers at every token, the one to explain: last, all, or a number."""
    scale: Literal["shared", "each"] = "shared"
    """One colour scale for all levels, or one for each."""
    normalise: Literal["mask", "scores"] = "mask"
    """Scale the painted image to 0 and 1, or the numbers of regions before they are painted."""
    formats: tuple[PageFormat, ...] = ("png", "svg", "html")
    """Formats of the pictures; html is one page with all examples."""
    quality: bool = False
    """Measure the maps of all examples (--limit): pointing game, deletion and insertion, with intervals."""
    part: str = ""
    """What --quality removes: regions, patches, tokens or source (default: the first of these that there is)."""
    measure_of: Literal["probability", "logit"] = "probability"
    """What of the answer --quality follows while the input changes."""

    def run(self) -> Outcome:
        """Explain the examples, and measure the maps of all of them."""
        from ..core.charts import dump
        from ..report.terminal import show

        self._check()
        strips = self._strips()
        data: dict[str, Any] = {"model": self.name, "files": []}
        shown: list[Any] = [part for strip in strips for part in (show(strip), "")]
        if strips:
            data["examples"] = [dump(strip) for strip in strips]
            data["files"] += self._write_examples(strips, data["examples"])
        if self.quality:
            quality = self._quality()
            data["quality"] = quality.summary()
            data["files"] += self._write_quality(quality)
            shown += [show(quality.table()), ""]
        notes = [f"Everything is in {self.output}:", *data["files"]] if data["files"] else []
        return Outcome(data, [*shown, *notes])

    def _check(self) -> None:
        """Refuse what does not go together."""
        from ..core.site import Select

        if bool(self.task) == bool(self.text):
            raise DataError("What to explain is missing or said twice; give either --task, or --text.")
        if self.pair and not self.text:
            raise DataError("--pair gives second texts for --text; give the first ones, too.")
        if self.text and (self.examples or self.data or self.option or self.quality):
            raise DataError("--examples, --data, --option and --quality are about a --task; leave them out here.")
        if self.select() != Select():
            raise ParameterError("--select-... has no effect on maps, which are of all heads; leave it out.")
        if not self.quality and (self.part or self.measure_of != "probability"):
            raise ParameterError("--part and --measure-of are about --quality; add it, or leave them out.")

    def _strips(self) -> list[RelevanceStrip]:
        """The chart of every example that is asked for."""
        from ..maps.examples import explain_examples

        wanted = tuple(range(len(self.text))) if self.text else self.examples
        if not wanted and self.quality:
            return []
        folder = None if self.output is None else self.output / "images"
        return explain_examples(
            self._explainer,
            self._examples,
            wanted or (0,),
            self.levels,
            folder,
            shared=self.scale == "shared",
            normalise=self.normalise,
            progress=self.progress,
        )

    def _quality(self) -> Quality:
        from ..maps.examples import examine
        from ..maps.quality import Examiner

        options = self._quality_options()
        examiner = Examiner(self._explainer, self.levels, options)
        if self.output is None:
            return examine(examiner, self._examples, progress=self.progress)
        identity = {
            "levels": list(self.levels),
            "maps": dataclasses.asdict(self.map_options),
            "quality": dataclasses.asdict(options),
        }
        with self.begin("explain", identity) as bench:
            found = examine(examiner, self._examples, bench.require_run(), progress=self.progress)
            bench.require_run().finish()
            return found

    def _write_examples(self, strips: list[RelevanceStrip], examples: list[Any]) -> list[str]:
        """Write pictures, page and numbers to the output folder, and return the files."""
        from ..report.page.single_file import write_charts

        if self.output is None:
            return []
        files = self._drawn(strips)
        if "html" in self.formats:
            files.append(write_charts(strips, self.output / "explained.html", f"{self.name}: explained answers"))
        values = {"model": self.name, "maps": dataclasses.asdict(self.map_options), "examples": examples}
        return [str(file) for file in (*files, self._write_json("explained.json", values))]

    def _write_quality(self, quality: Quality) -> list[str]:
        """Write curves, table and numbers to the output folder, and return the files."""
        from ..report.sheets import write_tables

        if self.output is None:
            return []
        files = [*self._drawn(quality.charts()), *write_tables([quality.table()], self.output)]
        values = {"model": self.name, "maps": dataclasses.asdict(self.map_options), **quality.summary()}
        return [str(file) for file in (*files, self._write_json("quality.json", values))]

    def _drawn(self, charts: Sequence[Chart]) -> list[Path]:
        from ..report.drawing import save_all

        assert self.output is not None
        formats = [name for name in self.formats if name != "html"]
        return save_all(charts, self.output, formats, progress=self.progress) if formats else []

    def _write_json(self, name: str, values: dict[str, Any]) -> Path:
        from ..runs.files import replace_file, storage

        assert self.output is not None
        with storage(self.output):
            self.output.mkdir(parents=True, exist_ok=True)
            replace_file(self.output / name, json.dumps(values, indent=1, ensure_ascii=False).encode())
        return self.output / name

    def load_model(self, **options: Any) -> Any:
        """Load the model with the head of the task; for texts with the one that it was saved with."""
        if self.text and not self.kind:
            return dataclasses.replace(self, kind="saved").load_model(**options)
        return super().load_model(**options)

    @cached_property
    def loaded_task(self) -> Task:
        """The task, or the texts that were given instead of one."""
        if not self.text:
            return self.make_task()
        from ..tasks.texts import Given

        length = Given.max_length if self.max_length is None else self.max_length
        return Given(texts=self.text, pairs=self.pair, max_length=length, batch_size=self.batch_size)

    @cached_property
    def map_options(self) -> MapOptions:
        """How maps are made."""
        from ..maps.explainer import MapOptions

        fields = ("mask_in", "use", "rules", "start_layer", "normalize", "self_in_cross_rule", "as_coded")
        target: Any = self.target if self.target in ("predicted", "label") else _whole(self.target, "target")
        row: Any = self.row if self.row in ROWS else _whole(self.row, "row")
        where: Any = self.where if self.where in ("", "last", "all") else _whole(self.where, "where")
        if self.text and where == "":
            where = self._where_of_text()
        zero_shot = getattr(self.loaded_task, "kind", "") == "zero-shot-image-classification"
        return MapOptions(
            target=target,
            row=row,
            where=where,
            texts="answers" if zero_shot else "",
            **{name: getattr(self, name) for name in fields},
        )

    def _where_of_text(self) -> Any:
        """A text that a model writes is explained as a whole; a masked token, where there is one."""
        config = getattr(self.loaded_model, "config", None)
        if getattr(config, "is_encoder_decoder", False) and self.loaded_model.can_generate():
            return "all"
        mask = getattr(self.loaded_tokenizer, "mask_token_id", None)
        masked = type(self.loaded_model).__name__.endswith("ForMaskedLM") and mask is not None
        if masked and len(self.text) == 1:
            tokens = self.loaded_tokenizer(*self.text, *self.pair)["input_ids"]
            return tokens.index(mask) if mask in tokens else ""
        return ""

    @cached_property
    def _explainer(self) -> Explainer:
        from ..maps.explainer import Explainer

        model = self.loaded_model
        self.loaded_task.check(model)
        return Explainer(model, self.map_options)

    @cached_property
    def _examples(self) -> Examples:
        from ..maps.examples import Examples

        labels = self.target == "label"
        return Examples(self.loaded_task, self.loaded_model, self.loaded_tokenizer, labels=labels)

    def _quality_options(self) -> QualityOptions:
        from ..maps.quality import QualityOptions

        return QualityOptions.of(self.loaded_tokenizer, part=self.part, measure=self.measure_of, seed=self.seed)


def _whole(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ParameterError(f"--{name} {text!r} is not one of its words and not a whole number; see --help.") from None
