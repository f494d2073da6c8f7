"""Metrics over the item x template matrix, all in percent but for the p-value.

The lmms-eval tasks and everything that reads logs take their figures from here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from .rng import random_bits

PERMUTATIONS = 1000

# Name -> whether higher is better (None: neither), in the order in which they are reported.
METRICS: dict[str, bool | None] = {
    "tm_avg": True,
    "tm_max_min": False,
    "tm_best": True,
    "tm_worst": True,
    "tm_std": False,
    "tm_consistency": True,
    "tm_null_max_min": None,
    "tm_p_value": None,
    "tm_embedded": False,
    "tm_unmatched": False,
}

RECORD_METRIC = "tm_avg"  # the key under which a sample log holds a cell's record


class Cell(NamedTuple):
    """One answered question: the item, the template it was asked with, and what came of it.

    Attributes:
        item: the item's id.
        template: index into the template set.
        answer: index of the right choice.
        prediction: index of the choice that the response names, or None.
        step: what decided: "identifier", "content", "both", "embedding", or None.
    """

    item: str
    template: int
    answer: int
    prediction: int | None
    step: str | None

    def record(self) -> dict[str, Any]:
        """The cell as it stands in a sample log, with its correctness."""
        return {**self._asdict(), "correct": self.prediction == self.answer}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Cell:
        """The inverse of `record`."""
        return cls(**{name: record[name] for name in cls._fields})


@dataclass(frozen=True)
class Matrix:
    """Items that were asked with every template, sorted by id.

    Attributes:
        items: ids, length I.
        answers: index of each item's right choice, shape [I], int64.
        predictions: shape [I, T], int64, -1 where a response names no choice.
        correct: shape [I, T], bool.
        embedded: shape [I, T], bool, decided by sentence embeddings.
        left_out: ids of items of which some template was not answered.
    """

    items: tuple[str, ...]
    answers: np.ndarray
    predictions: np.ndarray
    correct: np.ndarray
    embedded: np.ndarray
    left_out: tuple[str, ...]


def build_matrix(cells: Iterable[Cell], num_templates: int) -> Matrix:
    """Arranges cells, in any order, as a matrix.

    An item of which a template is missing (`--limit` cut it, a run was interrupted) is left out, never counted as
    wrong.

    Raises:
        ValueError: a cell occurs twice, or its template lies outside the set.
    """
    rows: dict[str, dict[int, Cell]] = {}
    for cell in cells:
        row = rows.setdefault(cell.item, {})
        if cell.template in row:
            raise ValueError(f"item {cell.item!r} was answered twice with template {cell.template}")
        if not 0 <= cell.template < num_templates:
            raise ValueError(f"item {cell.item!r} has template {cell.template}; the set has 0 to {num_templates - 1}")
        row[cell.template] = cell
    items = sorted(item for item, row in rows.items() if len(row) == num_templates)
    grid = [[rows[item][t] for t in range(num_templates)] for item in items]
    shape = (len(items), num_templates)
    predictions = np.array([[-1 if c.prediction is None else c.prediction for c in r] for r in grid], np.int64)
    predictions = predictions.reshape(shape)
    answers = np.array([r[0].answer for r in grid], np.int64)
    embedded = np.array([[c.step == "embedding" for c in r] for r in grid], bool).reshape(shape)
    left_out = tuple(sorted(set(rows) - set(items)))
    return Matrix(tuple(items), answers, predictions, predictions == answers[:, None], embedded, left_out)


def template_accuracies(correct: np.ndarray) -> np.ndarray:
    """Accuracy of each template in percent, shape [T], from correctness of shape [I, T]."""
    return 100 * correct.mean(axis=0)


def null_extremes(correct: np.ndarray, seed: int = 0, permutations: int = PERMUTATIONS) -> np.ndarray:
    """Worst and best template of models for which no template is better than another.

    Each item's outcomes are permuted among the templates. Even such a model's templates differ, because each
    template's accuracy is a sample.

    Returns:
        Numbers of right answers of the worst and of the best template, shape [permutations, 2], int64.
    """
    right = correct.sum(axis=1)
    rows, any_right = np.arange(len(correct)), right[:, None] > 0
    draws = np.empty((permutations, 2), np.int64)
    slow = correct.size * permutations > 10**8
    for p in tqdm(range(permutations), desc="permutation test", disable=not slow):
        keys = random_bits(correct.size, "null", seed, p).reshape(correct.shape)
        # The templates that hold an item's `right` smallest keys are a uniform subset of that size.
        largest = np.sort(keys, axis=1)[rows, right - 1]
        counts = ((keys <= largest[:, None]) & any_right).sum(axis=0)
        draws[p] = counts.min(), counts.max()
    return draws


def null_max_min(correct: np.ndarray, seed: int = 0, permutations: int = PERMUTATIONS) -> np.ndarray:
    """Max-Min of `null_extremes` in percent, shape [permutations]."""
    return max_min(null_extremes(correct, seed, permutations), len(correct))


def max_min(counts: np.ndarray, num_items: int) -> np.ndarray:
    """Max-Min in percent over the last axis, from numbers of right answers: equal Max-Min compare as equal."""
    return 100 * np.ptp(counts, axis=-1) / num_items


def accuracy_metrics(correct: np.ndarray) -> dict[str, float]:
    """How good a model is and how far its templates lie apart.

    Args:
        correct: bool, shape [items, templates].

    Returns:
        tm_avg: mean accuracy. tm_max_min: best minus worst template (paper section 3.1). tm_best, tm_worst: those two.
        tm_std: standard deviation over templates (population). Everything is nan for an empty matrix.

    Raises:
        ValueError: the array is not two-dimensional, or not boolean.
    """
    correct = np.asarray(correct)
    if correct.ndim != 2 or correct.dtype != bool:
        raise ValueError(f"expected booleans of shape [items, templates], got {correct.dtype} of shape {correct.shape}")
    names = ("tm_avg", "tm_max_min", "tm_best", "tm_worst", "tm_std")
    if correct.size == 0:
        return dict.fromkeys(names, float("nan"))
    accuracies = template_accuracies(correct)
    spread = max_min(correct.sum(axis=0), len(correct))
    values = accuracies.mean(), spread, accuracies.max(), accuracies.min(), accuracies.std()
    return dict(zip(names, map(float, values), strict=True))


def sensitivity(correct: np.ndarray, seed: int = 0, extremes: np.ndarray | None = None) -> dict[str, float]:
    """`accuracy_metrics`, and whether templates differ more than chance would have it.

    Args:
        correct: bool, shape [items, templates].
        seed: of the permutations behind `tm_null_max_min` and `tm_p_value`.
        extremes: `null_extremes(correct, seed)`, where it is at hand already.

    Returns:
        In addition tm_null_max_min: mean Max-Min of 1,000 such permutations. tm_p_value: share of
        permutations, the measured one included, with a Max-Min as large (Phipson and Smyth 2010), between 1/1001 and 1.

    Raises:
        ValueError: as `accuracy_metrics`.
    """
    values = accuracy_metrics(correct)
    if correct.size == 0:
        return {**values, "tm_null_max_min": float("nan"), "tm_p_value": float("nan")}
    null = max_min(null_extremes(correct, seed) if extremes is None else extremes, len(correct))
    return {**values, "tm_null_max_min": float(null.mean()), "tm_p_value": p_value(values["tm_max_min"], null)}


def p_value(measured: float, null: np.ndarray) -> float:
    """Share of draws, the measured value included, that are as large (Phipson and Smyth 2010)."""
    # The tolerance is for means over benchmarks, where equal values come from different sums.
    return (1 + int((null >= measured - 1e-9).sum())) / (1 + len(null))


def item_consistency(predictions: np.ndarray) -> np.ndarray:
    """Share of template pairs that agree on each item's prediction, in percent, shape [items].

    Args:
        predictions: int, shape [items, templates]. Responses that name no choice (-1) agree with nothing, not even
            with each other.
    """
    num_items, num_templates = predictions.shape
    if num_templates == 1:
        return np.full(num_items, 100.0)
    agreeing = np.zeros(num_items)
    for choice in range(predictions.max(initial=-1) + 1):
        count = (predictions == choice).sum(axis=1)
        agreeing += count * (count - 1)
    return 100 * agreeing / (num_templates * (num_templates - 1))


def consistency(predictions: np.ndarray) -> float:
    """Mean over items of `item_consistency`, or nan where there are none."""
    return float(item_consistency(predictions).mean()) if len(predictions) else float("nan")


def matching_metrics(matrix: Matrix) -> dict[str, float]:
    """tm_consistency, and the shares of answers that embeddings decided and that name no choice."""
    if matrix.predictions.size == 0:
        return dict.fromkeys(("tm_consistency", "tm_embedded", "tm_unmatched"), float("nan"))
    return {
        "tm_consistency": consistency(matrix.predictions),
        "tm_embedded": float(100 * np.mean(matrix.embedded)),
        "tm_unmatched": float(100 * np.mean(matrix.predictions < 0)),
    }


def all_metrics(matrix: Matrix, seed: int = 0, extremes: np.ndarray | None = None) -> dict[str, float]:
    """Every metric of `METRICS`, in its order; the arguments are those of `sensitivity`."""
    values = {**sensitivity(matrix.correct, seed, extremes), **matching_metrics(matrix)}
    return {name: values[name] for name in METRICS}
