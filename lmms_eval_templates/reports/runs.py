"""The logs that lmms-eval wrote of our tasks: found, chosen, read and checked. Nothing is merged silently."""

from __future__ import annotations

import glob
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from tqdm import tqdm

from ..metrics import Matrix
from ..sets import TemplateError
from ..signature import Signature
from .logs import Header, LogError, find_logs, read_matrix

# Fields of a signature that must be equal in all runs of a report, of a benchmark, of a template set. The two versions
# may differ; the report then says so.
_SHARED: tuple[tuple[str, Callable[[Header], str], tuple[str, ...]], ...] = (
    ("report", lambda header: "", ("space_hash", "subset", "seed", "match", "embedder")),
    ("benchmark", lambda header: header.benchmark, ("items_hash",)),
    ("template set", lambda header: header.setting, ("templates_hash",)),
)
_VERSIONS = ("version", "lmms_eval")
# What must be equal in all runs of a model, of what a results file says about it. Benchmarks may set their own
# generation_kwargs, so that these are compared within one, and what the user changed over all.
_MODEL: tuple[tuple[str, Callable[[Header], str], Callable[[Header], str]], ...] = (
    ("generation_kwargs", lambda header: header.benchmark, lambda header: header.generation),
    ("--gen_kwargs", lambda header: "", lambda header: header.gen_kwargs),
    ("--model", lambda header: "", lambda header: header.model_type),
    ("pretrained, peft or revision", lambda header: "", lambda header: _weights(header.model_args)),
)
_WEIGHTS = re.compile(r"""\b(pretrained|peft|revision)['"]?\s*[=:]\s*([^,}]+)""")
_NAME_THEM = "if they are different models, name them: NAME=FOLDER or NAME=.../DATE_results.json"


@dataclass(frozen=True)
class Run:
    """One model asked about one benchmark with one template set, completely.

    Attributes:
        model: its name in the report.
        header: where the run is logged and what its results file says.
        matrix: predictions and correctness, shape [items, templates].
    """

    model: str
    header: Header
    matrix: Matrix

    @property
    def benchmark(self) -> str:
        return self.header.benchmark

    @property
    def setting(self) -> str:
        return self.header.setting

    @property
    def signature(self) -> Signature:
        return self.header.signature


@dataclass
class Logs:
    """What was read.

    Attributes:
        runs: by model, benchmark and setting.
        notes: what a reader of the report has to know about them.
    """

    runs: list[Run]
    notes: list[str] = field(default_factory=list)


def read_runs(
    sources: Sequence[str], only: Sequence[str] = (), latest: bool = False, show_progress: bool = False
) -> Logs:
    """Reads the runs below folders.

    Args:
        sources: lmms-eval output folders, or results files in them; "NAME=FOLDER" gives the model in it a name.
        only: patterns such as "*/20260131_*/*", of which a run's label MODEL/DATE/TASK must match one.
        latest: of several runs of one model, benchmark and template set, take the newest complete one.
        show_progress: whether to draw a progress bar.

    Raises:
        TemplateError: no runs, or runs that cannot stand in one report; every one is named, with what can be done.
    """
    found = find_logs(sources)
    headers = [header for header in found.headers if _wanted(header.label, only)]
    labels = [header.label for header in found.headers] + [broken.label for broken in found.broken]
    useless = [pattern for pattern in only if not any(fnmatchcase(label, pattern) for label in labels)]
    if useless or not labels:
        raise TemplateError(_nothing_found(sources, useless, labels))
    notes, problems = list(found.notes), []
    for broken in found.broken:
        if not _wanted(broken.label, only):
            continue
        text = f"{broken.label}: {broken.fault}"
        if latest:
            notes.append(f"left out: {text}")
        else:
            problems.append(f"{text}\n    leave it out with --latest, or choose with --only")
    by_key = defaultdict(list)
    for header in sorted(headers, key=lambda header: header.date, reverse=True):
        by_key[header.model_id, header.benchmark, header.setting].append(header)
    problems += _several(
        [
            candidates
            for candidates in by_key.values()
            if len({header.date for header in candidates} if latest else candidates[:1]) < len(candidates)
        ]
    )
    names = _short_names(header.model_id for header in headers)
    runs = []
    for (model, *_), candidates in tqdm(
        sorted(by_key.items()), "Reading", unit="run", disable=not show_progress or None
    ):
        run, faults = _first_complete(names[model], candidates)
        if run is None:
            problems += [f"{fault}\n    run it again, or leave it out with --only" for fault in faults]
            continue
        runs.append(run)
        notes += [f"left out: {fault}" for fault in faults]
        older = candidates[len(faults) + 1 :]
        notes += [f"left out: {header.label}, because {run.header.label} is newer" for header in older]
    chosen = [run.header for run in runs]
    problems += _differences(chosen) + _unlike(chosen)
    if problems:
        raise TemplateError("these logs cannot stand in one report:\n- " + "\n- ".join(problems))
    if not runs:
        raise TemplateError("no complete run among these logs:\n- " + "\n- ".join(notes))
    return Logs(runs, notes + _remarks(runs))


