"""Where the GLUE tasks find their examples: on the hub, or in a local folder in the standard file formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..errors import DataError
from .classify import Classify
from .files import find_file, tsv_rows
from .hubdata import HubData
from .rows import Example

Files = Mapping[str, tuple[tuple[str, ...], ...]]
HUB = "nyu-mll/glue"


@dataclass(kw_only=True)
class Glue(HubData, Classify):
    """Base of the GLUE tasks: where each keeps its texts and labels.

    Parameters
    ----------
    data : a folder with the task's files, or the folder above it (``glue/SST-2`` or ``glue``); None means the hub.
    split : ``train``, ``validation`` or ``test``; of a local folder also any other file (``train_sentences_6920``).
    min_words : leave out examples with fewer words, such as the short phrases of SST-2's training data.
    """

    max_length: int = 128
    min_words: int = 0

    folder: ClassVar[str]
    texts: ClassVar[tuple[str, ...]]  # columns of the local files
    hub_texts: ClassVar[tuple[str, ...]] = ()  # columns of the hub data, where they have other names
    target: ClassVar[str] = "label"
    header: ClassVar[tuple[str, ...] | None] = None  # for files that do not begin with their column names
    skip_short: ClassVar[bool] = False
    # For each split the file sets that may hold it; all files of a set belong together.
    files: ClassVar[Files] = {
        "train": (("train.tsv",),),
        "validation": (("dev.tsv",),),
        "test": (("test-labeled.tsv",), ("test.tsv",)),
    }

    def read(self) -> Iterator[Example]:
        """Yield the examples of the split from the local folder or the hub."""
        examples = self._from_hub() if self.data is None else self._from_files(Path(self.data).expanduser())
        for example in examples:
            if self.min_words <= 0 or len(" ".join(example.texts).split()) >= self.min_words:
                yield example

    def _from_files(self, data: Path) -> Iterator[Example]:
        for path in self._find(data):
            # The official test file of CoLA begins with column names although the others do not.
            header = None if path.name.startswith("test.tsv") else self.header
            for row in tsv_rows(path, header, self.skip_short):
                missing = [column for column in self.texts if column not in row]
                if missing:
                    raise DataError(
                        f"{path} has no column {missing[0]!r} (it has {', '.join(row)}); it is not {self.folder} data."
                    )
                yield Example(tuple(row[column] for column in self.texts), self._label(row.get(self.target), path))

    def _find(self, data: Path) -> list[Path]:
        if not data.is_dir():
            raise DataError(f"There is no folder {data}; give a folder with {self.folder} files as data.")
        folders = [data / self.folder, data / self.folder.lower(), data / self.registered_name.split("/")[1], data]
        folders = [folder for folder in folders if folder.is_dir()]
        sets = self.files.get(self.split, ((f"{self.split}.tsv",), (f"{self.split}.txt",)))
        for names in sets:
            found = [find_file(folders, [name]) for name in names]
            if all(found):
                return [path for path in found if path is not None]
        present = ", ".join(sorted(path.name for path in folders[0].iterdir()))
        wanted = " or ".join(" with ".join(names) for names in sets)
        raise DataError(
            f"There is no {self.split} split of {self.registered_name} in {folders[0]}: looked for {wanted} "
            f"(plain or .gz); the folder has {present or 'nothing'}."
        )

    def _label(self, text: str | None, path: Path) -> float | None:
        if text is None or text == "":
            return None
        if text in self.labels:
            return float(self.labels.index(text))
        try:
            number = float(text)
        except ValueError as error:
            raise DataError(f"{path} has the label {text!r}, which {self.registered_name} does not know.") from error
        if self.labels and number not in range(len(self.labels)):
            raise DataError(f"{path} has the label {text!r}, but {self.registered_name} has {len(self.labels)} labels.")
        return number

    def _from_hub(self) -> Iterator[Example]:
        for row in self.hub_rows(HUB, *self._hub_names()):
            label = row["label"]
            known = label is not None and (label >= 0 or not self.labels)  # the hub marks unknown labels by -1
            yield Example(
                tuple(row[column] for column in self.hub_texts or self.texts), float(label) if known else None
            )

    def _hub_names(self) -> tuple[str, str]:
        """The names of the configuration and the split on the hub."""
        return self.registered_name.split("/")[1], self.split
