"""The report's tables: the paper's two, and the statistics behind them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from .paper import Score, Scores
from .statistics import Analysis, Estimate
from .summary import OVERALL, Key, Summary, sort_keys
from .tables import MISSING, Cell, Table, embolden, number, text

_BENCHMARK_NAMES = {
    "blink": "BLINK",
    "mmbench": "MMBench",
    "seedbench": "SeedBench",
    "tma": "TMA",
    "mmmu": "MMMU",
    "demo": "Demo",
    "overall": "Overall",
}
_TABLE_1 = {"simple": "Simple", "complex": "Complex"}
_TABLE_2 = {"simple": "S", "complex": "ID", "ood": "OOD"}
EXTREMES = 10  # best and worst templates listed

Blocks = Sequence[tuple[str, Scores]]


def benchmark_name(benchmark: str) -> str:
    """ "BLINK" for "blink"; other names as they are."""
    return _BENCHMARK_NAMES.get(benchmark, benchmark)


def setting_name(setting: str) -> str:
    """ "OOD" for "ood"; other names as they are."""
    return "OOD" if setting == "ood" else setting.capitalize() if setting in _TABLE_2 else setting


def table1(blocks: Blocks) -> Table:
    """Table 1: Simple and Complex; the change of Max-Min from one to the other stands in brackets.

    Args:
        blocks: title and scores; the best of each column is in bold within a block.
    """
    keys = [key for key in _keys(blocks) if key[1] in _TABLE_1]
    return Table(
        name="table1",
        caption="Accuracy and Max-Min in percent with the simple and the complex templates (the paper's Table 1).",
        columns=[("Model",), ("",), *((benchmark_name(b), _TABLE_1[s]) for b, s in keys)],
        blocks=[(title, _two_rows_each(scores, keys, changes=True)) for title, scores in blocks],
        key_columns=2,
        rows_each=2,
        notes=[
            "The change of Max-Min from Simple to Complex stands in brackets. With more templates Max-Min grows even "
            "where no template is better than another; the statistics table has that null."
        ],
    )


def table2(blocks: Blocks) -> Table:
    """Table 2: all template sets, and Overall as the plain mean over a block's columns."""
    keys = _keys(blocks)
    rows = []
    for title, scores in blocks:
        own = _keys([(title, scores)])
        complete = {model: overall_score(values, own) for model, values in scores.items()}
        rows.append((title, _two_rows_each(scores, keys, overall=complete)))
    return Table(
        name="table2",
        caption="Accuracy and Max-Min in percent with the simple (S), in-domain (ID) and out-of-domain (OOD) templates "
        "(the paper's Table 2).",
        columns=[("Model",), ("",), *((benchmark_name(b), _TABLE_2.get(s, s)) for b, s in keys), ("Overall",)],
        blocks=rows,
        key_columns=2,
        rows_each=2,
        notes=["Overall is the plain mean over the columns that the block has; a model that lacks one has no Overall."],
    )


def overall_score(scores: dict[Key, Score], keys: Sequence[Key]) -> Score:
    """Plain means over `keys`, or nan where one of them is missing."""
    if not set(keys) <= set(scores):
        return Score(math.nan, math.nan)
    means = np.mean([scores[key] for key in keys], axis=0)
    return Score(*map(float, means))


def _keys(blocks: Blocks) -> list[Key]:
    """The first block's columns, then what only others have."""
    keys: dict[Key, None] = {}
    for _, scores in blocks:
        keys |= dict.fromkeys(sort_keys({key for values in scores.values() for key in values}))
    order = list(dict.fromkeys(benchmark for benchmark, _ in keys))
    return sorted(keys, key=lambda key: order.index(key[0]))


def _two_rows_each(
    scores: Scores, keys: Sequence[Key], changes: bool = False, overall: dict[str, Score] | None = None
) -> list[list[Cell]]:
    """For each model a row of Avg. and a row of Max-Min."""
    nothing = Score(math.nan, math.nan)
    columns = [[values.get(key, nothing) for values in scores.values()] for key in keys]
    if overall is not None:
        columns.append(list(overall.values()))
    averages = [embolden([number(score.avg) for score in column], highest=True) for column in columns]
    ranges = [embolden([number(score.max_min) for score in column], highest=False) for column in columns]
    rows = []
    for position, (model, values) in enumerate(scores.items()):
        spread = [column[position] for column in ranges]
        for place, (benchmark, setting) in enumerate(keys if changes else []):
            simple = values.get((benchmark, "simple"))
            if setting == "complex" and simple and (benchmark, setting) in values:
                change = values[benchmark, setting].max_min - simple.max_min
                spread[place] = spread[place]._replace(text=f"{spread[place].text} ({change:+.2f})")
        rows.append([text(model), text("Avg."), *(column[position] for column in averages)])
        rows.append([text(model), text("Max-Min"), *spread])
    return rows