def _several(conflicts: Sequence[Sequence[Header]]) -> list[str]:
    """A message for each group of results files that hold the same tasks of one model."""
    tasks = defaultdict(list)
    for candidates in conflicts:
        tasks[candidates[0].model_id, tuple(header.results for header in candidates)].append(candidates[0])
    messages = []
    for (model, files), headers in sorted(tasks.items()):
        what = ", ".join(f"{header.benchmark} ({header.setting})" for header in headers)
        listed = "".join(f"\n    {path}" for path in files)
        if len({file.name for file in files}) < len(files):
            choice = "some have the same date: give the folder or the results file of the one that counts"
        else:
            pattern = shlex.quote(glob.escape(f"{model}/{headers[0].date}/") + "*")
            choice = f"take the newest with --latest, or choose, for instance --only {pattern}"
        messages.append(f"{model}: {len(files)} runs of {what}{listed}\n    {choice}; {_NAME_THEM}")
    return messages


def _wanted(label: str, only: Sequence[str]) -> bool:
    return not only or any(fnmatchcase(label, pattern) for pattern in only)


def _nothing_found(sources: Sequence[str], only: Sequence[str], labels: list[str]) -> str:
    if labels:
        listed = "".join(f"\n  {label}" for label in sorted(labels))
        return f"--only {' '.join(only)}: matches none of the runs MODEL/DATE/TASK that are there:{listed}"
    return (
        f"no runs of our tasks below {', '.join(sources)}: expected DATE_results.json and DATE_samples_TASK.jsonl, as "
        "lmms-eval writes them with --output_path FOLDER --log_samples"
    )


def _first_complete(name: str, candidates: Sequence[Header]) -> tuple[Run | None, list[str]]:
    """The first run that can be read, and what is wrong with those before it."""
    faults: list[str] = []
    for header in candidates:
        try:
            return Run(name, header, read_matrix(header)), faults
        except LogError as error:
            faults.append(f"{header.label}: {error}")
    return None, faults


def _short_names(model_ids: Iterable[str]) -> dict[str, str]:
    """The last part of each model's path where that is enough to tell the models apart."""
    ids = sorted(set(model_ids))
    last = [model_id.rstrip("/").rsplit("/", 1)[-1] for model_id in ids]
    return {model_id: short if last.count(short) == 1 else model_id for model_id, short in zip(ids, last, strict=True)}


def _differences(headers: Sequence[Header]) -> list[str]:
    problems = []
    for what, group_of, names in _SHARED:
        groups = defaultdict(list)
        for header in headers:
            groups[group_of(header)].append(header)
        for group, members in sorted(groups.items()):
            for name in names:
                labels = defaultdict(list)
                for header in members:
                    labels[str(getattr(header.signature, name))].append(header.label)
                if len(labels) > 1:
                    listed = "".join(f"\n    {name}:{value}  {_some(labels[value])}" for value in sorted(labels))
                    where = f"{what} {group}" if group else what
                    problems.append(
                        f"signatures differ in {name} within one {where}, so the scores cannot be compared{listed}\n"
                        "    choose the runs that belong together with --only, or run the others again"
                    )
    return problems


def _unlike(headers: Sequence[Header]) -> list[str]:
    """Runs under one name that are of different models, or of one model that was used differently."""
    problems = []
    for name, part_of, value_of in _MODEL:
        groups: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for header in headers:
            groups[header.model_id, part_of(header)][value_of(header)].append(header.label)
        for (model, benchmark), labels in sorted(groups.items()):
            if len(labels) > 1:
                where = f"{model} on {benchmark}" if benchmark else model
                listed = "".join(f"\n    {value or 'none'}  {_some(labels[value])}" for value in sorted(labels))
                problems.append(
                    f"{where}: runs of one name differ in {name}, so they are not one model's{listed}\n"
                    f"    choose the runs that belong together with --only; {_NAME_THEM}"
                )
    return problems


def _weights(model_args: str) -> str:
    """The arguments that say which weights were run."""
    return ",".join(f"{name}={value.strip()}" for name, value in sorted(_WEIGHTS.findall(model_args)))


def _some(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
    return ", ".join(sorted(labels)[:3]) + more


def _remarks(runs: Sequence[Run]) -> list[str]:
    notes = []
    for name in _VERSIONS:
        values = sorted({str(getattr(run.signature, name)) for run in runs})
        if len(values) > 1:
            notes.append(f"runs come from different versions: {name} {', '.join(values)}")
    for benchmark in sorted({run.benchmark for run in runs}):
        models = defaultdict(set)
        for run in runs:
            if run.benchmark == benchmark:
                models[run.header.generation].add(run.model)
        if len(models) > 1:
            listed = "; ".join(f"{', '.join(sorted(models[settings]))} with {settings}" for settings in sorted(models))
            notes.append(f"{benchmark}: models generated with different settings: {listed}")
    for model in sorted({run.model for run in runs}):
        arguments = sorted({run.header.model_args for run in runs if run.model == model})
        if len(arguments) > 1:
            notes.append(f"{model}: its runs had different --model_args: {'; '.join(arguments)}")
    return notes
