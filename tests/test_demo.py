from collections import Counter

import datasets
import numpy as np

from lmms_eval_templates.demo.scenes import (
    CATEGORIES,
    CELL,
    COLORS,
    DIRECTIONS,
    POSITIONS,
    SHAPES,
    Draws,
    Thing,
    ask_yes_no,
    scenes,
)
from lmms_eval_templates.plugin import tasks_path

BACKGROUND = (200, 200, 200)


def test_the_shipped_scenes_are_what_the_seed_draws():
    shipped = datasets.Dataset.from_parquet(str(tasks_path() / "demo" / "scenes.parquet"))
    drawn = list(scenes())
    assert len(drawn) == len(shipped) >= 100
    for scene, row in zip(drawn, shipped, strict=True):
        assert (scene.id, scene.question, list(scene.choices)) == (row["id"], row["question"], row["choices"])
        assert row["answer"] == "ABCD"[scene.answer]
        assert (np.asarray(row["image"]) == scene.pixels).all()


def _cells(pixels):
    """Colour name and share of the bounding box that is coloured, or None, of each cell, seen from the pixels alone."""
    names = [None, *COLORS]
    palette = np.array([BACKGROUND, *COLORS.values()])
    nearest = np.linalg.norm(pixels[:, :, None].astype(float) - palette, axis=3).argmin(axis=2)
    seen = []
    for cell in range(9):
        top, left = CELL * (cell // 3), CELL * (cell % 3)
        part = nearest[top : top + CELL, left : left + CELL]
        counts = Counter(part[part > 0].tolist())
        color = counts.most_common(1)[0][0] if counts else 0
        rows, columns = np.nonzero(part)
        if len(rows) < 25:
            seen.append(None)
            continue
        box = (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
        seen.append((names[color], len(rows) / box))
    return seen


def test_pictures_show_the_things():
    filled = {shape: [] for shape in SHAPES}
    right = 0
    drawn = list(scenes(200, seed=5))
    for scene in drawn:
        cells = _cells(scene.pixels)
        assert {cell for cell in range(9) if cells[cell]} == {thing.cell for thing in scene.things}
        for thing in scene.things:
            right += cells[thing.cell][0] == thing.color
            filled[thing.shape].append(cells[thing.cell][1])
    assert right / sum(len(scene.things) for scene in drawn) > 0.95  # tints bring some colours close to each other
    means = {shape: np.mean(shares) for shape, shares in filled.items()}
    assert means["square"] > means["circle"] > means["triangle"] > means["cross"]


def _answer(category, question, things):
    """Worked out from the question's words."""
    words = question.rstrip("?").split()
    if category == "count":
        return str(sum(any(word.removesuffix("es") == w or word.removesuffix("s") == w for word in words for w in t[1:])
                       for t in things))  # fmt: skip
    position = next((i for i, p in enumerate(POSITIONS) if f"at the {p}" in question), None)
    if position is not None:
        (thing,) = [t for t in things if t.cell == position]
        return thing.color if "color" in words else thing.shape
    named = [t for t in things if all(w not in words or w in t for w in (*COLORS, *SHAPES))]
    if category == "relation":
        (thing,) = named
        down, right = next(step for words_, step in DIRECTIONS.items() if words_ in question)
        (other,) = [t for t in things if t.cell == thing.cell + 3 * down + right]
        assert thing.cell % 3 + right in range(3)
        return other.color if "color" in words else other.shape
    (thing,) = named
    return {"color": thing.color, "shape": thing.shape, "position": POSITIONS[thing.cell]}[category]


def test_answers_are_true_of_the_things():
    drawn = list(scenes(400, seed=5))
    assert set(Counter(scene.category for scene in drawn)) == set(CATEGORIES)
    for scene in drawn:
        assert len(set(scene.choices)) == 4
        assert scene.choices[scene.answer] == _answer(scene.category, scene.question, scene.things), scene.question


def test_yes_and_no_are_true_and_both_common():
    answers = Counter()
    for number in range(200):
        things = [Thing(0, "circle", "red"), Thing(4, "cross", "blue")]
        question = ask_yes_no(things, Draws("yes or no", number))
        there = any(f"{t.color} {t.shape}" in question.text for t in things)
        assert question.answer == ("yes" if there else "no")
        answers[question.answer] += 1
    assert min(answers.values()) > 40