def statistics(summary: Summary) -> Table:
    """Intervals, the null and the rest of the metrics, one row a run and one a model."""
    rows = []
    for model, analyses in summary.analyses.items():
        for (benchmark, setting), analysis in analyses.items():
            rows.append(
                _run_row(model, benchmark, setting, analysis, summary.runs[model][benchmark, setting].signature.items)
            )
        if len(analyses) > 1:
            rows.append(_overall_row(summary, model))
    return Table(
        name="statistics",
        caption="Statistics of each run, in percent but for p. Low and high are 95% intervals by bootstrap over items; "
        "Null is the mean Max-Min where no template is better than another, and p the chance of the measured one.",
        columns=[
            *(("Model",), ("Benchmark",), ("Templates",), ("Items",)),
            *(("Avg.", part) for part in ("mean", "low", "high")),
            *(("Max-Min", part) for part in ("measured", "low", "high", "null", "p")),
            *(("Templates' accuracy", part) for part in ("best", "worst", "std")),
            *(("Answers", part) for part in ("consistent", "embedded", "unmatched")),
        ],
        blocks=[("", rows)],
        key_columns=3,
        notes=[
            "Consistent: share of template pairs with the same answer to an item. Embedded: decided by sentence "
            "embeddings. Unmatched: named no choice, and counted as wrong. Overall rows are plain means over all of "
            "the model's runs."
        ],
    )


def _run_row(model: str, benchmark: str, setting: str, analysis: Analysis, items: int) -> list[Cell]:
    m = analysis.metrics
    rest = ("tm_best", "tm_worst", "tm_std", "tm_consistency", "tm_embedded", "tm_unmatched")
    return [
        *(text(model), text(benchmark_name(benchmark)), text(setting_name(setting)), number(items, 0)),
        *_estimate(analysis.avg),
        *_estimate(analysis.max_min),
        *(number(m["tm_null_max_min"]), number(m["tm_p_value"], 3)),
        *(number(m[name]) for name in rest),
    ]


def _overall_row(summary: Summary, model: str) -> list[Cell]:
    means = summary.overall[model]
    return [
        *(text(model), text("Overall"), text("all"), Cell(MISSING, math.inf)),
        *_estimate(means.avg),
        *_estimate(means.max_min),
        *(number(means.null_max_min), number(means.p_value, 3)),
        *(Cell(MISSING, math.inf), number(means.worst)),
        *[Cell(MISSING, math.inf)] * 4,
    ]


def _estimate(estimate: Estimate) -> list[Cell]:
    return [number(part) for part in estimate]


def pairs(summary: Summary) -> Table:
    """Each pair of models: which is better, under how many templates, and how surely."""
    rows = []
    for (benchmark, setting), comparisons in summary.comparisons.items():
        where = text(benchmark_name(benchmark)), text("all" if benchmark == OVERALL[0] else setting_name(setting))
        for c in comparisons:
            figures = (
                number(c.difference),
                number(c.holds, 1),
                number(c.ties, 1),
                number(c.p_value, 4),
                number(c.adjusted, 4),
            )
            rows.append([*where, text(c.better), text(c.worse), *figures])
    return Table(
        name="pairs",
        caption="Pairs of models. Difference of Avg. in percent points; share of templates in percent under which that "
        "order holds, and under which the two are equal; p of a paired permutation test over items.",
        columns=[
            *(("Benchmark",), ("Templates",), ("Better",), ("Worse",)),
            *(("Difference",), ("Order holds",), ("Ties",), ("p",), ("p (Holm)",)),
        ],
        blocks=[("", rows)],
        key_columns=4,
        notes=[
            "p (Holm) allows for the number of pairs that the same benchmark and template set has. Models with a "
            "difference of 0 are equal, and neither is better."
        ],
    )


