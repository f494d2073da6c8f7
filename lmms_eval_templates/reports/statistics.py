"""Intervals, significance and rankings. Accuracy, Max-Min and the permutation null come from `metrics`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from ..metrics import Matrix, all_metrics, max_min, null_extremes, p_value, template_accuracies
from ..rng import random_bits

RESAMPLES = 1000
_TAIL = 0.025  # of a 95% interval
_Z = 1.959964  # the normal distribution's quantile at 1 - _TAIL
_FLIP_BATCH = 1000
_FLIPS = 10 * _FLIP_BATCH
_DIGITS = 9  # to which means are compared: equal numbers of right answers may differ in the last bits of their means


class Estimate(NamedTuple):
    """A figure in percent with its 95% interval, whose ends are nan where a single item was asked about."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Analysis:
    """The statistics of one run.

    Attributes:
        metrics: `metrics.all_metrics`.
        avg: of `tm_avg`.
        max_min: of `tm_max_min`.
        accuracies: of each template in percent, shape [T].
        null_range: lowest and highest template if none were better than another, in percent: in 95% of permutations all
            templates lie within.
        null: Max-Min of the permutations in percent, shape [PERMUTATIONS].
        resampled: what the bootstrap needs for means over runs, shape [RESAMPLES, 3]: the average's deviation, the
            range of the templates' deviations, the deviation of measured best minus measured worst template.
    """

    metrics: dict[str, float]
    avg: Estimate
    max_min: Estimate
    accuracies: np.ndarray
    null_range: tuple[float, float]
    null: np.ndarray
    resampled: np.ndarray


def resample_counts(num_items: int, benchmark: str, seed: int) -> np.ndarray:
    """How often each item is drawn, shape [RESAMPLES, items], float64.

    The same for all template sets and models of a benchmark: they were asked about the same items, so that what they
    share stays shared.
    """
    bits = random_bits(RESAMPLES * num_items, "bootstrap", seed, benchmark)
    drawn = ((bits >> np.uint64(32)) * np.uint64(num_items) >> np.uint64(32)).astype(np.int64)
    drawn += np.repeat(np.arange(RESAMPLES) * num_items, num_items)
    return np.bincount(drawn, minlength=RESAMPLES * num_items).reshape(RESAMPLES, num_items).astype(float)


def analyse(matrix: Matrix, benchmark: str, seed: int) -> Analysis:
    """All statistics of one run.

    The interval of Avg. is the percentile interval of the bootstrap over items. That of Max-Min is not: the best and
    the worst of many templates are partly luck, resampling adds to it, and the percentile interval then lies above the
    true value, nearly always so with 100 templates. Its lower end takes away the range that 97.5% of resamples show
    around the measured accuracies; its upper end is the percentile end of the measured best minus the measured worst
    template, two fixed templates, which holds because picking those two can only overstate the true Max-Min.

    Resamples of items that are all alike do not differ, though other items would: there the ends are Wilson's.
    """
    extremes = null_extremes(matrix.correct, seed)
    accuracies = template_accuracies(matrix.correct)
    num_items = len(matrix.items)
    metrics = all_metrics(matrix, seed, extremes)
    resamples = resample_counts(num_items, benchmark, seed) @ matrix.correct.astype(float) * (100 / num_items)
    deviations = resamples - accuracies
    pair = deviations[:, accuracies.argmax()] - deviations[:, accuracies.argmin()]
    resampled = np.stack([deviations.mean(axis=1), np.ptp(deviations, axis=1), pair], axis=1)
    low, high = np.quantile(extremes[:, 0], _TAIL), np.quantile(extremes[:, 1], 1 - _TAIL)
    return Analysis(
        metrics=metrics,
        avg=_avg_interval(metrics["tm_avg"], resampled, _wilson(metrics["tm_avg"], num_items)),
        max_min=_max_min_interval(
            metrics["tm_max_min"],
            resampled,
            _wilson(metrics["tm_max_min"], num_items) if len(accuracies) > 1 else (0.0, 0.0),
        ),
        accuracies=accuracies,
        null_range=(float(100 * low / num_items), float(100 * high / num_items)),
        null=max_min(extremes, num_items),
        resampled=resampled,
    )


Ends = tuple[float, float]  # of an interval


