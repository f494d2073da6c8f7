"""Drawn scenes: shapes of several colours and sizes on a 3 x 3 grid, under noise, and questions about them.

The demo benchmark and the training data of `training/micro` are drawn from here, from different seeds.
`python -m lmms_eval_templates.demo.scenes` writes `task_configs/demo/scenes.parquet` again.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..matching import LETTERS
from ..rng import random_bits

SIZE, CELL = 48, 16
NUM_SCENES = 125
COLORS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (50, 80, 220),
    "yellow": (230, 210, 40),
    "purple": (150, 60, 180),
    "orange": (240, 140, 30),
}
SHAPES = {"circle": "circles", "square": "squares", "triangle": "triangles", "cross": "crosses"}
POSITIONS = (
    *("top left", "top center", "top right"),
    *("middle left", "middle center", "middle right"),
    *("bottom left", "bottom center", "bottom right"),
)
DIRECTIONS = {"to the left of": (0, -1), "to the right of": (0, 1), "above": (-1, 0), "below": (1, 0)}
CATEGORIES = ("count", "color", "shape", "position", "relation")
_BACKGROUND = 200
# How hard the scenes are to read: half the side of a shape, and the largest changes of colour and of a pixel.
_SMALLEST, _LARGEST, _TINT, _NOISE = 5, 6, 25, 25
_BLOCK = 64
T = TypeVar("T")


class Draws:
    """Choices from a seed, the same in every version of Python and NumPy."""

    def __init__(self, *seed: object):
        blocks = (random_bits(_BLOCK, *seed, block).tolist() for block in itertools.count())
        self._bits = itertools.chain.from_iterable(blocks)

    def below(self, n: int) -> int:
        """A whole number from 0 to `n` - 1."""
        return next(self._bits) * n >> 64

    def one(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.below(len(options))]

    def some(self, options: Sequence[T], n: int) -> list[T]:
        """`n` different options in random order."""
        pool = list(options)
        return [pool.pop(self.below(len(pool))) for _ in range(n)]


class Thing(NamedTuple):
    """A shape in a cell of the grid."""

    cell: int
    shape: str
    color: str


class Question(NamedTuple):
    """A question with its answer and what else might be answered."""

    text: str
    answer: str
    pool: Sequence[str]

    def choices(self, draws: Draws) -> tuple[str, ...]:
        """The answer among three others."""
        wrong = draws.some([choice for choice in self.pool if choice != self.answer], 3)
        return tuple(draws.some([self.answer, *wrong], 4))


@dataclass(frozen=True)
class Scene:
    """A picture with one question.

    Attributes:
        pixels: uint8, shape [SIZE, SIZE, 3].
        things: what the picture shows.
    """

    id: str
    category: str
    pixels: np.ndarray
    things: tuple[Thing, ...]
    question: str
    choices: tuple[str, ...]
    answer: int


def draw_things(draws: Draws) -> tuple[Thing, ...]:
    """Three to seven things in different cells."""
    cells = draws.some(range(9), 3 + draws.below(5))
    return tuple(Thing(cell, draws.one(list(SHAPES)), draws.one(list(COLORS))) for cell in cells)


def paint(things: Sequence[Thing], *seed: object) -> np.ndarray:
    """The picture of `things`: sizes, places in the cell and tints are random, and every pixel is noisy.

    Returns:
        uint8, shape [SIZE, SIZE, 3].
    """
    draws = Draws("paint", *seed)
    canvas = np.full((SIZE, SIZE, 3), _BACKGROUND, dtype=np.int64)
    for thing in things:
        half = _SMALLEST + draws.below(_LARGEST - _SMALLEST + 1)
        slack = CELL - 2 * half - 1
        top, left = (CELL * place + draws.below(slack) for place in divmod(thing.cell, 3))
        tint = [value + draws.below(2 * _TINT + 1) - _TINT for value in COLORS[thing.color]]
        side = 2 * half + 1
        canvas[top : top + side, left : left + side][_mask(thing.shape, half)] = tint
    noise = random_bits(canvas.size, "noise", *seed) % np.uint64(2 * _NOISE + 1)
    return np.clip(canvas + noise.astype(np.int64).reshape(canvas.shape) - _NOISE, 0, 255).astype(np.uint8)


def _mask(shape: str, half: int) -> np.ndarray:
    y, x = np.mgrid[-half : half + 1, -half : half + 1]
    if shape == "circle":
        return x**2 + y**2 <= half * (half + 0.5)
    if shape == "square":
        return np.ones_like(x, dtype=bool)
    if shape == "triangle":
        return abs(x) <= (y + half) / 2 + 0.5
    return np.minimum(abs(x), abs(y)) <= half // 3


def ask(category: str, things: Sequence[Thing], draws: Draws) -> Question | None:
    """A question of a category; None where the thing it fell on has no unique answer."""
    thing = draws.one(things)
    name = f"the {thing.color} {thing.shape}"
    if category == "count":
        subject, count = draws.one(
            (
                (f"{thing.color} objects", sum(t.color == thing.color for t in things)),
                (SHAPES[thing.shape], sum(t.shape == thing.shape for t in things)),
            )
        )
        wording = draws.one(("How many {} are there?", "What is the number of {}?"))
        return Question(wording.format(subject), str(count), [str(n) for n in range(1, 7)])
    if category in ("color", "shape"):
        asked, known = (thing.color, thing.shape) if category == "color" else (thing.shape, thing.color)
        pool = list(COLORS) if category == "color" else list(SHAPES)
        if draws.below(2):
            wording = draws.one(("What is the {} of the object at the {}?", "Which {} does the object at the {} have?"))
            return Question(wording.format(category, POSITIONS[thing.cell]), asked, pool)
        if sum(known in t for t in things) > 1:
            return None
        wording = draws.one(("What is the {} of the {} object?", "Which {} does the {} object have?"))
        return Question(wording.format(category, known), asked, pool)
    if sum((t.shape, t.color) == (thing.shape, thing.color) for t in things) != 1:
        return None
    if category == "position":
        wording = draws.one(("Where is {}?", "Which place in the grid has {}?"))
        return Question(wording.format(name), POSITIONS[thing.cell], POSITIONS)
    if category == "relation":
        direction = draws.one(list(DIRECTIONS))
        other = neighbor(things, thing, direction)
        if other is not None:
            place = f"the object {direction} {name}"
            if draws.below(2):
                return Question(f"What is the color of {place}?", other.color, list(COLORS))
            return Question(f"What is the shape of {place}?", other.shape, list(SHAPES))
    return None


def ask_yes_no(things: Sequence[Thing], draws: Draws) -> Question:
    """A question whose answer is yes or no, half the time each as far as the scene allows."""
    thing = draws.one(things)
    if draws.below(2):
        thing = thing._replace(color=draws.one(list(COLORS)), shape=draws.one(list(SHAPES)))
    there = any((t.shape, t.color) == (thing.shape, thing.color) for t in things)
    wording = draws.one(("Is there a {} {}?", "Can you see a {} {}?"))
    return Question(wording.format(thing.color, thing.shape), "yes" if there else "no", ("yes", "no"))


def neighbor(things: Sequence[Thing], thing: Thing, direction: str) -> Thing | None:
    """What stands in the next cell in one of `DIRECTIONS`."""
    down, right = DIRECTIONS[direction]
    row, column = thing.cell // 3 + down, thing.cell % 3 + right
    if not (0 <= row < 3 and 0 <= column < 3):
        return None
    return next((t for t in things if t.cell == 3 * row + column), None)


def scenes(n: int = NUM_SCENES, seed: int = 0) -> Iterator[Scene]:
    """`n` scenes, their categories in turn."""
    for number in range(n):
        category, attempt, question = CATEGORIES[number % len(CATEGORIES)], 0, None
        while question is None:
            draws = Draws("scene", seed, number, attempt)
            things = draw_things(draws)
            question = ask(category, things, draws)
            attempt += 1
        choices = question.choices(draws)
        pixels = paint(things, "scene", seed, number)
        answer = choices.index(question.answer)
        yield Scene(f"{category}_{number}", category, pixels, things, question.text, choices, answer)


def rows(chosen: Iterator[Scene]) -> list[dict[str, Any]]:
    """Scenes as dataset rows, the image as PNG bytes."""
    from PIL import Image

    result = []
    for scene in chosen:
        buffer = io.BytesIO()
        Image.fromarray(scene.pixels).save(buffer, "PNG", optimize=True)
        result.append(
            {
                "id": scene.id,
                "category": scene.category,
                "image": {"bytes": buffer.getvalue(), "path": None},
                "question": scene.question,
                "choices": list(scene.choices),
                "answer": LETTERS[scene.answer],
            }
        )
    return result


if __name__ == "__main__":
    import datasets

    from ..plugin import tasks_path

    features = datasets.Features(
        {
            **{name: datasets.Value("string") for name in ("id", "category")},
            "image": datasets.Image(),
            "question": datasets.Value("string"),
            "choices": [datasets.Value("string")],
            "answer": datasets.Value("string"),
        }
    )
    target: Path = tasks_path() / "demo" / "scenes.parquet"
    datasets.Dataset.from_list(rows(scenes()), features=features).to_parquet(target)
    print(target)
