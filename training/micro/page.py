"""The results page, written from `results.json` alone.

python -m lmms_eval_templates.training.micro.page results.json docs/micro.md
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


def best_ratio(results: Results) -> tuple[int, Interval, str]:
    """The number of templates with the highest mean Avg. over the three sets, its lead over the largest, a verdict.

    Seeds that some ratio lacks are left out.
    """
    counts = sorted(n for n in results.ratios if n)
    seeds = set.intersection(*({m["seed"] for m in results.models if m["num_templates"] == n} for n in counts))

    def averages(num_templates: int) -> list[float]:
        models = [m for m in results.models if m["num_templates"] == num_templates and m["seed"] in seeds]
        ordered = sorted(models, key=lambda model: model["seed"])
        return [statistics.fmean(m["scores"][setting][_AVG] for setting in PUBLISHED_SETS) for m in ordered]

    best = max(counts, key=lambda n: statistics.fmean(averages(n)))
    lead = interval([a - b for a, b in zip(averages(best), averages(counts[-1]), strict=True)])
    return best, lead, "does not hold" if best == counts[-1] else verdict(lead)


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
Highest mean Avg. over the three sets: {best:,} templates, which leads the largest number by {lead} points. That a ratio
below the largest is better than the largest: {verdict}.
"""

_RECIPE = """
## How it was made

```bash
python -m lmms_eval_templates.training.micro.reproduce runs/micro
```

The base learned from {lessons:,} lessons: descriptions of scenes, then bare questions with answers of one or two words,
and, without a picture, lists of words to repeat, drawn from the words of all templates, so that it knows these words
but has met them in no sentence. The instruction mix holds two questions a record, two in three with choices, some with
a plain phrase before or after ("Look at the picture."); `augment` puts a template around the first. An answer that
names no choice, such as an empty one, counts as wrong (`tm_unmatched`). The mix was settled after trials that were
scored on these same scenes, so that the figures show what can happen and are no unbiased estimate.

On {machine}, device {device}, {jobs} models at once. Minutes, summed over models: {stages}. All seeds share one base; a
seed draws the templates, the LoRA weights and the order of the records. Packages: {packages}.

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
        best, lead, outcome = best_ratio(results)
        ratios = _score_rows(results, {"0": 0, **{f"{n:,} ({results.ratios[n]:.2g})": n for n in counts}})
        table = _table(_score_head("templates (ratio)"), list(ratios))
        text += _RATIOS.format(table=table, best=best, lead=lead, verdict=outcome)
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
    return text + _RECIPE.format(**settings, stages=stages, packages=packages, models=_table(head, rows))


def _stages(seconds: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Seconds by kind of work."""
    names = {"base": "base stage", "tuned": "tuning", "logs": "evaluation"}
    sums: dict[str, float] = {}
    for part in seconds:
        name = names.get(part["part"].split("/")[0], "data and merging")
        sums[name] = sums.get(name, 0.0) + part["seconds"]
    return sums


def figure(results: Results, target: Path) -> None:
    """Avg. of each template set by ratio, the seeds as points."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "micro"
    counts = sorted(n for n in results.ratios if n)
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for axis, metric, title in zip(axes, (_AVG, _MAX_MIN), ("Avg.", "Max-Min"), strict=True):
        for setting in PUBLISHED_SETS:
            means = [statistics.fmean(results.values(n, setting, metric)) for n in counts]
            (line,) = axis.plot([results.ratios[n] for n in counts], means, marker="o", label=setting_name(setting))
            for n in counts:
                values = results.values(n, setting, metric)
                axis.plot([results.ratios[n]] * len(values), values, ".", color=line.get_color(), alpha=0.4)
            axis.axhline(statistics.fmean(results.values(0, setting, metric)), color=line.get_color(), ls=":", lw=1)
        axis.set(xscale="log", xlabel="templates / records (dotted: original data)", title=title)
    axes[0].legend()
    fig.savefig(target, metadata={"Date": None})
    plt.close(fig)


def write_page(source: Path, target: Path) -> None:
    """Writes the page and, beside it, the picture `micro.svg`."""
    results = Results(json.loads(source.read_text("utf-8")))
    target.write_text(page(results), "utf-8")
    if len(results.ratios) > 2:
        figure(results, target.with_name("micro.svg"))


if __name__ == "__main__":
    write_page(Path(sys.argv[1]), Path(sys.argv[2]))
