"""Ranks submissions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from ..sets import TemplateError
from ..signature import Signature
from .layouts import benchmark_name, overall_score, setting_name, table2
from .output import new_folder
from .page import render
from .paper import Score, Scores, paper_scores
from .report import PAGE
from .submission import Submission
from .summary import Key, sort_keys
from .tables import MISSING, WRITERS, Cell, Table, number, text

_VERSIONS = ("version", "lmms_eval")  # need not be equal
_REFERENCE = "from the paper, for reference (other items and templates)"


def differences(submissions: Sequence[Submission]) -> list[str]:
    """Why scores cannot be compared: runs that some lack, and fields of signatures that differ."""
    found = []
    keys = sort_keys({key for submission in submissions for key in submission.analyses})
    names = [field.name for field in fields(Signature) if field.name not in _VERSIONS]
    for key in keys:
        where = f"{benchmark_name(key[0])} with the {setting_name(key[1])} templates"
        lacking = [submission.model for submission in submissions if key not in submission.analyses]
        if lacking:
            found.append(f"{where}: not run by {', '.join(lacking)}")
        for name in names:
            models = defaultdict(list)
            for submission in submissions:
                if key in submission.signatures:
                    models[str(getattr(submission.signatures[key], name))].append(submission.model)
            if len(models) > 1:
                listed = "; ".join(f"{name}:{value} ({', '.join(models[value])})" for value in sorted(models))
                found.append(f"{where}: {listed}")
    return found


def rank_ranges(submissions: Sequence[Submission]) -> list[tuple[int, int]]:
    """Each model's best and worst rank over the templates, by its mean over benchmarks under one template.

    The submissions must have been asked with the same templates. Benchmarks with different sets stay apart, whatever
    the sets are called: the same place in two sets is not the same template.
    """
    sets: dict[str, list[Key]] = defaultdict(list)
    for key, signature in submissions[0].signatures.items():
        sets[signature.templates_hash].append(key)
    ranks = []
    for keys in sets.values():
        means = np.array(
            [np.mean([submission.analyses[key].accuracies for key in keys], axis=0) for submission in submissions]
        )
        ranks.append(1 + (means[None] > means[:, None] + 1e-9).sum(axis=1))
    over_all = np.concatenate(ranks, axis=1)
    return [(int(row.min()), int(row.max())) for row in over_all]


def leaderboard_table(submissions: Sequence[Submission], mixed: bool, with_paper: bool) -> Table:
    """The ranking by overall Avg.

    Args:
        submissions: two or more, or one.
        mixed: whether they were asked different things, so that ranks over templates mean nothing.
        with_paper: whether the paper's models stand below, without a rank.
    """
    averages = [submission.overall.avg.value for submission in submissions]
    ranges = [None] * len(submissions) if mixed else rank_ranges(submissions)
    rows = [
        _row(1 + sum(other > averages[place] + 1e-9 for other in averages), submissions[place], ranges[place])
        for place in sorted(range(len(submissions)), key=lambda i: (-averages[i], submissions[i].model))
    ]
    blocks = [("submissions" if with_paper else "", rows)]
    if with_paper:
        blocks.append((_REFERENCE, [_paper_row(model, scores) for model, scores in paper_scores(2).items()]))
    return Table(
        name="leaderboard",
        caption="Ranking by overall Avg., in percent: the plain mean over benchmarks and template sets. Low and high "
        "are 95% intervals by bootstrap over items; p is the chance of this Max-Min where no template is better than "
        "another.",
        columns=[
            *(("Rank",), ("Model",)),
            *(("Avg.", part) for part in ("mean", "low", "high")),
            *(("Max-Min", part) for part in ("mean", "low", "high", "p")),
            ("Worst case",),
            *(("Rank over templates", part) for part in ("best", "worst")),
            *(("Date",), ("Hardware",)),
        ],
        blocks=blocks,
        key_columns=2,
        notes=[
            "Worst case is the mean accuracy with each run's worst template. Rank over templates is the best and the "
            "worst rank that a model takes when a single template decides."
        ],
    )


def _row(rank: int, submission: Submission, over_templates: tuple[int, int] | None) -> list[Cell]:
    means = submission.overall
    return [
        *(number(rank, 0), text(submission.model)),
        *map(number, means.avg),
        *map(number, means.max_min),
        *(number(means.p_value, 3), number(means.worst)),
        *([number(rank, 0) for rank in over_templates] if over_templates else [_nothing()] * 2),
        *(text(submission.content["date"]), text(submission.content["hardware"])),
    ]


def _nothing() -> Cell:
    return number(float("nan"))


def _paper_row(model: str, scores: dict[Key, Score]) -> list[Cell]:
    mean = overall_score(scores, list(scores))
    dash = _nothing()
    empty = text(MISSING)
    return [dash, text(model), number(mean.avg), dash, dash, number(mean.max_min), *[dash] * 6, empty, empty]


def write_leaderboard(
    submissions: Sequence[Submission], output: str | Path, mixed: bool = False, with_paper: bool = False
) -> None:
    """Writes the ranking as Markdown, CSV, LaTeX and a page.

    Args:
        submissions: checked ones.
        output: folder; an earlier leaderboard there is replaced.
        mixed: rank them though they were asked different things; the page says so.
        with_paper: show the paper's rows for reference.

    Raises:
        TemplateError: they cannot be compared, and `mixed` is false; or two are of one model.
    """
    names = [submission.model for submission in submissions]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TemplateError(f"several submissions of {', '.join(twice)}; give one a model, or rename with NAME=FOLDER")
    found = differences(submissions)
    if found and not mixed:
        raise TemplateError(
            "these submissions cannot be ranked together; leave some out, or rank them anyway with --mixed:\n- "
            + "\n- ".join(found)
        )
    ranking = leaderboard_table(submissions, bool(found), with_paper)
    own: Scores = {
        submission.model: {
            key: Score(a.metrics["tm_avg"], a.metrics["tm_max_min"]) for key, a in submission.analyses.items()
        }
        for submission in submissions
    }
    blocks = [("submissions" if with_paper else "", own)] + ([(_REFERENCE, paper_scores(2))] if with_paper else [])
    tables = [ranking, table2(blocks)]
    page = render("leaderboard.html", tables, notes=found, submissions=[s.content for s in submissions])
    with new_folder(output) as folder:
        for table in tables:
            for suffix, write in WRITERS.items():
                (folder / f"{table.name}.{suffix}").write_text(write(table), "utf-8")
        (folder / PAGE).write_text(page, "utf-8")
