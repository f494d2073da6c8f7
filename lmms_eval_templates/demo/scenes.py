"""The demo benchmark: drawn scenes with a question about a count, a colour, a shape or a position.

`python -m lmms_eval_templates.demo.scenes` writes `task_configs/demo/scenes.parquet` again.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..matching import LETTERS
from ..rng import random_bits

SIZE, CELL = 48, 16
NUM_SCENES = 120
COLORS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (50, 80, 220),
    "yellow": (230, 210, 40),
    "purple": (150, 60, 180),
    "orange": (240, 140, 30),
}
SHAPES = ("circle", "square", "triangle", "cross")
POSITIONS = (
    *("top left", "top center", "top right"),
    *("middle left", "middle center", "middle right"),
    *("bottom left", "bottom center", "bottom right"),
)
CATEGORIES = ("count", "color", "shape", "position")
_BACKGROUND = 235
T = TypeVar("T")


class _Draws:
    """Choices from a seed, the same in every version of Python and NumPy."""

    def __init__(self, *seed: object):
        self._bits = iter(random_bits(512, *seed).tolist())

    def below(self, n: int) -> int:
        return next(self._bits) * n >> 64

    def some(self, options: Sequence[T], n: int) -> list[T]:
        pool = list(options)
        return [pool.pop(self.below(len(pool))) for _ in range(n)]


@dataclass(frozen=True)
class Thing:
    """A shape in a cell of the 3 x 3 grid."""

    cell: int
    shape: str
    color: str


@dataclass(frozen=True)
class Scene:
    """A picture with one question.

    Attributes:
        pixels: uint8, shape [SIZE, SIZE, 3].
    """

    id: str
    category: str
    pixels: np.ndarray
    question: str
    choices: tuple[str, ...]
    answer: int


def _draw(things: Sequence[Thing]) -> np.ndarray:
    pixels = np.full((SIZE, SIZE, 3), _BACKGROUND, dtype=np.uint8)
    y, x = np.mgrid[0:CELL, 0:CELL] - (CELL - 1) / 2
    masks = {
        "circle": x**2 + y**2 <= 36,
        "square": np.maximum(abs(x), abs(y)) <= 5.5,
        "triangle": (y <= 5.5) & (abs(x) <= (y + 6.5) / 2),
        "cross": (np.minimum(abs(x), abs(y)) <= 1.5) & (np.maximum(abs(x), abs(y)) <= 6.5),
    }
    for thing in things:
        top, left = thing.cell // 3 * CELL, thing.cell % 3 * CELL
        pixels[top : top + CELL, left : left + CELL][masks[thing.shape]] = COLORS[thing.color]
    return pixels


def _question(category: str, things: Sequence[Thing], draws: _Draws) -> tuple[str, str, Sequence[str]] | None:
    """Question, answer and the pool of choices; None where the scene has no unique answer."""
    thing = things[draws.below(len(things))]
    if category == "count":
        count = sum(t.color == thing.color for t in things)
        return f"How many {thing.color} objects are there?", str(count), [str(n) for n in range(1, 7)]
    if category == "color" and sum(t.shape == thing.shape for t in things) == 1:
        return f"What is the color of the {thing.shape}?", thing.color, list(COLORS)
    if category == "shape" and sum(t.color == thing.color for t in things) == 1:
        return f"What is the shape of the {thing.color} object?", thing.shape, SHAPES
    if category == "position" and sum((t.shape, t.color) == (thing.shape, thing.color) for t in things) == 1:
        return f"Where is the {thing.color} {thing.shape}?", POSITIONS[thing.cell], POSITIONS
    return None


def scenes(n: int = NUM_SCENES, seed: int = 0) -> Iterator[Scene]:
    """`n` scenes, their categories in turn."""
    for number in range(n):
        category, attempt, question = CATEGORIES[number % len(CATEGORIES)], 0, None
        while question is None:
            draws = _Draws("scene", seed, number, attempt)
            cells = draws.some(range(9), 2 + draws.below(5))
            things = [Thing(cell, draws.some(SHAPES, 1)[0], draws.some(list(COLORS), 1)[0]) for cell in cells]
            question = _question(category, things, draws)
            attempt += 1
        text, answer, pool = question
        wrong = draws.some([choice for choice in pool if choice != answer], 3)
        choices = draws.some([answer, *wrong], 4)
        yield Scene(f"{category}_{number}", category, _draw(things), text, tuple(choices), choices.index(answer))


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
