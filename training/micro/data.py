"""Training data drawn from the demo's scenes: the base stage's lessons, and an instruction mix in LLaVA JSON."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from tqdm import tqdm

from lmms_eval_templates.demo.scenes import (
    CATEGORIES,
    COLORS,
    DIRECTIONS,
    POSITIONS,
    SHAPES,
    Draws,
    Question,
    Thing,
    ask,
    ask_yes_no,
    draw_things,
    neighbor,
    paint,
    scenes,
)
from lmms_eval_templates.demo.tiny_llava import WORD
from lmms_eval_templates.matching import LETTERS
from lmms_eval_templates.sets import PUBLISHED_SETS, template_set
from lmms_eval_templates.space import CHOICE, QUESTION
from lmms_eval_templates.variation import render_choices

# Lessons of one kind follow each other, so that a batch has nearly one length.
BATCH = 64
_REPEAT, _NOTHING = "Repeat:", "nothing"
DESCRIPTIONS = 102_400  # number of the first lesson that may be something else
_LISTED = 6
_YES_NO_EVERY, _TRIES = 8, 10
_QUESTIONS = 3  # in a lesson
_LESSON_CATEGORIES = (*CATEGORIES, "position", "relation", "relation")  # the slowest to learn more often
_FEWEST_WORDS, _MOST_WORDS = 8, 24
_MOST_WORDS_AROUND = 12
# What may stand around a question of the instruction mix.
_BEFORE = ("", "", "", "Look at the picture.", "Please look at this image.", "Based on the image:")
_AFTER_QUESTION = ("", "", "Please answer.")
_AFTER_CHOICES = ("", "", "Answer with one of the given choices.", "Respond with one of these.")


class Lesson(NamedTuple):
    """A conversation of the base stage.

    Attributes:
        turns: what is said, the human and the assistant by turns.
        pixels: uint8, shape [48, 48, 3], or None.
    """

    turns: list[str]
    pixels: np.ndarray | None


@cache
def template_words() -> list[str]:
    """Every word and sign of the template space and the three template sets, sorted."""
    texts = [*QUESTION, *CHOICE, *(text for name in PUBLISHED_SETS for text in template_set(name).templates)]
    placed = (re.sub(r"\{(question|choices)\}", " ", text) for text in texts)
    return sorted({word for text in placed for word in re.findall(WORD, text)})


def scene_words() -> list[str]:
    """Every word and sign of questions, answers and lessons, sorted."""
    texts = [*_DESCRIBE, _REPEAT, _NOTHING, "yes no USER: ASSISTANT:", *COLORS, *SHAPES, *SHAPES.values(), *POSITIONS]
    texts += [*DIRECTIONS, *(f"({letter})" for letter in LETTERS[:4]), *map(str, range(10))]
    texts += [scene.question for scene in scenes(400)]
    texts += [ask_yes_no([Thing(0, "circle", "red")], Draws("words", n)).text for n in range(20)]
    return sorted({word for text in texts for word in re.findall(WORD, text)})


@cache
def _held_out() -> set[frozenset[Thing]]:
    return {frozenset(scene.things) for scene in scenes()}


def _drawn(draws: Draws) -> tuple[Thing, ...]:
    """Things that no scene of the demo benchmark shows."""
    things = draw_things(draws)
    while frozenset(things) in _held_out():
        things = draw_things(draws)
    return things


def _question(things: Sequence[Thing], draws: Draws, categories: Sequence[str]) -> Question:
    """A question of a category that is drawn first, so that those which few scenes allow are not rare."""
    if draws.below(_YES_NO_EVERY) == 0:
        return ask_yes_no(things, draws)
    category = draws.one(categories)
    for _ in range(_TRIES):
        if question := ask(category, things, draws):
            return question
    return _question(things, draws, categories)


def _name(things: Sequence[Thing], cell: int) -> str:
    return next((f"{thing.color} {thing.shape}" for thing in things if thing.cell == cell), _NOTHING)


def _describe_grid(things: Sequence[Thing], draws: Draws) -> list[str]:
    return [_name(things, cell) for cell in range(len(POSITIONS))]


def _describe_objects(things: Sequence[Thing], draws: Draws) -> list[str]:
    ordered = draws.some(things, len(things))
    return [f"the {_name(things, thing.cell)} is at the {POSITIONS[thing.cell]}" for thing in ordered]


def _describe_places(things: Sequence[Thing], draws: Draws) -> list[str]:
    return [f"at the {POSITIONS[cell]} is {_name(things, cell)}" for cell in draws.some(range(len(POSITIONS)), _LISTED)]


def _describe_numbers(things: Sequence[Thing], draws: Draws) -> list[str]:
    return [
        f"{SHAPES.get(what, what)} {sum(what in thing for thing in things)}"
        for what in draws.some([*COLORS, *SHAPES], _LISTED)
    ]


def _describe_neighbors(things: Sequence[Thing], draws: Draws) -> list[str]:
    listed = []
    for _ in range(_LISTED - 2):
        thing, direction = draws.one(things), draws.one(list(DIRECTIONS))
        other = neighbor(things, thing, direction)
        there = _NOTHING if other is None else _name(things, other.cell)
        listed.append(f"{direction} the {_name(things, thing.cell)} is {there}")
    return listed


_DESCRIBE = {
    "Describe the grid.": _describe_grid,
    "Describe the objects.": _describe_objects,
    "Describe the places.": _describe_places,
    "Describe the numbers.": _describe_numbers,
    "Describe the neighbors.": _describe_neighbors,
}


def _words(draws: Draws, fewest: int, most: int) -> str:
    return " ".join(draws.one(template_words()) for _ in range(fewest + draws.below(most - fewest + 1)))


def lesson(number: int, seed: int) -> Lesson:
    """A lesson of the base stage.

    The first 102,400 are descriptions of scenes, as in LLaVA's own first stage: cell by cell, object by object, and so
    on. Of eight later ones one is a description and one, without a picture, has words of the template space and of the
    template sets repeated, in random order. The other six ask questions about a scene, four of them bare ones and two
    among such words, in random order too. A real language model knows the words of any instruction and finds the
    question in it, and so must this one, though it has never met the words in a sentence.
    """
    draws = Draws("lesson", seed, number)
    kind = number // BATCH % 8
    if number >= DESCRIPTIONS and kind == 0:
        words = _words(draws, _FEWEST_WORDS, _MOST_WORDS)
        return Lesson([f"{_REPEAT} {words}", words], None)
    things = _drawn(draws)
    if number < DESCRIPTIONS or kind == 4:
        request = list(_DESCRIBE)[number // BATCH % len(_DESCRIBE)]
        turns = [request, ", ".join(_DESCRIBE[request](things, draws))]
    else:
        turns = []
        for _ in range(_QUESTIONS):
            question = _question(things, draws, _LESSON_CATEGORIES)
            around = [_words(draws, 0, _MOST_WORDS_AROUND) if kind in (2, 6) else "" for _ in range(2)]
            turns += [f"{around[0]} {question.text} {around[1]}".strip(), question.answer]
    return Lesson(turns, paint(things, "lesson", seed, number))


def _instruction_text(question: Question, draws: Draws) -> str:
    """A question in plain wording, two times in three with choices; like LLaVA's own mix, it varies a little."""
    lines = [f"{draws.one(_BEFORE)} {question.text}".strip()]
    if len(question.pool) > 2 and draws.below(3):
        lines += render_choices(question.choices(draws)).replace(" (", "\n(").split("\n")
        lines.append(draws.one(_AFTER_CHOICES))
    else:
        lines.append(draws.one(_AFTER_QUESTION))
    return "\n".join(filter(None, lines))


def instruction(number: int, seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """A record of the instruction mix, two questions about one picture, and the picture."""
    draws = Draws("instruction", seed, number)
    things = _drawn(draws)
    turns = []
    for mark in ("<image>\n", ""):
        question = _question(things, draws, CATEGORIES)
        turns.append({"from": "human", "value": mark + _instruction_text(question, draws)})
        turns.append({"from": "gpt", "value": question.answer})
    record = {"id": f"{seed}_{number}", "image": f"{number // 1000}/{seed}_{number}.png", "conversations": turns}
    return record, paint(things, "instruction", seed, number)


def write_mix(folder: Path, n: int, seed: int) -> Path:
    """Writes `mix.json` and `images/` to `folder`; returns the former, which exists only when all else does."""
    records, target = [], folder / "mix.json"
    for number in tqdm(range(n), "drawing the mix", unit=" records", disable=None):
        record, pixels = instruction(number, seed)
        path = folder / "images" / record["image"]
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        records.append(record)
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(records), "utf-8")
    os.replace(partial, target)
    return target