def _wilson(value: float, num_items: int) -> Ends:
    """Wilson's 95% interval of a share in percent (Wilson 1927), or nan for one item."""
    if num_items == 1:
        return math.nan, math.nan
    share, weight = value / 100, _Z**2 / num_items
    half = math.sqrt(weight * share * (1 - share) + weight**2 / 4)
    middle = share + weight / 2
    return 100 * (middle - half) / (1 + weight), 100 * (middle + half) / (1 + weight)


def _avg_interval(value: float, resampled: np.ndarray, otherwise: Ends) -> Estimate:
    """`otherwise` holds the ends where resamples do not differ."""
    if np.ptp(resampled[:, 0]) < 10.0**-_DIGITS:
        return Estimate(value, *otherwise)
    low, high = np.quantile(resampled[:, 0], [_TAIL, 1 - _TAIL])
    return Estimate(value, float(value + low), float(value + high))


def _max_min_interval(value: float, resampled: np.ndarray, otherwise: Ends) -> Estimate:
    """`otherwise` bounds the interval where no item tells the best from the worst template."""
    low = max(0.0, value - float(np.quantile(resampled[:, 1], 1 - _TAIL)))
    high = min(100.0, value + float(np.quantile(resampled[:, 2], 1 - _TAIL)))
    if np.ptp(resampled[:, 2]) < 10.0**-_DIGITS:
        low, high = np.minimum(low, otherwise[0]), np.maximum(high, otherwise[1])  # of nan they make nan
    return Estimate(value, float(low), float(high))


@dataclass(frozen=True)
class Overall:
    """Plain means over a model's runs, as the paper's Overall column.

    Attributes:
        avg: mean of Avg.
        max_min: mean of Max-Min.
        worst: mean of the worst templates' accuracies in percent.
        null_max_min: mean Max-Min where no template is better than another.
        p_value: share of permutations with a mean Max-Min as large.
    """

    avg: Estimate
    max_min: Estimate
    worst: float
    null_max_min: float
    p_value: float


def overall(analyses: Sequence[Analysis]) -> Overall:
    """The means over runs, each weighing the same."""
    resampled = np.mean([a.resampled for a in analyses], axis=0)
    # Runs of equal shape were permuted with the same random keys; shifting each by another prime multiple makes the
    # draws that are averaged independent of each other.
    null = np.mean([np.roll(a.null, 67 * number) for number, a in enumerate(analyses)], axis=0)
    measured = mean_metric(analyses, "tm_max_min")
    return Overall(
        avg=_avg_interval(mean_metric(analyses, "tm_avg"), resampled, _mean_ends([a.avg for a in analyses])),
        max_min=_max_min_interval(measured, resampled, _mean_ends([a.max_min for a in analyses])),
        worst=mean_metric(analyses, "tm_worst"),
        null_max_min=float(null.mean()),
        p_value=p_value(measured, null),
    )


def _mean_ends(estimates: Sequence[Estimate]) -> Ends:
    low, high = np.mean([(estimate.low, estimate.high) for estimate in estimates], axis=0)
    return float(low), float(high)


def mean_metric(analyses: Iterable[Analysis], name: str) -> float:
    """Plain mean of a metric over runs."""
    return float(np.mean([a.metrics[name] for a in analyses]))


@dataclass(frozen=True)
class Comparison:
    """Two models on the same items and templates; `better` has the higher average, or is the first of equals.

    Attributes:
        difference: of the averages in percent, 0 or more.
        holds: share of templates in percent under which `better` is ahead.
        ties: share under which the two are equal.
        p_value: of a paired permutation test over items, two-sided.
        adjusted: that p-value by Holm's method, over all pairs of models in the same comparison.
    """

    better: str
    worse: str
    difference: float
    holds: float
    ties: float
    p_value: float
    adjusted: float


