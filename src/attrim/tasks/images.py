"""Classification of images: folders with one folder for each class, CIFAR's binary files, and npz.

Models with a classifier (ViT, CLIP's vision tower) learn the classes; CLIP tells them by their names (zero-shot).
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.paths import home_path
from ..core.wording import counted
from ..errors import DataError
from ..models.loading import load_image_processor
from .base import Array, register
from .batching import Batch, in_dtype
from .classify import Classify
from .encoding import Example, Row, chunks
from .pictures import ENDINGS, read_image
from .reading import find_file, lines, warn_once
from .visual import Picture

_SPLITS = {"validation": ("validation", "valid", "val", "test")}
_CIFAR = {
    "train": (*(f"data_batch_{number}.bin" for number in range(1, 6)), "train.bin"),
    "validation": ("test_batch.bin", "test.bin"),
    "test": ("test_batch.bin", "test.bin"),
}
_CIFAR_NAMES = ("batches.meta.txt", "fine_label_names.txt")
_PIXELS = 32 * 32 * 3
CHUNK = 32  # images that are prepared in one call


class _Pixels(Mapping[str, Array]):
    """The pixels of an example, read when they are needed."""

    def __init__(self, reader: Callable[[], NDArray[np.uint8]]) -> None:
        self._reader = reader
        self._problem: str | None = None

    def problem(self) -> str:
        """What is wrong with the image; empty when it can be read."""
        if self._problem is None:
            try:
                self._reader()
                self._problem = ""
            except DataError as error:
                self._problem = str(error)
        return self._problem

    def __getitem__(self, name: str) -> Array:
        if name != "image":
            raise KeyError(name)
        return self._reader()

    def __iter__(self) -> Iterator[str]:
        return iter(("image",))

    def __len__(self) -> int:
        return 1


class _ImageSet(NamedTuple):
    """Images, the number of the class of each, and what the classes are called."""

    pixels: list[_Pixels]
    labels: list[int]
    names: tuple[str, ...]


@register("images")
@dataclass(kw_only=True)
class Images(Classify):
    """Which class is an image of? Folders, CIFAR's binary files or npz; accuracy.

    Parameters
    ----------
    data : a folder with one folder for each class, below one for each split (train, validation) or not; a folder with
        CIFAR's binary files (``data_batch_1.bin``); or a .npz file, or folder of those, with ``images [N, H, W, 3]``
        and ``labels [N]``, and ``names`` if they have any.
    split : ``train``, ``validation``, or the name of another folder or .npz file.
    labels : what the classes are called, in the order of their numbers; by default as in the data.
    """

    split: str = "validation"
    labels: tuple[str, ...] = ()  # type: ignore[misc]

    kind: ClassVar[str] = "image-classification"

    def __post_init__(self) -> None:
        if not self.labels:
            self.labels = self.source.names

    def __getstate__(self) -> dict[str, Any]:
        # Whoever gets the pickle reads the files again.
        return {name: value for name, value in vars(self).items() if name != "source"}

    @cached_property
    def source(self) -> _ImageSet:
        """The images of the split."""
        if self.data is None:
            raise DataError(
                f"The task {self.registered_name} reads local files; give a folder, or a .npz file, as data."
            )
        path = home_path(self.data)
        if not path.exists():
            raise DataError(f"There is no file or folder {path}; check the path.")
        return _source(path, self.split)

    def load_tokenizer(self, name: str, **options: Any) -> Any:
        """Load what prepares images for the model."""
        return load_image_processor(name, self.kind, **options)

    def read(self) -> Iterator[Example]:
        """Yield every image."""
        source = self.source
        if source.labels and not 0 <= min(source.labels) <= max(source.labels) < len(self.labels):
            raise DataError(
                f"{self.data} has the labels {min(source.labels)} to {max(source.labels)}, but {len(self.labels)} "
                "classes have names; give all with --option labels."
            )
        for pixels, label in zip(source.pixels, source.labels, strict=True):
            yield Example((), float(label), arrays=pixels)

    def examples(self) -> Iterator[Example]:
        """Yield the chosen images that can be read; the others are named on the log, and none at all is an error."""
        damaged: list[str] = []
        whole = 0
        for example in super().examples():
            pixels = example.arrays
            assert isinstance(pixels, _Pixels)
            if pixels.problem():
                damaged.append(pixels.problem())
            else:
                whole += 1
                yield example
        if damaged and not whole:
            raise DataError(damaged[0])
        if damaged:
            warn_once(f"{counted(len(damaged), 'damaged image')} left out: {' '.join(damaged[:3])}")

    def rows(self, examples: Iterable[Example], tokenizer: Any, max_length: int) -> Iterator[Row]:
        """One row an image, prepared as the model takes it."""
        prepare = getattr(tokenizer, "image_processor", tokenizer)
        place = 0
        for chunk in chunks(examples, CHUNK):
            images = [example.arrays["image"] for example in chunk]
            pixels = prepare(images=images, return_tensors="np", input_data_format="channels_last")["pixel_values"]
            for example, values in zip(chunk, pixels, strict=True):
                yield Row(place, {"pixel_values": np.asarray(values, dtype=np.float32)}, example.label)
                place += 1

    def arguments(self, inputs: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
        """The images in the number type of the model."""
        return in_dtype(inputs, model, ["pixel_values"])

    def run(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Logits ``[B, labels]`` in the task's order of labels."""
        return super().run(model, self.arguments(inputs, model))

    def picture(self, index: int) -> Picture:
        """The image with its class; it has no regions."""
        for place, example in enumerate(self.examples()):
            if place == index:
                name = self.labels[int(example.label or 0)]
                return Picture(example.arrays["image"], np.zeros((0, 4), dtype=np.float32), "", (name,))
        raise DataError(f"The task {self.registered_name} has no example {index}; its first one is 0.")


