"""Random numbers that are the same on every machine and in every library version.

Python and NumPy promise stable streams for some of their functions only, and a published score must not move when
either is upgraded. SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014)
is ten lines, passes BigCrush and is defined bit by bit.
"""

from __future__ import annotations

import hashlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def stable_hash(*parts: object) -> int:
    """64-bit hash of the printed parts, the same in every process (unlike `hash`)."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def splitmix64(state: int, n: int) -> np.ndarray:
    """The first `n` outputs of SplitMix64 from a 64-bit state, shape [n], uint64."""
    z = np.uint64(state) + _GOLDEN * np.arange(1, n + 1, dtype=np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def random_bits(n: int, *seed: object) -> np.ndarray:
    """`n` uniform 64-bit integers from a seed of any printable parts, shape [n], uint64."""
    return splitmix64(stable_hash(*seed), n)


def permutation(n: int, *seed: object) -> np.ndarray:
    """A uniform permutation of 0..n-1, shape [n], int64."""
    return np.argsort(random_bits(n, *seed), kind="stable")


def sample_without_replacement(population: int, n: int, *seed: object) -> np.ndarray:
    """`n` distinct integers from 0..population-1 in random order, shape [n], int64.

    Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", CACM 1987): O(n) whatever the population. A draw
    below k takes the high word of 64 random bits times k, whose bias is below k / 2**64.
    """
    chosen: dict[int, None] = {}
    for top, bits in zip(range(population - n, population), random_bits(n, "floyd", *seed).tolist(), strict=True):
        draw = bits * (top + 1) >> 64
        chosen[top if draw in chosen else draw] = None
    return np.fromiter(chosen, dtype=np.int64, count=n)[permutation(n, "order", *seed)]
