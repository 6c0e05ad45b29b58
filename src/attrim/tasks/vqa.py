"""Visual question answering: VQA v2 (Goyal et al. 2017, https://arxiv.org/abs/1612.00837) with features of regions.

Questions come from the JSON files of VQA v2, or from those of LXMERT (Tan and Bansal 2019,
https://arxiv.org/abs/1908.07490), whose answers have their scores already.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..core.documents import MOST_BYTES, parse_json
from ..core.paths import home_path
from ..errors import DataError
from ..runs.result import Metric
from .base import Array, register
from .encoding import Example
from .pictures import image_files, read_image
from .reading import find_file, lines, open_text, text_value, warn_once
from .region_files import RegionFile, image_key
from .visual import Picture, VisualQuestions, soft_scores, visual_metrics

KINDS = ("yes/no", "number", "other")
UNKNOWN = ("<unk>", "[UNK]", "unk")
"""Entries of answer lists that stand for all other answers; a model's choice is never one of them."""
ALL = "all"
# Names of the splits in the files of VQA v2, of LXMERT and of others.
_SPLITS = {
    "train": ("train2014", "train"),
    "validation": ("val2014", "valid", "validation", "val", "minival"),
    "test": ("test2015", "test"),
}
_QUESTIONS = ("v2_OpenEnded_mscoco_{}_questions.json", "OpenEnded_mscoco_{}_questions.json", "vqa_questions_{}.json")
_ANNOTATIONS = ("v2_mscoco_{}_annotations.json", "mscoco_{}_annotations.json", "vqa_annotations_{}.json")
_SCORED = ("{}.json",)
_ANSWERS = ("trainval_label2ans.json", "trainval_ans2label.json", "answers_vqa.txt", "answers.txt", "answers.json")


@dataclass(frozen=True)
class Asked:
    """A question as its file has it.

    Attributes
    ----------
    number : the question's id.
    image : key of the image (:func:`~attrim.tasks.region_files.image_key`).
    scores : the score of each answer; None when no answers are known.
    """

    number: str
    image: str
    text: str
    scores: Mapping[str, float] | None
    kind: str


