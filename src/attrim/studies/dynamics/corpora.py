"""The data of the dynamics studies as token numbers: published sets by name, one's own files, or generated sentences.

A published set is read from a folder that has it as its authors publish it, or as the released code of the paper keeps
it: ``NAME_train.json`` and ``NAME_test.json`` with ``vocab`` and ``XY``, or files of parallel sentences.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...core import record
from ...core.documents import Unreadable, read_json
from ...core.paths import home_path
from ...errors import DataError, UnknownName, shorten
from ...models.vocabulary import SpecialTokens, train_tokenizer
from ...tasks.own_files import label_text, records, text_cell
from ...tasks.reading import find_file, lines, open_text, require_parallel
from .generated import BOS, EOS, UNKNOWN, Keywords, Lexicon

Texts = list[tuple[str, str]]
"""Texts and the names of their labels."""
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
LEAST = 3
"""A word that occurs less often is unknown."""
GENERATED = 500
"""How many sentences of generated data probes are read on, unless fewer are asked for."""
HELD_OUT = 0.1
"""Share of the training data, 1,000 examples at most, that chooses checkpoints and is not trained on."""


@dataclass(frozen=True)
class Corpus:
    """Examples as token numbers: a text and its class, or a source and a target.

    Attributes
    ----------
    vocabulary : the token of each number.
    training, held_out, validation : pairs of token numbers and of a class (0 or 1) or token numbers.
    pairs : whether targets are texts.
    references : what the targets of the validation data are as texts, where that is known.
    """

    name: str
    vocabulary: list[str]
    training: list[list[Any]]
    held_out: list[list[Any]]
    validation: list[list[Any]]
    pairs: bool = False
    references: list[str] | None = None

    def __post_init__(self) -> None:
        for part in ("training", "held_out", "validation"):
            examples = getattr(self, part)
            if not examples:
                raise DataError(f"The data set {self.name} has no {part.replace('_', '-')} examples; use a larger one.")
            if not self.pairs and not {label for _, label in examples} <= {0, 1}:
                labels = sorted({str(label) for _, label in examples})
                raise DataError(
                    f"The data set {self.name} has the labels {shorten(', '.join(labels), str)}, not 0 and 1; reduce "
                    "it to two classes with --classes FIRST SECOND."
                )
            for example in examples:
                texts = example if self.pairs else example[:1]
                if any(not text or max(text) >= len(self.vocabulary) or min(text) < 0 for text in texts):
                    raise DataError(f"The data set {self.name} has token numbers that its vocabulary does not have.")

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return len(self.vocabulary)

    def digest(self) -> str:
        """A hash of everything."""
        return hashlib.sha256(json.dumps(record.dump(self)).encode()).hexdigest()

    def cut(self, longest: int | None) -> Corpus:
        """Every text cut to so many tokens, the end token kept as the last."""
        if longest is None:
            return self

        def short(text: list[int]) -> list[int]:
            return text if len(text) <= longest else [*text[: longest - 1], text[-1]]

        def both(examples: list[list[Any]]) -> list[list[Any]]:
            return [[short(first), short(second) if self.pairs else second] for first, second in examples]

        parts = {part: both(getattr(self, part)) for part in ("training", "held_out", "validation")}
        return Corpus(self.name, self.vocabulary, **parts, pairs=self.pairs, references=self.references)


def _held_out(examples: list[list[Any]], seed: int = 1) -> tuple[list[list[Any]], list[list[Any]]]:
    """Training and held-out examples; which of them are held out depends on their number alone."""
    size = max(1, min(1000, round(HELD_OUT * len(examples))))
    chosen = set(random.Random(seed).sample(range(len(examples)), min(size, max(1, len(examples) - 1))))
    kept = [example for place, example in enumerate(examples) if place not in chosen]
    return kept, [examples[place] for place in sorted(chosen)]


# Classification


@dataclass(frozen=True)
class Published:
    """A published data set: its folder, how each split is read, and its two classes where it has more.

    Attributes
    ----------
    missing : what of it cannot be had without its hub or its owners, where that is known.
    """

    folder: str
    read: Callable[[Path, str], Iterator[tuple[str, str]]]
    classes: tuple[str, str] | None = None
    missing: str = ""


def _find(folder: Path, *names: str) -> Path:
    path = find_file([folder], names)
    if path is None:
        raise DataError(
            f"{folder} holds none of {', '.join(names)} (plain or .gz); see docs/dynamics.md for its files."
        )
    return path


def _json_texts(folder: Path, split: str) -> Iterator[tuple[str, str]]:
    yield from read_texts(_find(folder, f"{split}.jsonl", f"{split}.json"))


def _sms(folder: Path, split: str) -> Iterator[tuple[str, str]]:
    """There is one file; every fifth message is for testing."""
    for number, line in enumerate(lines(_find(folder, "SMSSpamCollection", "SMSSpamCollection.txt"))):
        label, _, text = line.partition("\t")
        if text and (number % 5 == 4) == (split == "test"):
            yield text, label


def _ag_news(folder: Path, split: str) -> Iterator[tuple[str, str]]:
    """The official files have class, title and text; a part of the training data is around with text and class - 1."""
    path = _find(folder, f"{split}.csv", *(["train_5k.csv"] if split == "train" else []))
    with open_text(path) as stream:
        for row in csv.reader(stream):
            if len(row) == 3:
                yield f"{row[1]} {row[2]}", row[0]
            elif len(row) == 2:
                yield row[0], str(int(row[1]) + 1)


def _yelp(folder: Path, split: str) -> Iterator[tuple[str, str]]:
    """Short sentences in a file for each class."""
    names = {"train": ("train", "dev"), "test": ("test",)}[split]
    for label in ("0", "1"):
        path = _find(folder, *(f"sentiment.{name}.{label}" for name in names))
        for line in lines(path):
            if line.strip():
                yield line, label


def _tables(*names: tuple[str, str]) -> Callable[[Path, str], Iterator[tuple[str, str]]]:
    """Tab-separated files ``sentence, label``, in the folder or in the folders inside of it."""
    wanted = dict(names)

    def read(folder: Path, split: str) -> Iterator[tuple[str, str]]:
        places = (
            [folder]
            if find_file([folder], [wanted[split]])
            else sorted(one for one in folder.iterdir() if one.is_dir())
        )
        for place in places:
            yield from read_texts(_find(place, wanted[split]))

    return read


SOURCES: dict[str, Published] = {
    "IMDB": Published("imdb", _json_texts),
    "Furd": Published("glue/SST-2", _tables(("train", "train.tsv"), ("test", "dev.tsv"))),
    "AG_News": Published("ag_news", _ag_news, ("1", "3"), "the full training split"),
    "Newsgroups": Published("20newsgroups", _json_texts, ("rec.sport.baseball", "rec.sport.hockey")),
    "Yelp": Published("yelp_sentences", _yelp, None, "the reviews, for which short sentences stand,"),
    "Amzn": Published(
        "amazon_blitzer", _tables(("train", "train.tsv"), ("test", "dev.tsv")), None, "the large review set"
    ),
    "SMS": Published("sms_spam", _sms, ("ham", "spam")),
}
"""The classification sets of the paper. AG News (world against business) and 20 Newsgroups (baseball against hockey)
are reduced to two classes as Jain and Wallace (2019, https://arxiv.org/abs/1902.10186) do."""
ALIASES = {
    "sns": "SMS",
    "sst2": "Furd",
    "sst-2": "Furd",
    "amazon": "Amzn",
    "20newsgroups": "Newsgroups",
    "agnews": "AG_News",
}


def known_name(name: str, known: Sequence[str]) -> str:
    """The name of a data set as the paper writes it, whatever the case, or by an alias."""
    tidy = name.strip().lower()
    found = {one.lower(): one for one in known}
    found |= {alias: real for alias, real in ALIASES.items() if real in known}
    if tidy not in found:
        raise UnknownName("data set", name, [*known, *(alias for alias in ALIASES if ALIASES[alias] in known)])
    return found[tidy]


def read_texts(path: Path, text: str = "", label: str = "") -> Texts:
    """Texts and labels of a .csv, .tsv, .jsonl or .json file, plain or .gz; columns that are not named are guessed."""
    stem = path.stem if path.suffix == ".gz" else path.name
    rows = _tsv(path) if stem.endswith(".tsv") else records(path)
    found = []
    for where, row in rows:
        text = text or _column(where, row, ("text", "sentence", "review", "content"), "text")
        label = label or _column(where, row, ("label", "class", "category", "sentiment", "stars"), "label")
        found.append((text_cell(where, row, text), label_text(where, row.get(label), label)))
    return found


def _tsv(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a tab-separated file with a header; a text may be in quotes and go over several lines."""
    with open_text(path) as stream:
        first = stream.readline()
        rest = stream.read()
    names = first.rstrip("\r\n").split("\t")
    quoted = rest.count("\n") > 0 and any(
        line.startswith('"') and line.count('"') % 2 for line in rest.split("\n")[:1000]
    )
    rows = csv.reader(
        io.StringIO(rest, newline=""), delimiter="\t", quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    )
    for row in rows:
        if len(row) == len(names):
            yield f"Line {rows.line_num + 1} of {path}", dict(zip(names, row, strict=True))
        elif any(cell.strip() for cell in row):
            raise DataError(f"Line {rows.line_num + 1} of {path} has {len(row)} columns, not {len(names)}; repair it.")


def _column(where: str, row: dict[str, Any], guesses: Sequence[str], what: str) -> str:
    for name in guesses:
        if name in row:
            return name
    raise DataError(f"{where} has no column for the {what} (it has {shorten(', '.join(row), str)}); rename one.")


def words_of(text: str) -> list[str]:
    """The words and signs of a text in lower case."""
    from tokenizers import pre_tokenizers

    split = pre_tokenizers.Whitespace().pre_tokenize_str(text.lower())
    return [word for word, _ in split]


def classification(
    name: str,
    training: Texts,
    validation: Texts,
    *,
    classes: tuple[str, str] | None = None,
    size: int | None = None,
) -> Corpus:
    """The corpus of texts: a word is known if it occurs at least three times, the most frequent first.

    Parameters
    ----------
    classes : the labels that count as 0 and 1; texts with others are left out. By default the two that there are.
    size : how many validation texts are used, from the first.
    """
    if classes is None:
        found = sorted({label for _, label in training})
        if len(found) != 2:
            raise DataError(
                f"The data set {name} has {len(found)} labels ({shorten(', '.join(found), str)}), not two; reduce it "
                "with --classes FIRST SECOND."
            )
        classes = (found[0], found[1])
    number = {label: place for place, label in enumerate(classes)}
    parts = [
        [(words_of(text), number[label]) for text, label in part if label in number] for part in (training, validation)
    ]
    if not parts[0] or not parts[1]:
        raise DataError(f"The data set {name} has no texts with the labels {classes[0]!r} and {classes[1]!r}.")
    counts = Counter(word for words, _ in parts[0] for word in words)
    vocabulary = [*SPECIAL, *(word for word, times in counts.most_common() if times >= LEAST and word not in SPECIAL)]
    place = {word: number for number, word in enumerate(vocabulary)}

    def numbered(part: list[tuple[list[str], int]]) -> list[list[Any]]:
        return [[[BOS, *(place.get(word, UNKNOWN) for word in words), EOS], label] for words, label in part]

    trained, held_out = _held_out(numbered(parts[0]))
    return Corpus(name, vocabulary, trained, held_out, numbered(parts[1][:size]))


def _folders(name: str, folder: str | None, own: str) -> tuple[Path, Path]:
    """The folder of data sets, and the one in it that has a set: under its own name, that of the paper, or itself."""
    if folder is None:
        raise DataError(f"The data set {name} is read from a folder; give --data FOLDER (attrim fetches none).")
    place = home_path(folder, "folder of data sets")
    return place, next((one for one in (place / own, place / name, place) if one.is_dir()), place)


def read_classification(
    name: str, folder: str | None, *, classes: tuple[str, str] | None = None, size: int | None = None
) -> Corpus:
    """A classification set by name: generated (``keywords``), or a published one in a folder."""
    if name == "keywords":
        return keywords(size=min(size or GENERATED, GENERATED))
    name = known_name(name, [*SOURCES])
    source = SOURCES[name]
    place, inside = _folders(name, folder, source.folder)
    if (place / f"{name}_train.json").is_file():
        return read_released(name, place, size)
    try:
        training, validation = (list(source.read(inside, split)) for split in ("train", "test"))
    except DataError as error:
        raise _with_note(error, name, source.missing) from error
    # Files that are sorted by class would give a first part of one class only.
    validation = _interleaved(validation)
    return classification(name, training, validation, classes=classes or source.classes, size=size)


def _with_note(error: DataError, name: str, missing: str) -> DataError:
    """The error with what is known to be missing of a published set."""
    note = f" (of {name}, {missing} cannot be had freely)" if missing else ""
    return DataError(f"{str(error).rstrip('.')}{note}.")


def _interleaved(texts: Texts) -> Texts:
    """The texts in their order where that mixes the labels; otherwise shuffled by a fixed seed."""
    changes = sum(one[1] != other[1] for one, other in pairwise(texts))
    if changes >= max(1, len(texts) // 20):
        return texts
    shuffled = list(texts)
    random.Random(1).shuffle(shuffled)
    return shuffled


def read_released(name: str, folder: Path, size: int | None = None) -> Corpus:
    """A set as the released code keeps it; test ids are those of the training vocabulary."""
    parts = {split: _released_part(folder / f"{name}_{split}.json") for split in ("train", "test")}
    words = parts["train"][0]
    counts = Counter(token for tokens, _ in parts["train"][1] for token in tokens)
    order = [token for token, times in counts.most_common() if times >= LEAST]
    vocabulary = [*SPECIAL, *(words[token] for token in order)]
    place = {token: number + len(SPECIAL) for number, token in enumerate(order)}

    def numbered(part: list[list[Any]]) -> list[list[Any]]:
        return [[[BOS, *(place.get(token, UNKNOWN) for token in tokens), EOS], label] for tokens, label in part]

    trained, held_out = _held_out(numbered(parts["train"][1]))
    return Corpus(name, vocabulary, trained, held_out, numbered(parts["test"][1][:size]))


def _released_part(path: Path) -> tuple[list[str], list[list[Any]]]:
    try:
        found = read_json(path, "fetch it again")
    except Unreadable as error:
        raise DataError(f"{path} is not JSON ({error}); fetch it again.") from error
    if not isinstance(found, dict) or not isinstance(found.get("vocab"), list) or not isinstance(found.get("XY"), list):
        raise DataError(f"{path} is not a data set of the released code; it needs 'vocab' and 'XY'.")
    examples = []
    for number, example in enumerate(found["XY"]):
        try:
            tokens, label = example
            tokens = [int(token) for token in tokens]
            examples.append([tokens, int(label > 0.5)])
        except (TypeError, ValueError) as error:
            raise DataError(f"Entry {number} of XY in {path} is not [token numbers, label]; repair it.") from error
        if any(not 0 <= token < len(found["vocab"]) for token in tokens):
            raise DataError(f"Entry {number} of XY in {path} has token numbers that 'vocab' does not have.")
        if label not in (0, 1, 0.0, 1.0):
            raise DataError(f"Entry {number} of XY in {path} has the label {label}, not 0 or 1.")
    return [str(word) for word in found["vocab"]], examples


def keywords(count: int = 4000, size: int = GENERATED, data: Keywords | None = None) -> Corpus:
    """Generated sentences with planted words."""
    data = data or Keywords()
    trained, held_out = _held_out([list(one) for one in data.examples(count, 0)])
    words = [f"no-{number}" for number in range(data.keywords)] + [f"yes-{number}" for number in range(data.keywords)]
    words += [f"word-{number}" for number in range(data.words - 2 * data.keywords)]
    return Corpus("keywords", [*SPECIAL, *words], trained, held_out, [list(one) for one in data.examples(size, 1)])


# Translation

PARALLEL: dict[str, tuple[str, tuple[str, str], str]] = {
    "multi30k": ("multi30k", ("de", "en"), ""),
    "iwslt14": ("iwslt14_de_en", ("de", "en"), "the training split"),
    "news_commentary_v14_en_nl": ("news-commentary-v14-en-nl", ("src", "trg"), "all files"),
    "news_commentary_v14_en_pt": ("news-commentary-v14-en-pt", ("src", "trg"), "all files"),
    "news_commentary_v14_it_pt": ("news-commentary-v14-it-pt", ("src", "trg"), "all files"),
}
"""The translation sets of the paper: folder, endings of source and target, and what of it is not freely around."""
TRANSLATION_SPECIAL = SpecialTokens(
    {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}, "<s> $A </s>", "<s> $A </s> $B </s>"
)


def read_sentences(path: Path) -> list[str]:
    """Sentences of a file: one a line, or a JSON list of texts. Nothing after the last line end is a sentence."""
    found = list(lines(path))
    text = "\n".join(found)
    if text.lstrip().startswith("["):
        try:
            listed = json.loads(text)
        except ValueError as error:
            raise DataError(f"{path} begins like a JSON list but is none ({error}); repair it.") from error
        return [str(one) for one in listed]
    return found


def read_parallel(folder: Path, endings: tuple[str, str], split: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of sentences that are not empty."""
    return _together([_find(folder, *(f"{name}.{ending}" for name in split)) for ending in endings])


def _together(files: Sequence[Path]) -> list[tuple[str, str]]:
    sides = [read_sentences(file) for file in files]
    require_parallel(files, [len(side) for side in sides])
    return [
        (first.strip(), second.strip())
        for first, second in zip(*sides, strict=True)
        if first.strip() and second.strip()
    ]


def read_pairs(path: Path, ending: str) -> list[tuple[str, str]]:
    """Pairs of sentences of two files that differ in their ending, such as ``train.de`` and ``train.en``."""
    path = home_path(path)
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    target = find_file([path.parent], [f"{plain.stem}.{ending}"])
    if target is None:
        raise DataError(f"There is no file {plain.with_suffix('.' + ending)} beside {path}; see --target-ending.")
    return _together([path, target])


def translation(
    name: str,
    training: list[tuple[str, str]],
    validation: list[tuple[str, str]],
    *,
    vocab_size: int = 8000,
    size: int | None = None,
) -> Corpus:
    """The corpus of parallel sentences, with one vocabulary of subwords for both sides."""
    trained, held = _held_out([list(pair) for pair in training])
    tokenizer = train_tokenizer((text for pair in training for text in pair), TRANSLATION_SPECIAL, vocab_size)

    def numbered(part: Sequence[Sequence[str]]) -> list[list[Any]]:
        sides = [tokenizer([pair[side] for pair in part])["input_ids"] for side in (0, 1)]
        return [list(pair) for pair in zip(*sides, strict=True)]

    chosen = validation[:size]
    words = [str(word) for word in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]
    return Corpus(
        name, words, numbered(trained), numbered(held), numbered(chosen), True, [target for _, target in chosen]
    )


def read_translation(name: str, folder: str | None, *, vocab_size: int = 8000, size: int | None = None) -> Corpus:
    """A translation set by name: generated (``lexicon``), or a published one in a folder."""
    if name == "lexicon":
        return lexicon(size=min(size or GENERATED, GENERATED))
    name = known_name(name, [*PARALLEL])
    own, endings, missing = PARALLEL[name]
    _, inside = _folders(name, folder, own)
    try:
        training = read_parallel(inside, endings, ("train",))
        validation = read_parallel(inside, endings, ("val", "valid", "dev"))
    except DataError as error:
        raise _with_note(error, name, missing) from error
    return translation(name, training, validation, vocab_size=vocab_size, size=size)


def lexicon(count: int = 3000, size: int = 200, data: Lexicon | None = None) -> Corpus:
    """Generated sentences whose words have one translation each."""
    data = data or Lexicon()
    trained, held_out = _held_out([[source, target] for source, target, _ in data.examples(count, 0)])
    validation = [[source, target] for source, target, _ in data.examples(size, 1)]
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    words = [f"{side}-{number}" for side in ("source", "target") for number in range(data.words)]
    return Corpus("lexicon", [*special, *words], trained, held_out, validation, True)
