"""The results page, written from `results.json` alone.

python -m lmms_eval_templates.training.micro.page results.json docs/micro.md
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lmms_eval_templates.reports.figures import COLORS, MARKERS, RC
from lmms_eval_templates.reports.layouts import setting_name
from lmms_eval_templates.sets import PUBLISHED_SETS

# How many points Avg. on the simple templates may fall and still count as unhurt.
_UNHURT = 2.0
_AVG, _MAX_MIN = "tm_avg", "tm_max_min"


class Interval(NamedTuple):
    """A mean with the ends of its 95% interval (Student's t over seeds)."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95% interval; the ends are infinite for one value."""
    from scipy.stats import t

    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
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
        """One value a seed."""
        by_seed = {m["seed"]: m["scores"][setting][metric] for m in self.models if m["num_templates"] == num_templates}
        return [by_seed[seed] for seed in self.seeds if seed in by_seed]

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
        the verdict. Seeds that some number lacks are left out.
    """
    counts = sorted(n for n in results.ratios if n)
    seeds = set.intersection(*({m["seed"] for m in results.models if m["num_templates"] == n} for n in counts))

    def averages(num_templates: int) -> list[float]:
        models = [m for m in results.models if m["num_templates"] == num_templates and m["seed"] in seeds]
        ordered = sorted(models, key=lambda model: model["seed"])
        return [statistics.fmean(m["scores"][setting][_AVG] for setting in PUBLISHED_SETS) for m in ordered]

    best = max(counts[1:-1], key=lambda n: statistics.fmean(averages(n)))
    ends = (averages(counts[0]), averages(counts[-1]))
    leads = [interval([a - b for a, b in zip(averages(best), end, strict=True)]) for end in ends]
    outcomes = {verdict(lead) for lead in leads}
    return best, leads, next(o for o in ("does not hold", "unclear", "holds") if o in outcomes)


_INTRODUCTION = """\
# The paper in miniature

Written by `training/micro/page.py` from `training/micro/results.json`, which holds what lmms-eval measured.
Do not edit.

A LLaVA of {parameters:.1f} million weights (CLIP tower, projector, Llama) learns to answer questions about drawn
scenes, and is then LoRA-tuned on {records:,} records: once as they are (original), once with {main:,} question
templates around their questions (templated). Same base, same records, same number of steps. Accuracy in percent on the
{items} scenes of `demo_tm`, none of which was trained on, mean ± standard deviation over {seeds} seeds; guessing gives
25. Simple, Complex and OOD are the paper's S, ID and OOD.

## Original and templated data (the paper's Table 2)

{comparison}
## The paper's claims

Templated minus original of the same seed: mean and 95% interval (Student's t over the seeds). A claim holds where the
whole interval is on its side.

{claims}"""

_RATIOS = """
## Templates to data (the paper's Figure 3)

![Avg. and Max-Min by ratio of templates to data](micro.svg)

{table}
Between the two ends the highest mean Avg. over the three sets is that of {best:,} templates. It leads the smallest
number by {over_smallest} points and the largest by {over_largest}; that it was picked for its mean flatters both leads.
That some ratio in between is better than both ends: **{verdict}**.
"""

_RECIPE = """
## How it was made

```bash
python -m lmms_eval_templates.training.micro.reproduce runs/micro
```

The base learned from {lessons:,} lessons: descriptions of scenes; then questions about scenes with answers of one or
two words, one in three among random words of the templates; and, without a picture, lists of such words to repeat. So
it knows the words of every template and finds a question among them, but has met them in no sentence. The instruction
mix holds two questions a record, two in three with choices, some with a plain phrase before or after ("Look at the
picture."); `augment` puts a template around the first. An answer that names no choice, such as an empty one, counts as
wrong (`tm_unmatched`).

The instruction mix was settled in trials that were scored on these same scenes, the base stage and everything later on
other ones; so the figures show what can happen and are no unbiased estimate.

On {machine}, device {device}, {jobs} models at once: {time}. Minutes of each kind of work, summed over models:
{stages}. All seeds share one base; a seed draws the templates, the LoRA weights and the order of the records. Packages:
{packages}.

{models}"""


def page(results: Results) -> str:
    """The page as Markdown."""
    recipe = results.recipe
    arms = {"original": 0, "templated": recipe["main"]}
    checked = [[claim, str(difference), outcome] for claim, difference, outcome in claims(results)]
    text = _INTRODUCTION.format(
        **{**recipe, "parameters": recipe["parameters"] / 1e6, "seeds": len(results.seeds)},
        comparison=_table(_score_head("trained on"), list(_score_rows(results, arms))),
        claims=_table(["claim", "difference in points", "in this miniature"], checked),
    )
    counts = sorted(n for n in results.ratios if n)
    if len(counts) > 1:
        best, (over_smallest, over_largest), outcome = best_ratio(results)
        ratios = _score_rows(results, {"0": 0, **{f"{n:,} ({results.ratios[n]:.2g})": n for n in counts}})
        table = _table(_score_head("templates (ratio)"), list(ratios))
        text += _RATIOS.format(
            table=table, best=best, over_smallest=over_smallest, over_largest=over_largest, verdict=outcome
        )
    stages = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in _stages(recipe["seconds"]).items())
    packages = ", ".join(f"{name} {number}" for name, number in recipe["packages"].items())
    rows = [
        [
            f"{model['num_templates']:,} templates, seed {model['seed']}",
            *(f"{model['scores'][s][_AVG]:.1f} / {model['scores'][s][_MAX_MIN]:.1f}" for s in PUBLISHED_SETS),
            f"{max(model['scores'][s]['tm_unmatched'] for s in PUBLISHED_SETS):.1f}",
        ]
        for model in results.models
    ]
    head = ["model", *(f"{setting_name(s)} Avg. / Max-Min" for s in PUBLISHED_SETS), "`tm_unmatched`, highest"]
    settings = {key: recipe[key] for key in ("machine", "device", "jobs", "lessons")}
    return text + _RECIPE.format(
        **settings, time=_time(results), stages=stages, packages=packages, models=_table(head, rows)
    )


def _stages(seconds: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Seconds by kind of work."""
    names = {"base": "base stage", "tuned": "tuning", "logs": "evaluation"}
    sums: dict[str, float] = {}
    for part in seconds:
        name = names.get(part["part"].split("/")[0], "data and merging")
        sums[name] = sums.get(name, 0.0) + part["seconds"]
    return sums


def _time(results: Results) -> str:
    """About how long one seed takes, from the seconds of its parts."""
    first, jobs = results.seeds[0], results.recipe["jobs"]
    shared, main, others = 0.0, 0.0, 0.0
    for part in results.recipe["seconds"]:
        arm = re.search(r"(original|templates_(\d+))_seed_(\d+)", part["part"])
        if arm is None:
            shared += part["seconds"]
        elif int(arm[3]) == first and int(arm[2] or 0) in (0, results.recipe["main"]):
            main += part["seconds"]
        elif int(arm[3]) == first:
            others += part["seconds"]
    minutes = [(shared + main / jobs) / 60, (shared + (main + others) / jobs) / 60]
    text = f"one seed takes {minutes[0]:.0f} minutes, base stage included"
    text += f", {minutes[1]:.0f} with the other ratios" if others else ""
    return text + ("; the time on a GPU has not been measured" if results.recipe["device"] == "cpu" else "")


def figure(results: Results, target: Path) -> None:
    """Avg. and Max-Min of each template set by ratio: means, and the seeds as points."""
    import matplotlib
    from matplotlib.figure import Figure

    counts = sorted(n for n in results.ratios if n)
    with matplotlib.rc_context(RC):
        drawn = Figure(figsize=(8, 3.2), layout="constrained")
        panels = drawn.subplots(1, 2)
        for axes, metric, title in zip(panels, (_AVG, _MAX_MIN), ("Avg.", "Max-Min"), strict=True):
            for setting, color, marker in zip(PUBLISHED_SETS, COLORS, MARKERS, strict=False):
                means = [statistics.fmean(results.values(n, setting, metric)) for n in counts]
                ratios = [results.ratios[n] for n in counts]
                axes.plot(ratios, means, color=color, marker=marker, label=setting_name(setting))
                for n in counts:
                    for value in results.values(n, setting, metric):
                        axes.plot(results.ratios[n], value, ".", color=color, alpha=0.4)
            axes.set(xscale="log", xlabel="question templates / records", title=title)
        panels[0].legend()
        drawn.savefig(target, metadata={"Date": None})


def write_page(source: Path, target: Path) -> None:
    """Writes the page and, beside it, the picture `micro.svg`."""
    results = Results(json.loads(source.read_text("utf-8")))
    target.write_text(page(results), "utf-8")
    if len(results.ratios) > 2:
        figure(results, target.with_name("micro.svg"))


if __name__ == "__main__":
    write_page(Path(sys.argv[1]), Path(sys.argv[2]))