@register("vqa")
@dataclass(kw_only=True)
class Vqa(VisualQuestions):
    """Answer questions about photographs (VQA v2) from features of their regions. Soft accuracy, and by question.

    Parameters
    ----------
    data : folder with the questions and annotations of VQA v2, or with LXMERT's ``valid.json``; or such a file of
        LXMERT. Files may be plain or .gz.
    split : ``train``, ``validation``, ``test``, ``all`` of them, or another name in the files' names.
    questions, annotations : files of VQA v2, where the folder does not say it.
    answers : the list of answers in the order of the model's outputs: a JSON list, a JSON object with their numbers, or
        one answer a line; by default one in the folder. Lists of different models differ in their order.
    features : the regions: LXMERT's .tsv, plain or .gz, a .npz file, or a folder of them.
    images : folder with the images, for pictures only.
    """

    split: str = "validation"
    questions: str = ""
    annotations: str = ""
    answers: str = ""
    features: str = ""
    images: str = ""
    max_length: int = 128

    kinds: ClassVar[tuple[str, ...]] = KINDS
    metrics: ClassVar[Mapping[str, Metric]] = visual_metrics(KINDS)

    def __getstate__(self) -> dict[str, Any]:
        # Whoever gets the pickle reads the files again.
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}

    @cached_property
    def answer_list(self) -> Sequence[str]:
        """The texts of the answers, in the order of the model's outputs."""
        return read_answers(self._answer_file)

    @property
    def answer_source(self) -> str:
        """The file of the answers."""
        return str(self._answer_file)

    @property
    def feature_source(self) -> str:
        """The file of the regions."""
        return self.features

    @property
    def feature_width(self) -> int:
        """How many numbers the file has for a region."""
        return self.regions.feature_width

    @cached_property
    def asked(self) -> list[Asked]:
        """All questions of the split, those about images without regions too."""
        return [question for files in self._files() for question in read_questions(*files)]

    @cached_property
    def regions(self) -> RegionFile:
        """The regions of the images that are asked about."""
        if not self.features:
            raise DataError(
                "The task vqa needs features of image regions; give a file with --option features=FILE (LXMERT's .tsv, "
                "or .npz)."
            )
        return RegionFile(home_path(self.features), {question.image for question in self.asked})

    def read(self) -> Iterator[Example]:
        """Yield every question whose image has regions; how many have none is said on the log."""
        numbers = {answer: number for number, answer in enumerate(self.answer_list)}
        regions = self.regions
        seen = [question for question in self.asked if question.image in regions.images]
        if not seen:
            raise DataError(
                f"None of the {len(self.asked):,} questions is about an image that {self.features} has regions of; "
                "give the features of the images that belong to the questions."
            )
        if len(seen) < len(self.asked):
            missing = len(self.asked) - len(seen)
            warn_once(
                f"{missing:,} of {len(self.asked):,} questions are about images that {self.features} has no regions "
                "of, and are left out."
            )
        for question in seen:
            scored = {numbers[answer]: score for answer, score in (question.scores or {}).items() if answer in numbers}
            answers = tuple(sorted(scored.items(), key=lambda pair: -pair[1]))
            label = float(answers[0][0]) if answers else None
            facts = (answers, KINDS.index(question.kind), question.image, question.scores is not None)
            yield Example((question.text,), label, facts, arrays=_Stored(regions, question.image))

    def columns(self, outputs: Array, labels: Array) -> dict[str, Array]:
        """The answers of the model and what they are worth; an answer that nobody gave is worth 0."""
        unknown = sum(not example.answers[3] for example in self.examples())
        if unknown:
            raise DataError(
                f"{unknown} of the {len(labels)} questions of {self.split} have no answers; give their annotations, or "
                "another split."
            )
        return super().columns(outputs, labels)

    def predictions(self, outputs: Array) -> Any:
        """The number of the model's answer to every question, never that of the unknown token."""
        masked = [place for place, answer in enumerate(self.answer_list) if answer in UNKNOWN]
        outputs = outputs.copy()
        outputs[:, masked] = -np.inf
        return super().predictions(outputs)

    def picture(self, index: int) -> Picture:
        """The photograph, its regions, the question and the answers that are in the list."""
        example = self.example(index)
        answers, _, image, _ = example.answers
        if not self.images:
            raise DataError("Pictures of vqa need the images; give their folder with --option images=FOLDER.")
        files = image_files(home_path(self.images))
        if image not in files:
            raise DataError(f"{self.images} has no image {image}; give the folder that holds it.")
        boxes = self.regions.read(image).boxes
        return Picture(
            read_image(files[image]), boxes, example.texts[0], tuple(self.answer_list[number] for number, _ in answers)
        )

    @cached_property
    def _answer_file(self) -> Path:
        if self.answers:
            return home_path(self.answers)
        found = find_file([home_path(self.data)], _ANSWERS) if self.data is not None else None
        if found is None:
            raise DataError(
                "The task vqa needs the list of answers of the model; give it with --option answers=FILE, or put one "
                f"of {', '.join(_ANSWERS)} into the folder of the data."
            )
        return found

    def _files(self) -> list[tuple[Path, Path | None]]:
        """The files with questions, each with that of its annotations, if it has any."""
        if self.questions:
            return [(home_path(self.questions), home_path(self.annotations) if self.annotations else None)]
        if self.data is None:
            raise DataError("The task vqa reads local files; give the folder of the questions as data.")
        folder = home_path(self.data)
        if not folder.is_dir():
            return [(folder, None)]
        splits = _SPLITS if self.split == ALL else [self.split]
        found = [files for split in splits if (files := _split_files(folder, split)) is not None]
        if not found:
            name = _QUESTIONS[-1].format(_SPLITS.get(self.split, (self.split,))[-1])
            raise DataError(
                f"{folder} has no questions of the split {self.split!r} (such as {name}, plain or .gz); give the file "
                "as questions."
            )
        return found


