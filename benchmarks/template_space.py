"""Speed of the template space, against a generator that works as the paper describes its own.

The baseline walks the tree and fills the slots anew for each template (paper, Algorithm 2) and rejects repetitions.
Run: python benchmarks/template_space.py
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from lmms_eval_templates import VQA, assign_templates
from lmms_eval_templates.rng import sample_without_replacement

PAPER_TEMPLATES_A_SECOND = 9_500  # the paper's published code, measured on one core of another machine


def best_of(repeats: int, work: Callable[[], object]) -> float:
    """Seconds of the fastest run: other processes only add."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def walk_without_repetition(n: int) -> set[str]:
    rng, found = random.Random(0), set()
    while len(found) < n:
        found.add(VQA.walk(rng))
    return found


def main() -> None:
    indices = sample_without_replacement(len(VQA), 100_000, 0)
    texts = VQA.take(indices)
    by_index = len(indices) / best_of(5, lambda: VQA.take(indices))
    by_walk = 500 / best_of(3, lambda: walk_without_repetition(500))
    sampled = best_of(5, lambda: VQA.sample(15_000, 0))
    assigned = best_of(5, lambda: assign_templates(665_000, texts[:15_000], 0))
    lookup = best_of(5, lambda: [VQA.index(text) for text in texts[:5_000]]) / 5_000
    print(f"by index                 {by_index:>12,.0f} templates a second (wanted: 1,000,000)")
    print(f"  against walking        {by_index / by_walk:>12,.0f} times, in this run")
    print(f"  against the paper's    {by_index / PAPER_TEMPLATES_A_SECOND:>12,.0f} times, its figure from elsewhere")
    print(f"15,000 distinct          {sampled:>12.4f} s (wanted: well under 0.1)")
    print(f"665,000 assignments      {assigned:>12.4f} s (wanted: under 1)")
    print(f"index(text)              {lookup * 1e6:>12.1f} microseconds (wanted: under 100)")


if __name__ == "__main__":
    main()
