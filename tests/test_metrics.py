import itertools

import numpy as np
import pytest
from scipy import stats

from lmms_eval_templates import sensitivity
from lmms_eval_templates.metrics import METRICS, Cell, all_metrics, build_matrix, consistency, null_max_min

# Four items, three templates. Right answers a template: 3, 2, 1 of 4.
HAND = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=bool)


def test_hand_worked_matrix():
    values = sensitivity(HAND)
    assert values["tm_avg"] == pytest.approx(50)
    assert values["tm_max_min"] == pytest.approx(50)
    assert values["tm_best"] == pytest.approx(75)
    assert values["tm_worst"] == pytest.approx(25)
    # Deviations 25, 0, -25: the root of (625 + 0 + 625) / 3.
    assert values["tm_std"] == pytest.approx(20.41241452)


def test_null_against_every_arrangement():
    """Rows 2 and 3 can each be arranged in three ways, the others in one: nine equally likely Max-Min."""
    ranges = []
    for zero, one in itertools.product(range(3), range(3)):  # where row 2 is wrong, where row 3 is right
        counts = np.array([1, 1, 1]) + (np.arange(3) != zero) + (np.arange(3) == one)
        ranges.append(100 * np.ptp(counts) / 4)
    draws = null_max_min(HAND, seed=0, permutations=20_000)
    assert set(np.unique(draws)) == set(ranges)
    observed = [np.sum(draws == value) for value in sorted(set(ranges))]
    expected = [20_000 * ranges.count(value) / 9 for value in sorted(set(ranges))]
    assert stats.chisquare(observed, expected).pvalue > 1e-4
    values = sensitivity(HAND)
    assert values["tm_null_max_min"] == pytest.approx(np.mean(ranges), abs=1.5)
    assert values["tm_p_value"] == pytest.approx(np.mean(np.array(ranges) >= 50), abs=0.05)


def test_p_value_agrees_with_scipy():
    rng = np.random.default_rng(3)
    correct = rng.random((30, 8)) < np.linspace(0.35, 0.6, 8)

    def max_min(*columns, axis=-1):
        return np.ptp(np.mean(np.stack(columns), axis=axis), axis=0)

    # "samples": observations are permuted among the samples within each pairing, here among the templates of an item.
    expected = stats.permutation_test(
        tuple(correct.T.astype(float)),
        max_min,
        permutation_type="samples",
        n_resamples=4000,
        alternative="greater",
        rng=np.random.default_rng(0),
        vectorized=True,
    ).pvalue
    assert sensitivity(correct)["tm_p_value"] == pytest.approx(expected, abs=0.04)


def test_p_values_of_insensitive_models_are_not_small_too_often():
    rng = np.random.default_rng(0)
    p_values = [sensitivity(rng.random((40, 10)) < 0.5, seed=s)["tm_p_value"] for s in range(60)]
    # A valid test rejects at 5% in about 3 of 60; 10 or more has a probability below 0.001.
    assert sum(p <= 0.05 for p in p_values) < 10
    assert min(p_values) >= 1 / 1001


def test_a_model_that_cares_about_wording_only():
    correct = np.tile([True, True, False, False], (25, 1))
    values = sensitivity(correct)
    assert (values["tm_max_min"], values["tm_p_value"]) == (100, pytest.approx(1 / 1001))


def test_null_is_seeded():
    assert (null_max_min(HAND, 1, 50) == null_max_min(HAND, 1, 50)).all()
    assert (null_max_min(HAND, 1, 50) != null_max_min(HAND, 2, 50)).any()


def test_constant_and_empty_matrices():
    right = sensitivity(np.ones((5, 4), bool))
    assert (right["tm_avg"], right["tm_max_min"], right["tm_null_max_min"], right["tm_p_value"]) == (100, 0, 0, 1)
    assert np.isnan(sensitivity(np.zeros((0, 4), bool))["tm_avg"])


@pytest.mark.parametrize("bad", [np.ones(3, bool), np.ones((2, 2)), [[0, 1]]])
def test_what_is_no_boolean_matrix_is_refused(bad):
    with pytest.raises(ValueError, match=r"expected booleans of shape \[items, templates\]"):
        sensitivity(bad)


def test_consistency_by_hand():
    # Item 1: predictions 0, 0, 1: one of three pairs agrees. Item 2: all three agree. Item 3: no prediction agrees.
    assert consistency(np.array([[0, 0, 1], [2, 2, 2], [-1, -1, 0]])) == pytest.approx(100 * (1 / 3 + 1 + 0) / 3)
    assert consistency(np.array([[1], [0]])) == 100
    assert np.isnan(consistency(np.zeros((0, 3), int)))


def cells(correct, answer=1):
    return [
        Cell(f"i{i}", t, answer, answer if right else None, "identifier" if right else None)
        for i, row in enumerate(correct)
        for t, right in enumerate(row)
    ]


def test_matrix_from_cells_in_any_order():
    shuffled = [cells(HAND)[k] for k in np.random.default_rng(0).permutation(12)]
    matrix = build_matrix(shuffled, 3)
    assert (matrix.correct == HAND).all() and matrix.items == ("i0", "i1", "i2", "i3") and not matrix.left_out
    values = all_metrics(matrix)
    assert list(values) == list(METRICS)
    assert values["tm_unmatched"] == 50 and values["tm_embedded"] == 0


def test_incomplete_items_are_left_out_not_counted_as_wrong():
    some = [cell for cell in cells(HAND) if not (cell.item == "i3" and cell.template == 2)]
    matrix = build_matrix(some, 3)
    assert matrix.left_out == ("i3",) and len(matrix.items) == 3
    assert all_metrics(matrix)["tm_avg"] == pytest.approx(100 * 6 / 9)
    assert np.isnan(all_metrics(build_matrix(some[:2], 3))["tm_avg"])


def test_impossible_cells_are_refused():
    with pytest.raises(ValueError, match="answered twice"):
        build_matrix([*cells(HAND), cells(HAND)[0]], 3)
    with pytest.raises(ValueError, match="has template 2; the set has 0 to 1"):
        build_matrix(cells(HAND), 2)


def test_records_round_trip():
    cell = Cell("i", 3, 1, 1, "both")
    assert cell.record()["correct"] is True
    assert Cell.from_record(cell.record()) == cell