class _Stored(Mapping[str, Array]):
    """The arrays of an example, read when they are needed: training shuffles more examples than memory holds."""

    def __init__(self, regions: RegionFile, image: str) -> None:
        self._regions, self._image = regions, image
        self._readers: dict[str, Callable[[], Array]] = {
            "visual_feats": lambda: regions.read(image).features,
            "visual_pos": lambda: regions.read(image).positions(),
        }

    def __getitem__(self, name: str) -> Array:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def read_answers(path: Path) -> list[str]:
    """The list of answers: a JSON list, a JSON object with their numbers from 0 on, or one answer a line."""
    if ".json" not in path.suffixes:
        answers = list(lines(path))
        while answers and not answers[-1]:
            answers.pop()
    else:
        values = _json(path)
        if isinstance(values, dict):
            if sorted(values.values(), key=str) != sorted(range(len(values)), key=str):
                raise DataError(f"{path} must number its answers from 0 to {len(values) - 1}, each number once.")
            values = sorted(values, key=values.__getitem__)
        if not isinstance(values, list) or not all(isinstance(answer, str) for answer in values):
            raise DataError(
                f"{path} is no list of answers; a JSON list of texts, or an object with numbers, is needed."
            )
        answers = values
    known: dict[str, int] = {}
    for place, answer in enumerate(answers):
        if answer in known:
            raise DataError(f"{path} has the answer {answer!r} twice, at {known[answer]} and at {place}; remove one.")
        known[answer] = place
    if not answers:
        raise DataError(f"{path} has no answers.")
    return answers


def read_questions(path: Path, annotations: Path | None) -> list[Asked]:
    """The questions of a file of VQA v2, with the answers of another, or those of a file of LXMERT."""
    values = _json(path)
    if isinstance(values, list):
        return [_record(_scored, record, path, place) for place, record in enumerate(values)]
    if not isinstance(values, dict) or not isinstance(values.get("questions"), list):
        raise DataError(
            f"{path} has no list of questions; files of VQA v2 have 'questions', those of LXMERT are a list."
        )
    answered: dict[str, Any] = {}
    if annotations is not None:
        known = _json(annotations)
        if not isinstance(known, dict) or not isinstance(known.get("annotations"), list):
            raise DataError(f"{annotations} has no list of 'annotations'; give the annotations of VQA v2.")
        for place, record in enumerate(known["annotations"]):
            number, *facts = _record(_annotated, record, annotations, place)
            answered[number] = facts
    return [
        _record(lambda record: _plain(record, answered), record, path, place)
        for place, record in enumerate(values["questions"])
    ]


def _record(read: Callable[[Any], Any], record: Any, path: Path, place: int) -> Any:
    try:
        return read(record)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"Entry {place} of {path} cannot be used ({what}); repair or remove it.") from error


def _plain(record: Any, answered: Mapping[str, Any]) -> Asked:
    number = str(record["question_id"])
    scores, kind = answered.get(number, (None, "other"))
    return Asked(number, image_key(record["image_id"]), text_value(record["question"]), scores, kind)


def _annotated(record: Any) -> tuple[str, dict[str, float], str]:
    given = [text_value(answer["answer"]).strip().lower() for answer in record["answers"]]
    if not given:
        raise ValueError("it has no answers")
    scores = soft_scores(given)
    return str(record["question_id"]), scores, _kind(record, scores)


def _scored(record: Any) -> Asked:
    scores = (
        {text_value(answer): float(score) for answer, score in record["label"].items()} if "label" in record else None
    )
    number = str(record["question_id"])
    return Asked(number, image_key(record["img_id"]), text_value(record["sent"]), scores, _kind(record, scores or {}))


def _kind(record: Any, scores: Mapping[str, float]) -> str:
    """The kind of a question, from its record, or from its best answer."""
    best = max(scores, key=scores.__getitem__, default="")
    guessed = "yes/no" if best in ("yes", "no") else "number" if best.isdecimal() else "other"
    kind = str(record.get("answer_type", guessed))
    return kind if kind in KINDS else guessed


def _json(path: Path) -> Any:
    with open_text(path) as stream:
        try:
            return parse_json(stream.read(MOST_BYTES))
        except UnicodeDecodeError:
            raise  # open_text has a sentence for it
        except ValueError as error:
            raise DataError(f"{path} is not JSON ({error}); fetch it again.") from error


def _split_files(folder: Path, split: str) -> tuple[Path, Path | None] | None:
    names = _SPLITS.get(split, (split,))
    named = lambda patterns: [pattern.format(name) for name in names for pattern in patterns]
    questions = find_file([folder], named(_QUESTIONS))
    if questions is not None:
        return questions, find_file([folder], named(_ANNOTATIONS))
    scored = find_file([folder], named(_SCORED))
    return None if scored is None else (scored, None)
