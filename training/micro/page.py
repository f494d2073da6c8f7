"""The results page, written from `results.json` alone.

python -m lmms_eval_templates.training.micro.page results.json docs/micro.md
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lmms_eval_templates.reports.figures import COLORS, MARKERS, RC
from lmms_eval_templates.reports.layouts import setting_name
from lmms_eval_templates.sets import PUBLISHED_SETS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# How many points Avg. on the simple templates may fall and still count as unhurt.
_UNHURT = 2.0
_AVG, _MAX_MIN, _NULL, _UNMATCHED = "tm_avg", "tm_max_min", "tm_null_max_min", "tm_unmatched"


class Interval(NamedTuple):
    """A mean with the ends of its interval (Student's t over seeds)."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


def interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean and interval; the ends are infinite for one value."""
    from scipy.stats import t

    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = float(t.ppf((1 + level) / 2, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def verdict(difference: Interval, bound: float = 0.0) -> str:
    """Whether a difference is above `bound`: "holds", "does not hold" or "unclear"."""
    if difference.low > bound:
        return "holds"
    return "does not hold" if difference.high < bound else "unclear"


class Results:
    """What was measured, by number of templates (0: original data) and seed."""

    def __init__(self, content: dict[str, Any]):
        self.recipe = content["recipe"]
        self.models = content["models"]
        self.seeds = sorted({model["seed"] for model in self.models})
        self.ratios = {model["num_templates"]: model["ratio"] for model in self.models}

    def values(self, num_templates: int, setting: str, metric: str) -> list[float]:
        """In percent, one value a seed, ordered by seed."""
        by_seed = {m["seed"]: m["scores"][setting][metric] for m in self.models if m["num_templates"] == num_templates}
        return [by_seed[seed] for seed in self.seeds]

    def differences(self, setting: str, metric: str) -> list[float]:
        """Templated minus original, one value a seed."""
        pairs = zip(self.values(self.recipe["main"], setting, metric), self.values(0, setting, metric), strict=True)
        return [templated - original for templated, original in pairs]


def _spread(values: Sequence[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):.1f} ± {deviation:.1f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _score_rows(results: Results, arms: dict[str, int]) -> Iterator[list[str]]:
    for name, num_templates in arms.items():
        cells = [
            _spread(results.values(num_templates, setting, metric))
            for setting in PUBLISHED_SETS
            for metric in (_AVG, _MAX_MIN)
        ]
        yield [name, *cells]


def _score_head(first: str) -> list[str]:
    return [first, *(f"{setting_name(s)} {m}" for s in PUBLISHED_SETS for m in ("Avg.", "Max-Min"))]


def claims(results: Results) -> list[tuple[str, Interval, str]]:
    """The paper's claims, with the difference each rests on and what it came to."""
    checked = []
    for setting in ("complex", "ood"):
        difference = interval(results.differences(setting, _AVG))
        checked.append((f"higher Avg. on {setting_name(setting)}", difference, verdict(difference)))
    fall = interval([-d for d in results.differences("ood", _MAX_MIN)])
    checked.append(("smaller Max-Min on OOD (fall shown)", fall, verdict(fall)))
    fall = interval([-d for d in results.differences("complex", _MAX_MIN)])
    checked.append(("smaller Max-Min on Complex (fall shown)", fall, verdict(fall)))
    unhurt = interval(results.differences("simple", _AVG))
    checked.append((f"Avg. on Simple not hurt (by {_UNHURT:.0f} points or more)", unhurt, verdict(unhurt, -_UNHURT)))
    return checked


def best_ratio(results: Results) -> tuple[int, list[Interval], str]:
    """Whether a number of templates between the smallest and the largest is better than both.

    Returns:
        The one with the highest mean Avg. over the three sets, its lead over the smallest and over the largest, and
        the verdict. The intervals are wider than 95% by as much as there were numbers to pick from (Bonferroni).
    """
    counts = sorted(n for n in results.ratios if n)

    def averages(num_templates: int) -> list[float]:
        by_set = [results.values(num_templates, setting, _AVG) for setting in PUBLISHED_SETS]
        return [statistics.fmean(values) for values in zip(*by_set, strict=True)]

    best = max(counts[1:-1], key=lambda n: statistics.fmean(averages(n)))
    level = 1 - 0.05 / len(counts[1:-1])
    leads = [
        interval([a - b for a, b in zip(averages(best), averages(end), strict=True)], level)
        for end in (counts[0], counts[-1])
    ]
    outcomes = {verdict(lead) for lead in leads}
    return best, leads, next(o for o in ("does not hold", "unclear", "holds") if o in outcomes)


_INTRODUCTION = """\
# The paper in miniature

Written by `training/micro/page.py` from `training/micro/results.json`, which holds what lmms-eval measured.
Do not edit.

A LLaVA of {parameters:.1f} million weights (CLIP tower, projector, Llama) learns to answer questions about drawn
scenes, and is then LoRA-tuned on {records:,} records: once as they are (original), once with {main:,} question
templates around the first question of each (templated). Same base, same records, same number of steps. Accuracy in
percent on the {items} scenes of `demo_tm`, none of which was trained on, mean ± standard deviation over {seeds} seeds.
Simple, Complex and OOD are the paper's S, ID and OOD.

## Original and templated data (the paper's Table 2)

{comparison}
Behind these figures: Max-Min where no template is better than another (`tm_null_max_min`), against which Max-Min is to
be read, and the share of answers that name no choice, such as a shape where a color was asked for, and count as wrong
(`tm_unmatched`).

{behind}
## The paper's claims

Templated minus original of the same seed: mean and 95% interval (Student's t over the seeds). A claim holds where the
whole interval is on its side. A seed draws the templates, the LoRA weights and the order of the records; base, records
and scenes are the same for all, so the intervals say nothing about others. They are not corrected for their number.

{claims}"""

_RATIOS = """
## Templates to data (the paper's Figure 3)

![Avg. and Max-Min by ratio of templates to data](micro.svg)

{table}
Between the two ends the highest mean Avg. over the three sets is that of {best:,} templates. It leads the smallest
number by {over_smallest} points and the largest by {over_largest} (intervals for a choice among {inner}). That some
ratio in between is better than both ends: **{verdict}**. On Complex the smallest number brings {share:.0f}% of what the
largest gains over the original data.
"""

_RECIPE = """
## How it was made

```bash
{command}
```

The base learned from {lessons:,} lessons: descriptions of scenes; then questions about scenes with answers of one or
two words, one in three among random words of the templates; and, without a picture, lists of such words to repeat. So
it has met the words of every template, and questions among them, but no template. The instruction mix holds two
questions a record; yes/no questions (one in eight) and one in three of the others come without choices, and about seven
in ten with a plain phrase before or after ("Look at the picture."). `augment` puts a template around the first.

The mix was settled in trials that were scored on these same scenes. A first whole run, scored on them too, had a base
that knew less, and there training on templates did hurt Simple. The base was then trained better and the ratios were
chosen anew, on other scenes, with the simple templates and random ones of the space. So the figures show what can
happen and are no unbiased estimate.

On {machine}, device {device}, {jobs} models at once, {time}. Minutes of each kind of work, summed over models:
{stages}. Packages: {packages}.

{models}"""


def _share_of_gain(results: Results, some: int, most: int) -> float:
    """How much of the gain on Complex from no templates to `most` there is with `some`, in percent."""
    none, part, whole = (statistics.fmean(results.values(n, "complex", _AVG)) for n in (0, some, most))
    return 100 * (part - none) / (whole - none)


def _table_of_models(results: Results) -> str:
    head = ["model", *(f"{setting_name(s)} Avg. / Max-Min" for s in PUBLISHED_SETS)]
    rows = [
        [
            f"templates: {model['num_templates']:,}, seed: {model['seed']}",
            *(f"{model['scores'][s][_AVG]:.1f} / {model['scores'][s][_MAX_MIN]:.1f}" for s in PUBLISHED_SETS),
        ]
        for model in results.models
    ]
    return _table(head, rows)


def page(results: Results) -> str:
    """The page as Markdown."""
    recipe = results.recipe
    arms = {"original": 0, "templated": recipe["main"]}
    behind = [
        [name, setting_name(setting), *(_spread(results.values(n, setting, metric)) for metric in (_NULL, _UNMATCHED))]
        for name, n in arms.items()
        for setting in PUBLISHED_SETS
    ]
    checked = [[claim, str(difference), outcome] for claim, difference, outcome in claims(results)]
    text = _INTRODUCTION.format(
        **{**recipe, "parameters": recipe["parameters"] / 1e6, "seeds": len(results.seeds)},
        comparison=_table(_score_head("trained on"), list(_score_rows(results, arms))),
        behind=_table(["trained on", "templates", "Max-Min by chance", "names no choice"], behind),
        claims=_table(["claim", "difference in points", "in this miniature"], checked),
    )
    counts = sorted(n for n in results.ratios if n)
    if len(counts) > 2:
        best, (over_smallest, over_largest), outcome = best_ratio(results)
        ratios = _score_rows(results, {"0": 0, **{f"{n:,} ({results.ratios[n]:.2g})": n for n in counts}})
        text += _RATIOS.format(
            table=_table(_score_head("templates (ratio)"), list(ratios)),
            best=best,
            over_smallest=over_smallest,
            over_largest=over_largest,
            inner=len(counts) - 2,
            verdict=outcome,
            share=_share_of_gain(results, counts[0], counts[-1]),
        )
    return text + _RECIPE.format(
        **{key: recipe[key] for key in ("command", "machine", "device", "jobs", "lessons")},
        time=_time(results),
        stages=", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in _stages(recipe["seconds"]).items()),
        packages=", ".join(f"{name} {number}" for name, number in recipe["packages"].items()),
        models=_table_of_models(results),
    )


def _stages(seconds: dict[str, float]) -> dict[str, float]:
    """Seconds by kind of work."""
    names = {"base": "base stage", "tuned": "tuning", "logs": "evaluation"}
    sums: dict[str, float] = {}
    for part, spent in seconds.items():
        name = names.get(part.split("/")[0], "data and merging")
        sums[name] = sums.get(name, 0.0) + spent
    return sums


def _time(results: Results) -> str:
    """About how long one seed takes, from the seconds of its parts."""
    recipe, first = results.recipe, results.seeds[0]
    shared, by_arm = 0.0, {0: 0.0, recipe["main"]: 0.0}
    for part, spent in recipe["seconds"].items():
        arm = re.search(r"(original|templates_(\d+))_seed_(\d+)", part)
        if arm is None:
            shared += spent
        elif int(arm[3]) == first:
            num_templates = int(arm[2] or 0)
            by_arm[num_templates] = by_arm.get(num_templates, 0.0) + spent

    def minutes(arms: Sequence[int]) -> float:
        return (shared + sum(by_arm[n] for n in arms) / min(recipe["jobs"], len(arms))) / 60

    text = f"one seed takes about {minutes([0, recipe['main']]):.0f} minutes, base stage included"
    if len(by_arm) > 2:
        text += f", {minutes(list(by_arm)):.0f} with all ratios"
    return text + ("; the time on a GPU has not been measured" if recipe["device"] == "cpu" else "")


def curves(results: Results) -> Figure:
    """Avg. and Max-Min of each template set by ratio: means as lines, the seeds as points."""
    from matplotlib.figure import Figure

    counts = sorted(n for n in results.ratios if n)
    ratios = [results.ratios[n] for n in counts]
    drawn = Figure(figsize=(8, 3.2), layout="constrained")
    panels = drawn.subplots(1, 2)
    for axes, metric, title in zip(panels, (_AVG, _MAX_MIN), ("Avg.", "Max-Min"), strict=True):
        for setting, color, marker in zip(PUBLISHED_SETS, COLORS, MARKERS, strict=False):
            values = [results.values(n, setting, metric) for n in counts]
            means = [statistics.fmean(of_ratio) for of_ratio in values]
            axes.plot(ratios, means, color=color, marker=marker, label=setting_name(setting))
            axes.plot(ratios, values, ".", color=color, alpha=0.4)
        axes.set(xscale="log", xlabel="question templates / records", title=title)
    panels[0].legend()
    return drawn


def write_page(source: Path, target: Path) -> None:
    """Writes the page and, beside it, the picture `micro.svg`."""
    results = Results(json.loads(source.read_text("utf-8")))
    partial = target.with_suffix(".partial")
    if len(results.ratios) > 3:  # the original data and three numbers of templates: one between two ends
        import matplotlib

        with matplotlib.rc_context(RC):
            curves(results).savefig(partial, format="svg", metadata={"Date": None})
        os.replace(partial, target.with_name("micro.svg"))
    partial.write_text(page(results), "utf-8")
    os.replace(partial, target)


if __name__ == "__main__":
    write_page(Path(sys.argv[1]), Path(sys.argv[2]))