def rankings(summary: Summary) -> Table:
    """Whether the simple and the complex templates rank the models alike."""
    rows = []
    for benchmark, agreement in summary.agreements.items():
        changes = [f"{a} > {b} becomes {b} > {a}" for a, b in agreement.reversed_pairs]
        ties = [f"{a} > {b} becomes {a} = {b}" for a, b in agreement.tied_second]
        ties += [f"{a} = {b} becomes {a} > {b}" for a, b in agreement.tied_first]
        alike = "no" if changes else "but for ties" if ties else "yes"
        changed = "; ".join(changes + ties) or MISSING
        rows.append([text(benchmark_name(benchmark)), number(agreement.tau), text(alike), text(changed)])
    return Table(
        name="rankings",
        caption="Whether the simple and the complex templates rank the models alike, by Avg.: Kendall's tau-b, and "
        "every pair that changes places or is equal by one of the two.",
        columns=[("Benchmark",), ("tau",), ("Alike",), ("Pairs that change from Simple to Complex",)],
        blocks=[("", rows)],
        key_columns=1,
    )


def templates(summary: Summary) -> Table:
    """The accuracy of every template in every run, best first."""
    return _template_table(
        summary, "templates", "Accuracy of each template in percent, best first within a run.", math.inf
    )


def best_and_worst(summary: Summary) -> Table:
    """The ten best and the ten worst templates of each run."""
    caption = f"The {EXTREMES} best and the {EXTREMES} worst templates of each run, accuracy in percent."
    return _template_table(summary, "best_and_worst", caption, EXTREMES)


def _template_table(summary: Summary, name: str, caption: str, extremes: float) -> Table:
    return Table(
        name=name,
        caption=caption,
        columns=[("Model",), ("Benchmark",), ("Templates",), ("Rank",), ("Number",), ("Accuracy",), ("Template",)],
        blocks=[("", list(_template_rows(summary, extremes)))],
        key_columns=3,
        notes=["Number is the template's place in its set, from 0. Templates of equal accuracy share a rank."],
    )


def _template_rows(summary: Summary, extremes: float) -> Iterator[list[Cell]]:
    for model, analyses in summary.analyses.items():
        for (benchmark, setting), analysis in analyses.items():
            accuracies = analysis.accuracies
            texts = summary.runs[model][benchmark, setting].header.templates
            order = np.argsort(-accuracies, kind="stable")
            for place, index in enumerate(order.tolist()):
                if extremes <= place < len(order) - extremes:
                    continue
                rank = 1 + int((accuracies > accuracies[index]).sum())
                where = text(model), text(benchmark_name(benchmark)), text(setting_name(setting))
                yield [*where, number(rank, 0), number(index, 0), number(accuracies[index]), text(texts[index])]


def template_set_tables(summary: Summary) -> list[tuple[str, Table]]:
    """For each template set its texts, with their accuracy over all runs that were asked with it."""
    tables = []
    for place, setting in enumerate(dict.fromkeys(setting for _, setting in summary.keys)):
        asked = [(m, key) for m, analyses in summary.analyses.items() for key in analyses if key[1] == setting]
        accuracies = np.array([summary.analyses[model][key].accuracies for model, key in asked])
        texts = summary.runs[asked[0][0]][asked[0][1]].header.templates
        rows = [
            [number(index, 0), *map(number, (column.mean(), column.min(), column.max())), text(texts[index])]
            for index, column in enumerate(accuracies.T)
        ]
        table = Table(
            name=f"set-{place}",
            caption=f"The {setting_name(setting)} templates, with their accuracy in percent over {len(asked)} runs.",
            columns=[("Number",), ("Mean",), ("Lowest",), ("Highest",), ("Template",)],
            blocks=[("", rows)],
        )
        tables.append((setting, table))
    return tables


def all_tables(summary: Summary, paper: dict[int, Scores]) -> list[Table]:
    """Every table of a report.

    Args:
        paper: the paper's rows of Table 1 and 2, by number, or nothing.
    """
    blocks = {n: [("this report" if paper else "", summary.scores)] for n in (1, 2)}
    for n, scores in paper.items():
        blocks[n].append(("from the paper (other items and templates)", scores))
    tables = [table1(blocks[1]), table2(blocks[2]), statistics(summary), pairs(summary), rankings(summary)]
    tables += [best_and_worst(summary), templates(summary)]
    return [table for table in tables if any(rows for _, rows in table.blocks)]
