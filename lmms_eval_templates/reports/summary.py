"""Everything a report says, computed once: per run, per model, per pair of models, per ranking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tqdm import tqdm

from ..sets import TemplateError
from .paper import Score, Scores
from .runs import Logs, Run
from .statistics import (
    Agreement,
    Analysis,
    Comparison,
    Overall,
    analyse,
    compare_all,
    mean_metric,
    overall,
    ranking_agreement,
)

Key = tuple[str, str]  # benchmark, setting
OVERALL: Key = ("overall", "all")
_BENCHMARKS = ("blink", "mmbench", "seedbench", "tma", "mmmu")
_SETTINGS = ("simple", "complex", "ood")
_DOUBTFUL = 20  # percent
_FEW = 30  # items
_DOUBTS = {
    "tm_unmatched": "named no choice and count as wrong; read its sample log before using the score",
    "tm_embedded": "were decided by sentence embeddings, so that the score is an estimate",
}


@dataclass(frozen=True)
class Summary:
    """What a report says.

    Attributes:
        runs: model -> (benchmark, setting) -> run; benchmarks and settings in the paper's order.
        analyses: the same, of statistics.
        overall: model -> means over its runs.
        comparisons: (benchmark, setting) -> pairs of models; under `OVERALL`, over what all models were asked.
        agreements: benchmark -> ranking by the simple and by the complex templates; under "overall", by their means.
        notes: what a reader has to know about the logs.
    """

    runs: dict[str, dict[Key, Run]]
    analyses: dict[str, dict[Key, Analysis]]
    overall: dict[str, Overall]
    comparisons: dict[Key, list[Comparison]]
    agreements: dict[str, Agreement]
    notes: list[str]

    @property
    def models(self) -> list[str]:
        return list(self.runs)

    @property
    def keys(self) -> list[Key]:
        """Every (benchmark, setting) that some model was asked."""
        return sort_keys({key for runs in self.runs.values() for key in runs})

    @property
    def scores(self) -> Scores:
        """Avg. and Max-Min, in the form that the paper's rows have."""
        return {
            model: {key: Score(a.metrics["tm_avg"], a.metrics["tm_max_min"]) for key, a in analyses.items()}
            for model, analyses in self.analyses.items()
        }

    def models_with(self, key: Key) -> list[str]:
        return [model for model, runs in self.runs.items() if key in runs]


def sort_keys(keys: set[Key]) -> list[Key]:
    """The paper's benchmarks and settings in the paper's order, then others by name."""

    def place(order: Sequence[str], name: str) -> tuple[int, str]:
        return (order.index(name) if name in order else len(order), name)

    return sorted(keys, key=lambda key: (place(_BENCHMARKS, key[0]), place(_SETTINGS, key[1])))


def summarise(logs: Logs, show_progress: bool = False) -> Summary:
    """Computes what a report says."""
    seed = logs.runs[0].signature.seed
    by_model: dict[str, dict[Key, Run]] = {}
    for run in logs.runs:
        by_model.setdefault(run.model, {})[run.benchmark, run.setting] = run
    runs = {model: {key: by_model[model][key] for key in sort_keys(set(by_model[model]))} for model in sorted(by_model)}
    analyses: dict[str, dict[Key, Analysis]] = {model: {} for model in runs}
    ordered = [(run, analyses[model], key) for model, values in runs.items() for key, run in values.items()]
    for run, of_model, key in tqdm(ordered, "Bootstrap, permutations", unit="run", disable=not show_progress or None):
        of_model[key] = analyse(run.matrix, run.benchmark, seed)
    summary = Summary(
        runs=runs,
        analyses=analyses,
        overall={model: overall(list(values.values())) for model, values in analyses.items()},
        comparisons={},
        agreements={},
        notes=list(logs.notes),
    )
    summary.notes.extend(_few_items(summary))
    summary.notes.extend(_doubtful_answers(summary))
    _compare(summary, seed)
    _rank(summary)
    return summary


def _few_items(summary: Summary) -> Iterator[str]:
    """Says where intervals are rough."""
    for key in summary.keys:
        fewest = min(len(runs[key].matrix.items) for runs in summary.runs.values() if key in runs)
        if fewest < _FEW:
            yield f"{key[0]} with the {key[1]} templates: {fewest} items are too few for intervals to be relied on"


def _doubtful_answers(summary: Summary) -> Iterator[str]:
    """Says where a score depends on more than whether the model chose rightly."""
    for metric, words in _DOUBTS.items():
        for model, analyses in summary.analyses.items():
            (benchmark, setting), worst = max(analyses.items(), key=lambda item: item[1].metrics[metric])
            share = worst.metrics[metric]
            if share >= _DOUBTFUL:
                yield f"{model}: {share:.0f}% of its answers on {benchmark} with the {setting} templates {words}"


def _compare(summary: Summary, seed: int) -> None:
    shared = [key for key in summary.keys if summary.models_with(key) == summary.models]
    for key, keys in [*((key, [key]) for key in summary.keys), (OVERALL, shared)]:
        models = summary.models_with(keys[0]) if keys else []
        matrices = {}
        for model in models:
            chosen = [summary.runs[model][k] for k in keys]
            matrices[model] = [(run.benchmark, run.matrix) for run in chosen]
            for run, k in zip(chosen, keys, strict=True):
                if run.matrix.items != summary.runs[models[0]][k].matrix.items:
                    raise TemplateError(
                        f"{run.header.label}: its items have other ids than those of "
                        f"{summary.runs[models[0]][k].header.label}, though the signatures agree; one log was changed"
                    )
        if len(models) > 1:
            summary.comparisons[key] = compare_all(matrices, seed)
    if len(shared) < len(summary.keys) and len(summary.models) > 1:
        summary.notes.append(
            f"overall comparisons of models rest on the {len(shared)} of {len(summary.keys)} runs that all models have"
        )


def _rank(summary: Summary) -> None:
    benchmarks = [benchmark for benchmark, setting in summary.keys if setting == "simple"]
    ranked = {
        benchmark: [
            model
            for model, analyses in summary.analyses.items()
            if {(benchmark, "simple"), (benchmark, "complex")} <= set(analyses)
        ]
        for benchmark in benchmarks
    }
    groups = {benchmark: [benchmark] for benchmark in benchmarks}
    common = [benchmark for benchmark in benchmarks if ranked[benchmark] == summary.models]
    if len(common) > 1:
        groups["overall"] = common
        ranked["overall"] = summary.models
    for name, members in groups.items():
        if len(ranked[name]) < 2:
            continue
        first, second = (
            {m: mean_metric([summary.analyses[m][b, setting] for b in members], "tm_avg") for m in ranked[name]}
            for setting in ("simple", "complex")
        )
        summary.agreements[name] = ranking_agreement(first, second)