@register("images/zero-shot")
@dataclass(kw_only=True)
class ZeroShotImages(Images):
    """Which class is an image of, told by the names of the classes (CLIP)? Accuracy.

    Every batch has the texts of all classes beside its images, so that a model's text tower runs, too.

    Parameters
    ----------
    prompt : the text of a class, with ``{}`` for its name.
    """

    prompt: str = "a photo of a {}."

    kind: ClassVar[str] = "zero-shot-image-classification"

    def __post_init__(self) -> None:
        super().__post_init__()
        if "{}" not in self.prompt:
            raise DataError(f"The prompt {self.prompt!r} must have {{}} where the name of the class stands.")
        self._texts: dict[str, Tensor] = {}

    def rows(self, examples: Iterable[Example], tokenizer: Any, max_length: int) -> Iterator[Row]:
        """One row an image; the texts of the classes are tokenised once."""
        texts = [self.prompt.format(name.replace("_", " ")) for name in self.labels]
        words = getattr(tokenizer, "tokenizer", None)
        if words is None:
            raise DataError(f"{type(tokenizer).__name__} prepares images only; choose a model such as CLIP.")
        self._texts = dict(words(texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt"))
        return super().rows(examples, tokenizer, max_length)

    def check(self, model: nn.Module) -> None:
        """Accept a model that compares images with texts."""
        if not hasattr(model, "logit_scale"):
            raise DataError(f"{type(model).__name__} does not compare images with texts; choose a model such as CLIP.")

    def arguments(self, inputs: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
        """The images, and the texts of all classes."""
        device = inputs["pixel_values"].device
        texts = {name: tensor.to(device) for name, tensor in self._texts.items()}
        return {**texts, **super().arguments(inputs, model)}

    def run(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """How well each class fits each image, ``[B, classes]``."""
        output: Any = model(**self.arguments(inputs, model))
        logits: Tensor = output.logits_per_image
        return logits.float()

    def train_labels(self, batch: Batch, model: nn.Module) -> dict[str, Tensor]:
        """None: nothing is trained."""
        raise DataError("The task images/zero-shot trains nothing; train a classifier with the task images.")


def _source(path: Path, split: str) -> _ImageSet:
    """Find out what the data is, and read what is not read image by image."""
    if path.is_file():
        return _cifar([path]) if path.suffix == ".bin" else _npz(path)
    packed = find_file([path], [f"{name}.npz" for name in _SPLITS.get(split, (split,))])
    if packed is not None:
        return _npz(packed)
    cifar = [path / name for name in _CIFAR.get(split, (f"{split}.bin",)) if (path / name).is_file()]
    if cifar:
        return _cifar(cifar)
    if (path / "data_batch_1").is_file() or (path / "test_batch").is_file():
        raise DataError(
            f"{path} is the Python version of CIFAR, whose files are pickles and could run any code; fetch the binary "
            "version (data_batch_1.bin)."
        )
    below = next((path / name for name in _SPLITS.get(split, (split,)) if (path / name).is_dir()), path)
    return _folders(below)


def _folders(path: Path) -> _ImageSet:
    names = sorted(folder.name for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    files = [
        (file, number)
        for number, name in enumerate(names)
        for file in sorted((path / name).iterdir())
        if file.suffix.lower() in ENDINGS
    ]
    if not files:
        raise DataError(f"{path} has no folders with images in them; one folder for each class is needed.")
    return _ImageSet(
        [_Pixels(partial(read_image, file)) for file, _ in files], [number for _, number in files], tuple(names)
    )


def _cifar(paths: list[Path]) -> _ImageSet:
    """CIFAR-10: a label and 3,072 pixels a record; CIFAR-100: a coarse and a fine label before them."""
    labels: list[int] = []
    pixels: list[_Pixels] = []
    for path in paths:
        content = np.fromfile(path, dtype=np.uint8)
        ahead = next((number for number in (1, 2) if content.size and content.size % (number + _PIXELS) == 0), None)
        if ahead is None:
            raise DataError(
                f"{path} has {content.size} bytes, which are neither records of CIFAR-10 (3,073 bytes) nor of "
                "CIFAR-100 (3,074); it is cut short or another file."
            )
        records = content.reshape(-1, ahead + _PIXELS)
        labels += records[:, ahead - 1].tolist()
        images = records[:, ahead:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        pixels += [_Pixels(partial(np.asarray, image)) for image in images]
    names = find_file([paths[0].parent], _CIFAR_NAMES)
    known = [line for line in lines(names) if line.strip()] if names is not None else []
    return _ImageSet(pixels, labels, tuple(known) or _numbered(labels))


def _npz(path: Path) -> _ImageSet:
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in ("images", "labels") if name not in file]
            if missing:
                raise DataError(f"{path} has no array {missing[0]!r}; it needs images [N, H, W, 3] and labels [N].")
            images, labels = file["images"], file["labels"]
            names = tuple(str(name) for name in file["names"]) if "names" in file else ()
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is not a readable npz file ({error}); write it again.") from error
    if images.ndim == 3:
        images = np.repeat(images[..., None], 3, axis=-1)  # grey
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8:
        raise DataError(f"The images of {path} are {images.dtype} {list(images.shape)}; uint8 [N, H, W, 3] is needed.")
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise DataError(f"The labels of {path} must be {len(images)} whole numbers, one for each image.")
    numbers = [int(label) for label in labels]
    return _ImageSet([_Pixels(partial(np.asarray, image)) for image in images], numbers, names or _numbered(numbers))


def _numbered(labels: list[int]) -> tuple[str, ...]:
    """Names of classes that have none; a model's own names for them say nothing either, then."""
    return tuple(f"LABEL_{number}" for number in range(max(labels, default=0) + 1))