def compare_all(runs: Mapping[str, Sequence[tuple[str, Matrix]]], seed: int) -> list[Comparison]:
    """Compares each pair of models.

    Args:
        runs: by model, two or more, its benchmarks with a matrix for each template set; the same ones in the same order
            for all.
        seed: of the sign flips.

    Returns:
        Pairs in the order of the models. Each run weighs the same, as in `overall`.
    """
    models = list(runs)
    pairs = list(combinations(range(len(models)), 2))
    left, right = np.array(pairs).T
    differences: dict[str, np.ndarray] = {}  # benchmark -> summed over its template sets, shape [pairs, items]
    signs = []  # who is ahead under each template: 1, 0 or -1, shape [pairs, T]
    for number, (benchmark, _) in enumerate(runs[models[0]]):
        correct = np.stack([runs[model][number][1].correct for model in models])
        counts, items = correct.sum(axis=1), correct.mean(axis=2)
        differences[benchmark] = differences.get(benchmark, 0) + items[left] - items[right]
        signs.append(np.sign(counts[left] - counts[right]))
    mean = np.round(sum(d.mean(axis=1) for d in differences.values()) / len(signs), _DIGITS)
    p_values = _sign_flip_p_values(differences, seed)
    adjusted = holm(p_values)
    ahead = np.concatenate(signs, axis=1) * np.where(mean < 0, -1, 1)[:, None]
    return [
        Comparison(
            better=models[b if mean[k] < 0 else a],
            worse=models[a if mean[k] < 0 else b],
            difference=100 * abs(float(mean[k])),
            holds=100 * float((ahead[k] > 0).mean()),
            ties=100 * float((ahead[k] == 0).mean()),
            p_value=float(p_values[k]),
            adjusted=float(adjusted[k]),
        )
        for k, (a, b) in enumerate(pairs)
    ]


def _sign_flip_p_values(differences: Mapping[str, np.ndarray], seed: int) -> np.ndarray:
    """Two-sided p-values, shape [pairs]: each item's difference is as likely as its opposite if the models are equal.

    An item keeps one sign in all template sets of its benchmark.
    """
    measured = np.abs(sum(d.mean(axis=1) for d in differences.values()))
    as_large = np.zeros(len(measured), np.int64)
    for batch in range(_FLIPS // _FLIP_BATCH):
        sums = 0
        for benchmark, d in differences.items():
            num_items = d.shape[1]
            words = random_bits(-(-_FLIP_BATCH * num_items // 64), "flip", seed, benchmark, batch).astype("<u8")
            bits = np.unpackbits(words.view(np.uint8))[: _FLIP_BATCH * num_items].reshape(_FLIP_BATCH, num_items)
            sums = sums + (bits * 2.0 - 1.0) @ d.T / num_items
        as_large += (np.abs(sums) >= measured - 1e-9).sum(axis=0)
    return (1 + as_large) / (1 + _FLIPS)


def holm(p_values: np.ndarray) -> np.ndarray:
    """Holm's step-down adjustment (Holm 1979), shape as given."""
    order = np.argsort(p_values, kind="stable")
    steps = np.maximum.accumulate(p_values[order] * np.arange(len(p_values), 0, -1))
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum(steps, 1)
    return adjusted


@dataclass(frozen=True)
class Agreement:
    """Whether two template sets rank models alike.

    Attributes:
        tau: Kendall's tau-b, or nan where a ranking is all ties.
        reversed_pairs: (ahead by the first set, ahead by the second).
        tied_first: (ahead by the second set, the other), of pairs that are equal by the first.
        tied_second: (ahead by the first set, the other), of pairs that are equal by the second.
    """

    tau: float
    reversed_pairs: tuple[tuple[str, str], ...]
    tied_first: tuple[tuple[str, str], ...]
    tied_second: tuple[tuple[str, str], ...]


def ranking_agreement(first: Mapping[str, float], second: Mapping[str, float]) -> Agreement:
    """Compares two rankings of the same models by their averages (paper section 3, the reversal finding)."""
    from scipy.stats import kendalltau

    models = list(first)
    first, second = ({model: round(ranking[model], _DIGITS) for model in models} for ranking in (first, second))

    def pairs(ranking: Mapping[str, float], other: Mapping[str, float], sign: int) -> tuple[tuple[str, str], ...]:
        """Pairs (ahead, behind) of a ranking that the other orders so: 0 equal, -1 the other way round."""
        ordered = ((a, b) if ranking[a] > ranking[b] else (b, a) for a, b in combinations(models, 2))
        return tuple((a, b) for a, b in ordered if ranking[a] > ranking[b] and np.sign(other[a] - other[b]) == sign)

    tau = kendalltau([first[m] for m in models], [second[m] for m in models]).statistic
    return Agreement(float(tau), pairs(first, second, -1), pairs(second, first, 0), pairs(first, second, 0))
