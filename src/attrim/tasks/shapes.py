"""Questions about pictures of coloured shapes that are drawn on the spot: a small world in which everything is known.

A picture has three to six objects and ten regions, some around an object and some around nothing. A model sees the
pixels of the regions and a question; which regions the answer is to be seen in is known, so that explanations can be
scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UnknownName
from ..models.shape_models import ANSWERS, COLORS, COUNTS, FEATURES, PATCH, SHAPES
from ..runs.result import Metric
from .base import register
from .encoding import Example
from .visual import ANNOTATORS, Picture, VisualQuestions, soft_accuracy, visual_metrics

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

SIZE = 32
REGIONS = 10
FEWEST, MOST = 3, 6
RADII = (3, 4)
NOISE = 14.0
MISTAKE = 0.08
ITEMS = {"train": 12_000, "validation": 1_000, "test": 1_000}
# Of sixteen scenes one is for validation and one for testing; which one a scene is for is decided by the scene alone.
SHARES = 16
KINDS = ("color", "shape", "existence", "count")
PAINT = np.array(
    [(214, 48, 49), (46, 160, 67), (52, 96, 220), (235, 200, 40), (150, 60, 190), (240, 130, 30)], dtype=np.float32
)
"""What the colours look like, in the order of ``COLORS``."""
_QUESTIONS = {
    "color": ("what color is the {shape} ?", "which color has the {shape} ?"),
    "shape": ("what shape is the {color} object ?", "which shape has the {color} object ?"),
    "existence": ("is there a {color} {shape} ?", "can you see a {color} {shape} ?"),
    "count": ("how many {color} objects are there ?",),
}
_TRIES = 24


class Scenes(NamedTuple):
    """Objects of N pictures, up to six each; those from ``number`` on are not there.

    Attributes
    ----------
    number : int64 ``[N]``, how many objects there are.
    color, shape, radius : int64 ``[N, 6]``.
    center : int64 ``[N, 6, 2]``, x and y in pixels.
    """

    number: Ints
    color: Ints
    shape: Ints
    radius: Ints
    center: Ints

    @property
    def there(self) -> NDArray[np.bool_]:
        """Which of the objects are there, ``[N, 6]``."""
        return np.arange(MOST) < self.number[:, None]

    def keys(self) -> NDArray[np.uint64]:
        """A number for each scene ``[N]`` that depends on its objects alone."""
        numbers = np.concatenate(
            [np.stack([self.color, self.shape, self.radius], -1), self.center], -1
        ).astype(np.uint64)  # fmt: skip
        numbers = np.where(self.there[..., None], numbers, np.uint64(99)).reshape(len(self.number), -1)
        key = np.full(len(numbers), 14695981039346656037, dtype=np.uint64)
        for column in numbers.T:  # FNV-1a
            key = (key ^ column) * np.uint64(1099511628211)
        return key ^ (key >> np.uint64(32))

    def take(self, places: Ints | NDArray[np.bool_]) -> Scenes:
        """Some of the scenes."""
        return Scenes(*(field[places] for field in self))


class Questions(NamedTuple):
    """One question for each of N scenes, int64 ``[N]`` but for ``relevant``, bool ``[N, 6]``: the objects it is about.

    Where ``valid`` is False, the scene has nothing that could be asked for.
    """

    color: Ints
    shape: Ints
    answer: Ints
    relevant: NDArray[np.bool_]
    valid: NDArray[np.bool_]


class World(NamedTuple):
    """All items of a split.

    Attributes
    ----------
    scenes : what is to be seen, kept for whoever wants to check.
    kind : int64 ``[N]``, as in ``KINDS``.
    texts : the questions.
    answer, confused : int64 ``[N]``, the right answer and the wrong one that some people gave.
    right : int64 ``[N]``, how many of the ten people gave the right one.
    images : uint8 ``[N, 32, 32, 3]``.
    boxes : int64 ``[N, 10, 4]``, corners in pixels.
    relevant : int64 ``[N, 10]``.
    """

    scenes: Scenes
    kind: Ints
    texts: list[str]
    answer: Ints
    confused: Ints
    right: Ints
    images: NDArray[np.uint8]
    boxes: Ints
    relevant: Ints


@register("shapes")
@dataclass(kw_only=True)
class Shapes(VisualQuestions):
    """Answer questions about pictures of coloured shapes that are drawn on the spot. Soft accuracy, and by question.

    Parameters
    ----------
    split : ``train`` (12,000 questions), ``validation`` or ``test`` (1,000 each); no scene is in two of them.
    data_seed : another one draws other pictures; ``seed`` only chooses among them, where there is a ``limit``.
    """

    split: str = "validation"
    data_seed: int = 0

    kinds: ClassVar[tuple[str, ...]] = KINDS
    metrics: ClassVar[Mapping[str, Metric]] = visual_metrics(KINDS)

    @property
    def answer_list(self) -> Sequence[str]:
        """Colours, shapes, yes and no, and numbers."""
        return ANSWERS

    @property
    def feature_width(self) -> int:
        """The pixels of a region, brought to 6 x 6."""
        return FEATURES

    @property
    def world(self) -> World:
        """The items of the split."""
        if self.data is not None:
            raise DataError("The task shapes draws its own pictures; leave data out.")
        if self.split not in ITEMS:
            raise UnknownName("split of shapes", self.split, ITEMS)
        if self.data_seed < 0:
            raise DataError(f"The data_seed must be 0 or more, not {self.data_seed}.")
        return make_world(self.split, self.data_seed)

    def read(self) -> Iterator[Example]:
        """Yield every question with its regions."""
        world = self.world
        features = crops(world.images, world.boxes)
        scores = soft_accuracy(np.arange(ANNOTATORS + 1))
        for place, text in enumerate(world.texts):
            right = int(world.right[place])
            answers = [(int(world.answer[place]), float(scores[right]))]
            if right < ANNOTATORS:
                answers.append((int(world.confused[place]), float(scores[ANNOTATORS - right])))
            arrays = {
                "visual_feats": features[place],
                "visual_pos": (world.boxes[place] / SIZE).astype(np.float32),
                "relevant": world.relevant[place],
                "image": world.images[place],
            }
            best = max(answers, key=lambda answer: answer[1])[0]
            yield Example((text,), float(best), (tuple(answers), int(world.kind[place])), arrays=arrays)

    def picture(self, index: int) -> Picture:
        """The picture, its regions, the question and the answers of the ten people."""
        example = self.example(index)
        boxes = example.arrays["visual_pos"] * np.float32(SIZE)
        texts = tuple(ANSWERS[number] for number, _ in sorted(example.answers[0], key=lambda pair: -pair[1]))
        return Picture(example.arrays["image"], boxes, example.texts[0], texts)


@lru_cache(maxsize=4)
def make_world(split: str, seed: int) -> World:
    """Draw all items of a split; kind of question, and yes or no, are drawn before the scene, so that none is rare.

    A scene that does not have what is asked for, or that belongs to another split, is drawn again.
    """
    generator = np.random.default_rng([seed, list(ITEMS).index(split)])
    number = ITEMS[split]
    kind = generator.integers(len(KINDS), size=number)
    wanted = generator.integers(2, size=number)
    found: list[tuple[Ints, Scenes, Questions]] = []
    pending = np.arange(number)
    while len(pending):
        scenes = make_scenes(len(pending), generator)
        asked = ask(scenes, kind[pending], wanted[pending], generator)
        kept = asked.valid & (_split_of(scenes.keys()) == split)
        found.append((pending[kept], scenes.take(kept), Questions(*(field[kept] for field in asked))))
        pending = pending[~kept]
    order = np.argsort(np.concatenate([places for places, _, _ in found]))
    scenes = Scenes(*(np.concatenate(parts)[order] for parts in zip(*(part for _, part, _ in found), strict=True)))
    asked = Questions(*(np.concatenate(parts)[order] for parts in zip(*(part for _, _, part in found), strict=True)))
    form = generator.integers(2, size=number)
    boxes, relevant = regions(scenes, asked.relevant, generator)
    return World(
        scenes=scenes,
        kind=kind,
        texts=[_text(*facts) for facts in zip(kind, form, asked.color, asked.shape, strict=True)],
        answer=asked.answer,
        confused=_CONFUSED[asked.answer],
        right=ANNOTATORS - generator.binomial(ANNOTATORS, MISTAKE, size=number),
        images=draw(scenes, generator),
        boxes=boxes,
        relevant=relevant,
    )


def make_scenes(number: int, generator: np.random.Generator) -> Scenes:
    """Place objects that do not touch, one after the other; a scene with no room for the next is begun anew."""
    parts: list[Scenes] = []
    left = number
    while left:
        objects = generator.integers(FEWEST, MOST + 1, size=left)
        color = generator.integers(len(COLORS), size=(left, MOST))
        shape = generator.integers(len(SHAPES), size=(left, MOST))
        radius = generator.integers(RADII[0], RADII[1] + 1, size=(left, MOST))
        center = np.zeros((left, MOST, 2), dtype=np.int64)
        placed = np.ones(left, dtype=bool)
        for place in range(MOST):
            own = radius[:, place]
            tries = generator.random((left, _TRIES, 2))
            tried = (own[:, None, None] + tries * (SIZE - 2 * own)[:, None, None]).astype(np.int64)
            gap = own[:, None] + radius[:, :place] + 2
            apart = np.abs(tried[:, :, None] - center[:, None, :place]).max(-1) >= gap[:, None]
            free = apart.all(-1)
            center[:, place] = tried[np.arange(left), free.argmax(1)]
            placed &= free.any(1) | (place >= objects)
        parts.append(Scenes(objects, color, shape, radius, center).take(placed))
        left -= int(placed.sum())
    return Scenes(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))


def ask(scenes: Scenes, kind: Ints, wanted: Ints, generator: np.random.Generator) -> Questions:
    """Make a question of the kind for every scene.

    Parameters
    ----------
    wanted : for questions of existence 1 for one with the answer yes.
    """
    there = scenes.there
    rows = np.arange(len(kind))
    # How often each colour, shape and pair of them is there, [N, 6], [N, 4] and [N, 6, 4].
    color = there[..., None] & (scenes.color[..., None] == np.arange(len(COLORS)))
    shape = there[..., None] & (scenes.shape[..., None] == np.arange(len(SHAPES)))
    pairs = (color[..., None] & shape[:, :, None]).sum(1)
    colors, shapes = color.sum(1), shape.sum(1)
    absent = (pairs == 0) & (colors[..., None] > 0) & (shapes[:, None] > 0)
    one_shape, some_shape = _choose(shapes == 1, generator)
    one_color, some_color = _choose(colors == 1, generator)
    pair, some_pair = _choose(np.where(wanted[:, None, None] == 1, pairs > 0, absent).reshape(len(kind), -1), generator)
    any_color = generator.integers(len(COLORS), size=len(kind))
    count = colors[rows, any_color]
    chosen_color = np.select([kind == 1, kind == 2], [one_color, pair // len(SHAPES)], any_color)
    chosen_shape = np.select([kind == 0, kind == 2], [one_shape, pair % len(SHAPES)], -1)
    same_color = there & (scenes.color == chosen_color[:, None])
    same_shape = there & (scenes.shape == chosen_shape[:, None])
    by_kind = kind[:, None]
    relevant = np.select([by_kind == 0, by_kind == 2], [same_shape, same_color & same_shape], same_color)
    single = relevant.argmax(1)
    answer = np.select(
        [kind == 0, kind == 1, kind == 2],
        [
            scenes.color[rows, single],
            len(COLORS) + scenes.shape[rows, single],
            np.where(wanted == 1, _YES, _NO),
        ],
        _ZERO + count,
    )
    most = 3  # people count further, but then the answer is rare
    valid = np.select([kind == 0, kind == 1, kind == 2], [some_shape, some_color, some_pair], count <= most)
    return Questions(chosen_color, chosen_shape, answer, relevant, valid.astype(bool))


def draw(scenes: Scenes, generator: np.random.Generator) -> NDArray[np.uint8]:
    """The pictures, ``[N, 32, 32, 3]``: light background, noise on every pixel."""
    number = len(scenes.number)
    light = generator.uniform(200, 245, size=(number, 1, 1, 3)).astype(np.float32)
    images = np.broadcast_to(light, (number, SIZE, SIZE, 3)).copy()
    item, place = np.nonzero(scenes.there)
    inside = _stamps()[scenes.shape[item, place], scenes.radius[item, place] - RADII[0]]
    which, row, column = np.nonzero(inside)
    item, place = item[which], place[which]
    x, y = (scenes.center[item, place] - RADII[1]).T
    images[item, y + row, x + column] = PAINT[scenes.color[item, place]]
    images += NOISE * generator.standard_normal(images.shape, dtype=np.float32)
    return np.clip(images, 0, 255).astype(np.uint8)


def _stamps() -> NDArray[np.bool_]:
    """The pixels of each shape of each radius around its centre, ``[shapes, radii, 9, 9]``."""
    radius = np.array(RADII)[:, None, None]
    down, right = np.mgrid[-RADII[1] : RADII[1] + 1, -RADII[1] : RADII[1] + 1]
    wide, high = np.abs(right), np.abs(down)
    return np.stack(
        [
            right**2 + down**2 <= radius**2 + 1,
            np.maximum(wide, high) <= radius - 1,
            (high <= radius) & (2 * wide <= down + radius + 1),
            ((wide <= 1) | (high <= 1)) & (np.maximum(wide, high) <= radius),
        ]
    )


def regions(scenes: Scenes, relevant: NDArray[np.bool_], generator: np.random.Generator) -> tuple[Ints, Ints]:
    """Ten boxes for each picture, shuffled, ``[N, 10, 4]``, and which of them are relevant, ``[N, 10]``.

    One box is around each object, at most a pixel off; the others are where there is as little of objects as possible.
    """
    number = len(scenes.number)
    size = scenes.radius[..., None]
    exact = np.concatenate([scenes.center - size, scenes.center + size + 1], -1)
    around = np.clip(exact + generator.integers(-1, 2, size=exact.shape), 0, SIZE)
    half = generator.integers(RADII[0], RADII[1] + 1, size=(number, REGIONS, _TRIES, 1), dtype=np.int16)
    middle = generator.integers(RADII[1], SIZE - RADII[1], size=(number, REGIONS, _TRIES, 2), dtype=np.int16)
    tried = np.concatenate([middle - half, middle + half + 1], -1)
    covered = np.zeros(tried.shape[:3], dtype=np.int16)
    for place in range(MOST):
        box = exact[:, place, None, None].astype(np.int16)
        overlap = np.minimum(tried[..., 2:], box[..., 2:]) - np.maximum(tried[..., :2], box[..., :2])
        wide, high = np.clip(overlap[..., 0], 0, None), np.clip(overlap[..., 1], 0, None)
        covered += wide * high * scenes.there[:, place, None, None]
    best = covered.argmin(2)
    boxes = np.take_along_axis(tried, best[:, :, None, None], 2)[:, :, 0].astype(np.int64)
    boxes[:, :MOST] = np.where(scenes.there[..., None], around, boxes[:, :MOST])
    marked = np.zeros((number, REGIONS), dtype=np.int64)
    marked[:, :MOST] = relevant & scenes.there
    order = generator.permuted(np.tile(np.arange(REGIONS), (number, 1)), axis=1)
    return np.take_along_axis(boxes, order[..., None], 1), np.take_along_axis(marked, order, 1)


def crops(images: NDArray[np.uint8], boxes: Ints) -> Floats:
    """The pixels of regions brought to 6 x 6 by their nearest neighbours, from -1 to 1: ``[N, R, 108]``."""
    steps = (np.arange(PATCH) + 0.5) / PATCH
    start, extent = boxes[..., :2, None], (boxes[..., 2:] - boxes[..., :2])[..., None]
    places = (start + np.floor(steps * extent)).astype(np.int64)
    column, row = places[..., 0, None, :], places[..., 1, :, None]
    pixels = images[np.arange(len(images))[:, None, None, None], row, column]
    return (pixels.reshape(*boxes.shape[:2], FEATURES).astype(np.float32) - 127.5) / 127.5


_YES, _NO = ANSWERS.index("yes"), ANSWERS.index("no")
_ZERO = ANSWERS.index(COUNTS[0])


def _confused() -> Ints:
    """For every answer the one that it is taken for: the next of its group, yes and no for each other."""
    groups = (COLORS, SHAPES, ("yes", "no"), COUNTS)
    following = {answer: group[(place + 1) % len(group)] for group in groups for place, answer in enumerate(group)}
    return np.array([ANSWERS.index(following[answer]) for answer in ANSWERS])


_CONFUSED = _confused()


def _choose(allowed: NDArray[np.bool_], generator: np.random.Generator) -> tuple[Ints, NDArray[np.bool_]]:
    """One of the allowed columns of every row ``[N, C]``, and whether there is any."""
    chances = np.where(allowed, generator.random(allowed.shape), -1.0)
    found = chances.argmax(1)
    return found, np.take_along_axis(allowed, found[:, None], 1)[:, 0]


def _split_of(keys: NDArray[np.uint64]) -> NDArray[np.str_]:
    share = keys % np.uint64(SHARES)
    return np.where(share == 0, "validation", np.where(share == 1, "test", "train"))


def _text(kind: int, form: int, color: int, shape: int) -> str:
    forms = _QUESTIONS[KINDS[kind]]
    return forms[form % len(forms)].format(color=COLORS[color], shape=SHAPES[shape] if shape >= 0 else "")
