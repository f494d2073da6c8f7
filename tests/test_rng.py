import numpy as np
from scipy import stats

from lmms_eval_templates.rng import permutation, random_bits, sample_without_replacement, splitmix64


def test_splitmix64_gives_the_published_stream():
    # First outputs from state 1234567, as the reference implementation prints them (rosettacode.org, "Pseudo-random
    # numbers/Splitmix64").
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert splitmix64(1234567, 5).tolist() == expected


def test_parts_of_a_seed_do_not_run_together():
    assert random_bits(1, "a", 12) != random_bits(1, "a1", 2)


def test_permutation_holds_every_number_once():
    assert sorted(permutation(1000, 3)) == list(range(1000))


def test_samples_are_distinct_and_every_position_is_uniform():
    draws = np.array([sample_without_replacement(10, 4, seed) for seed in range(4000)])
    assert all(len(set(row)) == 4 for row in draws.tolist())
    for position in range(4):
        counts = np.bincount(draws[:, position], minlength=10)
        assert stats.chisquare(counts).pvalue > 1e-4


def test_sample_of_everything_is_a_permutation():
    assert sorted(sample_without_replacement(50, 50, 0)) == list(range(50))
