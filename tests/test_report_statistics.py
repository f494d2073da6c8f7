"""Statistics against scipy, closed forms, hand-worked cases and the paper's tables."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from lmms_eval_templates.metrics import Cell, Matrix, accuracy_metrics, build_matrix, item_consistency, null_extremes
from lmms_eval_templates.reports.layouts import table1, table2
from lmms_eval_templates.reports.paper import paper_scores
from lmms_eval_templates.reports.statistics import (
    analyse,
    compare_all,
    holm,
    overall,
    ranking_agreement,
    resample_counts,
)

PAPER_TABLES = Path(__file__).parents[2] / "shared" / "paper"
# The Overall column of the paper's Table 2.
OVERALL = {
    "LLaVA-1.5-7B": ("48.94", "13.93"),
    "LLaVA-Next-7B": ("48.95", "11.73"),
    "Qwen-VL-7B": ("34.18", "10.47"),
    "Qwen-VL-Chat-7B": ("50.08", "12.47"),
    "IDEFICS2-8B": ("47.28", "11.33"),
    "LLaVA-1.5-7B-Base w/ Ours": ("54.18", "8.84"),
    "LLaVA-1.5-13B": ("54.13", "10.20"),
    "LLaVA-Next-13B": ("51.06", "11.27"),
    "LLaVA-1.5-13B-Base w/ Ours": ("55.21", "9.27"),
}


def matrix(correct) -> Matrix:
    """Right answers choose 0, wrong ones 1."""
    correct = np.asarray(correct, bool)
    return build_matrix(
        (Cell(f"{i:04}", t, 0, int(not right), "identifier") for (i, t), right in np.ndenumerate(correct)),
        correct.shape[1],
    )


def test_the_papers_numbers_give_its_overall_column():
    rows = table2([("", paper_scores(2))]).blocks[0][1]
    assert {row[0].text: row[-1].text for row in rows if row[1].text == "Avg."} == {m: v[0] for m, v in OVERALL.items()}
    assert {row[0].text: row[-1].text for row in rows if row[1].text == "Max-Min"} == {
        m: v[1] for m, v in OVERALL.items()
    }


def test_table_1_shows_the_papers_changes_in_brackets():
    table = table1([("", paper_scores(1))])
    assert [" ".join(column) for column in table.columns[2:6]] == [
        *("BLINK Simple", "BLINK Complex", "MMBench Simple", "MMBench Complex")
    ]
    rows = {(row[0].text, row[1].text): [cell.text for cell in row[2:]] for row in table.blocks[0][1]}
    assert len(rows) == 16
    assert rows["InternVL-Chat-1.5-24B", "Max-Min"][:4] == ["6.00", "24.00 (+18.00)", "7.00", "29.00 (+22.00)"]
    assert rows["LLaVA-1.5-7B", "Max-Min"][3] == "16.00 (-2.00)"
    bold = {row[0].text for row in table.blocks[0][1] for cell in row[3:4] if cell.bold and row[1].text == "Avg."}
    assert bold == {"IDEFICS2-8B"}  # 45.97, the highest in that column


@pytest.mark.skipif(not PAPER_TABLES.exists(), reason="the paper's tables are not here")
@pytest.mark.parametrize("number", [1, 2])
def test_the_shipped_csv_holds_the_papers_cells(number):
    settings = {"S": "simple", "ID": "complex", "OOD": "ood"}
    with (PAPER_TABLES / f"table{number}.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["benchmark"] != "overall"]
    shipped = paper_scores(number)
    assert sum(map(len, shipped.values())) == len(rows) == (80, 135)[number - 1]
    for row in rows:
        score = shipped[row["model"]][row["benchmark"], settings.get(row["setting"], row["setting"])]
        assert score == (float(row["avg"]), float(row["max_min"]))


def test_the_papers_reversals_are_found():
    """Section 3 names these four."""
    scores = paper_scores(1)
    by = {(b, s): {model: values[b, s].avg for model, values in scores.items()} for b, s in scores["LLaVA-1.5-7B"]}
    agreements = {b: ranking_agreement(by[b, "simple"], by[b, "complex"]) for b in ("blink", "seedbench", "mmmu")}
    assert ("LLaVA-1.5-7B", "LLaVA-1.5-13B") in agreements["blink"].reversed_pairs
    for agreement in agreements.values():
        assert ("LLaVA-Next-7B", "LLaVA-Next-13B") in agreement.reversed_pairs
    # Without ties tau is 1 - 4 x reversals / (n (n - 1)).
    reversals = len(agreements["blink"].reversed_pairs)
    assert agreements["blink"].tau == pytest.approx(1 - 4 * reversals / (8 * 7))


def test_ranking_agreement_counts_ties():
    agreement = ranking_agreement({"a": 3, "b": 2, "c": 2}, {"a": 1, "b": 5, "c": 1})
    # Pairs: a-b reversed, a-c tied in the second, b-c tied in the first: (0 - 1) / sqrt(2 x 2).
    assert agreement.tau == pytest.approx(-0.5)
    assert agreement.reversed_pairs == (("a", "b"),)
    assert agreement.tied_first == (("b", "c"),)
    assert agreement.tied_second == (("a", "c"),)


def test_models_with_as_many_right_answers_are_ties():
    """Their means differ in the last bits, as do the sums over items."""
    random = np.random.default_rng(1)
    for _ in range(200):
        a = random.random((30, 100)) < 0.5
        b = random.permutation(a.ravel()).reshape(a.shape)
        x, y = (accuracy_metrics(m)["tm_avg"] for m in (a, b))
        ordered = [("a", a), ("b", b)] if (a.mean(axis=1) - b.mean(axis=1)).mean() < 0 else [("b", b), ("a", a)]
        if x != y and (ordered[0][1].mean(axis=1) - ordered[1][1].mean(axis=1)).mean() < 0:
            break
    agreement = ranking_agreement({"a": y, "b": x, "c": 0.0}, {"a": x, "b": y, "c": 0.0})
    assert agreement.reversed_pairs == ()
    assert agreement.tau == pytest.approx(1)
    (pair,) = compare_all({name: [("x", matrix(m))] for name, m in ordered}, seed=0)
    assert (pair.better, pair.difference) == (ordered[0][0], 0)


def test_the_interval_of_avg_is_that_of_scipys_bootstrap():
    correct = np.random.default_rng(1).random((80, 30)) < np.random.default_rng(2).random((80, 1))
    expected = scipy.stats.bootstrap(
        (correct.mean(axis=1),), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(0)
    ).confidence_interval
    estimate = analyse(matrix(correct), "blink", seed=0).avg
    assert estimate.value == pytest.approx(100 * correct.mean())
    assert estimate.low == pytest.approx(100 * expected.low, abs=0.7)
    assert estimate.high == pytest.approx(100 * expected.high, abs=0.7)


def test_resamples_draw_items_uniformly_and_with_replacement():
    counts = resample_counts(50, "blink", seed=0)
    assert (counts.sum(axis=1) == 50).all()
    # A count is binomial(50, 1/50), with mean 1 and variance 0.98.
    assert counts.mean() == 1
    assert counts.var() == pytest.approx(0.98, rel=0.05)
    _, p = scipy.stats.chisquare(counts.sum(axis=0))
    assert p > 0.001
    assert (counts == resample_counts(50, "blink", seed=0)).all()
    assert (counts != resample_counts(50, "blink", seed=1)).any()


@pytest.mark.parametrize(
    ("items", "shares"), [(30, [0.6, 0.5, 0.5]), (100, [0.55, 0.5, 0.5]), (100, [0.99, 0.99, 0.98])]
)
def test_the_interval_of_max_min_covers_the_truth_where_templates_mostly_agree(items, shares):
    """Few items, or none, tell the best template from the worst; what one template gets right, so does a better one."""
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(60):
        estimate = analyse(matrix(random.random((items, 1)) < np.array(shares)), "blink", seed=0).max_min
        covered += estimate.low <= 100 * np.ptp(shares) <= estimate.high
    assert covered >= 54


@pytest.mark.parametrize("right", [0, 30])
def test_intervals_where_no_item_differs_are_wilsons(right):
    analysis = analyse(matrix(np.full((30, 5), right > 0)), "blink", seed=0)
    for estimate, count in ((analysis.avg, right), (analysis.max_min, 0), (overall([analysis] * 2).avg, right)):
        expected = scipy.stats.binomtest(count, 30).proportion_ci(method="wilson")
        assert estimate == pytest.approx((100 * count / 30, 100 * expected.low, 100 * expected.high))


def test_one_item_has_no_interval_and_one_template_no_spread():
    one = analyse(matrix([[True, False]]), "blink", seed=0)
    assert one.avg.value == 50
    assert np.isnan([one.avg.low, one.avg.high, one.max_min.low, one.max_min.high]).all()
    assert np.isnan(overall([one]).avg.low)
    assert analyse(matrix([[True], [False]]), "blink", seed=0).max_min == (0, 0, 0)


@pytest.mark.parametrize(("spread", "templates"), [(0.0, 25), (1.5, 25), (1.5, 2)])
def test_the_interval_of_max_min_covers_the_truth(spread, templates):
    """The percentile interval would cover a true Max-Min of 0 never: every resample shows one above 0."""
    random = np.random.default_rng(0)
    effects = np.linspace(-spread / 2, spread / 2, templates)

    def chances(items: int) -> np.ndarray:
        return 1 / (1 + np.exp(-(random.normal(size=(items, 1)) + effects)))

    truth = 100 * np.ptp(chances(200_000).mean(axis=0))
    covered = 0
    for _ in range(60):
        p = chances(60)
        estimate = analyse(matrix(random.random(p.shape) < p), "blink", seed=0).max_min
        assert estimate.low <= estimate.value <= estimate.high
        covered += estimate.low <= truth <= estimate.high
    assert covered >= 54  # 95% of 60 less three standard deviations is 52


def test_null_extremes_of_what_cannot_be_permuted():
    correct = np.array([[True] * 5] * 3 + [[False] * 5] * 4)
    assert (null_extremes(correct) == 3).all()


def test_null_extremes_of_one_right_answer_an_item():
    """Two items, two templates, one right answer each: both on one template or one on each, with equal chances."""
    draws = null_extremes(np.array([[True, False], [False, True]]), permutations=4000)
    assert {tuple(draw) for draw in draws.tolist()} == {(0, 2), (1, 1)}
    assert (draws[:, 1] == 2).mean() == pytest.approx(0.5, abs=0.04)


def test_item_consistency_by_hand():
    # AAB: 1 of 3 pairs; AAA: 3 of 3; A and two that name no choice: none.
    assert item_consistency(np.array([[0, 0, 1], [0, 0, 0], [0, -1, -1]])) == pytest.approx([100 / 3, 100, 0])


def test_overall_averages_independent_nulls():
    """Runs of one shape are permuted with the same keys; a mean of ten must still spread 1 / sqrt(10) as far."""
    correct = np.random.default_rng(0).random((40, 20)) < 0.5
    one = analyse(matrix(correct), "blink", seed=0)
    means = overall([one] * 10)
    assert means.avg.value == pytest.approx(100 * correct.mean())
    assert means.null_max_min == pytest.approx(one.null.mean())
    spread = np.std(np.mean([np.roll(one.null, 67 * n) for n in range(10)], axis=0))
    assert spread == pytest.approx(one.null.std() / np.sqrt(10), rel=0.2)
    # The measured Max-Min lies at the middle of one null, so that the mean of ten cannot be significant either.
    assert means.p_value == pytest.approx(
        1 - scipy.stats.norm.cdf((one.max_min.value - one.null.mean()) / spread), abs=0.05
    )


def test_overall_keeps_template_sets_of_a_benchmark_together():
    """The same items twice are no more items: the interval must not shrink, but with another benchmark it must."""
    correct = np.random.default_rng(0).random((50, 10)) < np.random.default_rng(1).random((50, 1))
    one, other = analyse(matrix(correct), "blink", 0), analyse(matrix(correct), "mmmu", 0)
    width = one.avg.high - one.avg.low
    same, mixed = overall([one, one]).avg, overall([one, other]).avg
    assert same.high - same.low == pytest.approx(width)
    assert mixed.high - mixed.low == pytest.approx(width / np.sqrt(2), rel=0.15)


def test_pairs_by_hand():
    # Accuracies by template: a 2/2, 1/2, 1/2; b 1/2, 1/2, 2/2: a tie on average, one ahead each, one tie.
    a, b = [[1, 1, 0], [1, 0, 1]], [[1, 0, 1], [0, 1, 1]]
    c = [[0, 0, 0], [1, 0, 0]]
    ab, ac, bc = compare_all({name: [("x", matrix(m))] for name, m in (("a", a), ("b", b), ("c", c))}, seed=0)
    assert (ab.better, ab.worse, ab.difference) == ("a", "b", 0)
    assert (ab.holds, ab.ties) == (pytest.approx(100 / 3), pytest.approx(100 / 3))
    assert ab.p_value == 1
    assert (ac.better, ac.holds, ac.ties) == ("a", 100, 0)
    assert ac.difference == pytest.approx(100 * (4 - 1) / 6)
    assert (bc.better, bc.ties) == ("b", pytest.approx(100 / 3))


def test_paired_significance_is_that_of_scipys_exact_test():
    random = np.random.default_rng(5)
    a, b = random.random((12, 8)) < 0.6, random.random((12, 8)) < 0.45
    (comparison,) = compare_all({"a": [("x", matrix(a))], "b": [("x", matrix(b))]}, seed=0)
    exact = scipy.stats.permutation_test(
        (a.mean(axis=1) - b.mean(axis=1),), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    assert comparison.p_value == pytest.approx(exact.pvalue, abs=0.015)
    assert comparison.difference == pytest.approx(100 * abs(a.mean() - b.mean()))


def test_holms_method_by_hand():
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
