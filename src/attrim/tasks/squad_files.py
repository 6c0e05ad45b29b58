"""Questions of SQuAD with their accepted answers, from local JSON files or the hub.

Versions 1.1 (Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250) and 2.0, which has questions without answer
(Rajpurkar et al. 2018, https://arxiv.org/abs/1806.03822).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.documents import MOST_BYTES, parse_json
from ..core.paths import home_path
from ..errors import DataError
from .encoding import Example
from .reading import find_file, open_text, text_value

Paragraph = tuple[str, list[dict[str, Any]]]
NAMES = ("dev-v1.1.json", "dev-v2.0.json", "train-v1.1.json")


@dataclass(frozen=True)
class Question(Example):
    """A question about a paragraph.

    Attributes
    ----------
    texts : question and paragraph.
    answers : pairs of text and first character in the paragraph; none means that there is no answer.
    name : the question's id in the data.
    """

    name: str = ""


def squad_file(data: str | None, names: Sequence[str] = NAMES) -> Path:
    """Return the file itself, or the first of the named files in a folder, plain or gzip."""
    if data is None:
        raise DataError("SQuAD paragraphs come from a local file; give its path as data (dev-v1.1.json, plain or .gz).")
    path = home_path(data)
    if not path.is_dir():
        return path
    found = find_file([path], names)
    if found is None:
        raise DataError(f"{path} holds none of {', '.join(names)} (plain or .gz); give the file itself as data.")
    return found


def squad_records(path: Path) -> Iterator[list[Paragraph]]:
    """Yield for every article of a SQuAD JSON file its paragraphs, each with the records of its questions."""
    with open_text(path) as stream:
        try:
            articles = [
                [
                    (text_value(paragraph["context"]), [_record(question) for question in paragraph["qas"]])
                    for paragraph in article["paragraphs"]
                ]
                for article in parse_json(stream.read(MOST_BYTES))["data"]
            ]
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            if isinstance(error, UnicodeDecodeError):
                raise  # open_text has a sentence for it
            raise DataError(f"{path} is not in SQuAD's JSON format ({error}); fetch it again.") from error
    yield from articles


def squad_articles(data: str | None) -> Iterator[list[tuple[str, list[str]]]]:
    """Yield for every article of a SQuAD JSON file its paragraphs, each with its questions.

    Parameters
    ----------
    data : the file, plain or gzip, or a folder that holds ``dev-v1.1.json``.
    """
    for article in squad_records(squad_file(data)):
        yield [(context, [record["question"] for record in records]) for context, records in article]


def questions_of_file(path: Path) -> Iterator[Question]:
    """Yield every question of a SQuAD JSON file."""
    for article in squad_records(path):
        for context, records in article:
            for record in records:
                yield Question((record["question"], context), None, record["answers"], record["id"])


def questions_of_hub(rows: Iterable[dict[str, Any]]) -> Iterator[Question]:
    """Yield the questions of ``rajpurkar/squad`` or ``rajpurkar/squad_v2``, as the hub lays them out."""
    for row in rows:
        answers = tuple(zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True))
        yield Question((row["question"], row["context"]), None, answers, row["id"])


def _record(question: dict[str, Any]) -> dict[str, Any]:
    """The question, its id and its answers; a question that has no answer has none here (v2 lists plausible ones)."""
    answers = () if question.get("is_impossible") else question.get("answers", ())
    return {
        "question": text_value(question["question"]),
        "id": str(question.get("id", "")),
        "answers": tuple((text_value(answer["text"]), int(answer["answer_start"])) for answer in answers),
    }
