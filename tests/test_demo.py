from collections import Counter

import datasets
import numpy as np

from lmms_eval_templates.demo.scenes import CATEGORIES, COLORS, POSITIONS, scenes
from lmms_eval_templates.plugin import tasks_path


def test_the_shipped_scenes_are_what_the_seed_draws():
    shipped = datasets.Dataset.from_parquet(str(tasks_path() / "demo" / "scenes.parquet"))
    drawn = list(scenes())
    assert len(drawn) == len(shipped) >= 100
    for scene, row in zip(drawn, shipped, strict=True):
        assert (scene.id, scene.question, list(scene.choices)) == (row["id"], row["question"], row["choices"])
        assert row["answer"] == "ABCD"[scene.answer]
        assert (np.asarray(row["image"]) == scene.pixels).all()


def _cells(pixels):
    """What stands in each cell, seen from the pixels alone: colour name or None."""
    names = {rgb: name for name, rgb in COLORS.items()}
    centers = [pixels[8 + 16 * (c // 3), 8 + 16 * (c % 3)] for c in range(9)]
    return [names.get(tuple(int(v) for v in center)) for center in centers]


def test_answers_are_true_of_the_pictures():
    drawn = list(scenes(400, seed=5))
    assert set(Counter(scene.category for scene in drawn)) == set(CATEGORIES)
    for scene in drawn:
        cells, answer = _cells(scene.pixels), scene.choices[scene.answer]
        assert len(set(scene.choices)) == 4
        words = scene.question.rstrip("?").split()
        if scene.category == "count":
            assert cells.count(words[2]) == int(answer)
        elif scene.category == "color":
            assert answer in cells
        elif scene.category == "shape":
            assert cells.count(words[-2]) == 1
        else:
            assert cells[POSITIONS.index(answer)] == words[3]
