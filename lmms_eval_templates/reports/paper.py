"""Tables 1 and 2 of the paper, for reference beside one's own rows."""

from __future__ import annotations

import csv
from collections import defaultdict
from importlib import resources
from typing import NamedTuple

PAPER = "the paper, Template Matters"


class Score(NamedTuple):
    """Avg. and Max-Min of a model on one benchmark with one template set, in percent."""

    avg: float
    max_min: float


# Model -> (benchmark, setting) -> score.
Scores = dict[str, dict[tuple[str, str], Score]]


def paper_scores(table: int) -> Scores:
    """The rows of Table 1 (simple, complex) or Table 2 (simple, complex, ood); the two differ in a few cells."""
    scores: Scores = defaultdict(dict)
    with resources.files(__package__).joinpath("paper.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            if int(row["table"]) == table:
                key = row["benchmark"], row["setting"]
                scores[row["model"]][key] = Score(float(row["avg"]), float(row["max_min"]))
    return dict(scores)
