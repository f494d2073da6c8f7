"""The files that lmms-eval writes: `DATE_results.json`, and `DATE_samples_TASK.jsonl` with one line a prompt."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from ..metrics import METRICS, RECORD_METRIC, Cell, Matrix, accuracy_metrics, build_matrix, matching_metrics
from ..sets import TemplateError, TemplateSet
from ..signature import Signature

_RESULTS = "_results.json"
_SAMPLES = re.compile(r"(?P<date>\d{8}_\d{6})_samples_(?P<task>.+)\.jsonl")
_TASK = re.compile(r"(?P<benchmark>.+?)(?:_tm_.+|_(?:simple|complex|ood))")


class LogError(TemplateError):
    """A run's files cannot be used."""


def benchmark_of(task: str) -> str:
    """ "blink" for blink_tm_complex."""
    match = _TASK.fullmatch(task)
    return match["benchmark"] if match else task


@dataclass(frozen=True)
class Header:
    """What a results file says about one task.

    Attributes:
        model_id: the name that the user gave, or else lmms-eval's (a path or a name on the hub).
        date: YYYYMMDD_HHMMSS, as in the file's name.
        task: lmms-eval's task name.
        signature: of the score.
        templates: texts in the order of their indices.
        environment: versions and hardware that the run recorded.
        scores: the metrics as lmms-eval reported them.
        config: the task's configuration, as logged.
        model_type: lmms-eval's `--model`.
        model_args: lmms-eval's `--model_args`.
        gen_kwargs: lmms-eval's `--gen_kwargs`.
        generation: the task's settings of the generation, with what `--gen_kwargs` changed.
        results: the results file.
    """

    model_id: str
    date: str
    task: str
    signature: Signature
    templates: tuple[str, ...]
    environment: dict[str, str]
    scores: dict[str, Any]
    config: dict[str, Any]
    model_type: str
    model_args: str
    gen_kwargs: str
    generation: str
    results: Path

    @property
    def benchmark(self) -> str:
        return benchmark_of(self.task)

    @property
    def setting(self) -> str:
        """Name of the template set that was asked with, whatever the task's name says."""
        return self.signature.templates

    @property
    def label(self) -> str:
        return f"{self.model_id}/{self.date}/{self.task}"

    @property
    def samples(self) -> Path:
        return self.results.with_name(f"{self.date}_samples_{self.task}.jsonl")


@dataclass(frozen=True)
class Broken:
    """A results file that cannot be read, or a sample log whose results file is missing.

    Attributes:
        label: MODEL/DATE/TASK; the task of a results file is unknown, and "results" stands there.
        fault: what is wrong, with the path.
    """

    label: str
    fault: str


@dataclass
class Found:
    """Logs below some folders, before any is chosen."""

    headers: list[Header] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_logs(sources: Sequence[str]) -> Found:
    """Reads the results files below folders.

    Args:
        sources: folders or results files, or "NAME=FOLDER", which names the model in it.

    Raises:
        TemplateError: a folder is not there.
    """
    found = Found()
    other_tasks: set[str] = set()
    for path, name in _files(sources):
        if path.name.endswith(_RESULTS):
            try:
                headers, others = _read_results(path, name)
            except LogError as error:
                label = f"{name or path.parent.name}/{path.name.removesuffix(_RESULTS)}/results"
                found.broken.append(Broken(label, str(error)))
                continue
            found.headers += headers
            other_tasks.update(others)
        elif orphan := _orphan(path, name):
            found.broken.append(orphan)
    if other_tasks:
        found.notes.append(f"not ours, left out: {', '.join(sorted(other_tasks))}")
    return found


def _split(source: str) -> tuple[str, Path]:
    name, folder = "", Path(source)
    if not folder.exists() and "=" in source:
        name, _, rest = source.partition("=")
        folder = Path(rest)
    if not folder.is_dir() and not (folder.is_file() and folder.name.endswith(_RESULTS)):
        raise TemplateError(
            f"{source}: no such folder; name lmms-eval's --output_path or a DATE_results.json in it, or NAME=FOLDER"
        )
    return name, folder


def _files(sources: Sequence[str]) -> list[tuple[Path, str]]:
    """Each results file and sample log once, with the name that the user gave."""
    files: dict[Path, tuple[Path, str]] = {}
    for source in sources:
        name, folder = _split(source)
        for path in [folder] if folder.is_file() else sorted(folder.rglob("*")):
            if path.name.endswith(_RESULTS) or _SAMPLES.fullmatch(path.name):
                _, known = files.setdefault(path.resolve(), (path, name))
                if known != name:
                    raise TemplateError(f"{path}: was given two names, {known!r} and {name!r}; name each folder once")
    return list(files.values())


def _orphan(path: Path, name: str) -> Broken | None:
    match = _SAMPLES.fullmatch(path.name)
    if not match or path.with_name(match["date"] + _RESULTS).exists():
        return None
    with path.open("rb") as lines:
        line = lines.readline()
    is_cut = not line.endswith(b"\n")  # or empty: only the name says whose it is
    if f'"{RECORD_METRIC}"'.encode() not in line and not (is_cut and _TASK.fullmatch(match["task"])):
        return None
    label = f"{name or path.parent.name}/{match['date']}/{match['task']}"
    return Broken(label, f"samples without a results file, from a run that was interrupted ({path})")


def _read_results(path: Path, name: str) -> tuple[list[Header], list[str]]:
    """Our tasks of a results file, and the names of the others."""
    try:
        content = json.loads(path.read_bytes())  # unlike orjson, json reads the NaN of a run without a complete item
        configs, results = content["configs"], content["results"]
        run = content["config"]
        headers, others = [], []
        for task, config in configs.items():
            metadata = config.get("metadata") or {}
            if "signature" not in metadata:
                others.append(task)
                continue
            headers.append(
                Header(
                    model_id=name or content.get("model_name") or run["model"],
                    date=path.name.removesuffix(_RESULTS),
                    task=task,
                    signature=Signature.parse(metadata["signature"]),
                    templates=tuple(metadata["templates"]),
                    environment=metadata.get("environment", {}),
                    scores={metric: results[task].get(f"{metric},none") for metric in METRICS},
                    config=config,
                    model_type=str(run["model"]),
                    model_args=str(run.get("model_args", "")),
                    gen_kwargs=json.dumps(run.get("gen_kwargs") or None, sort_keys=True),
                    generation=json.dumps(config.get("generation_kwargs"), sort_keys=True),
                    results=path,
                )
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LogError(f"{path}: no results file of lmms-eval ({error!r}); remove it, or run again") from error
    return headers, others


def read_samples(header: Header) -> Iterator[dict[str, Any]]:
    """The lines of a sample log, one at a time.

    Raises:
        LogError: the file is missing, or a line is cut off or no sample of ours.
    """
    try:
        with header.samples.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    sample = orjson.loads(line)
                    sample[RECORD_METRIC]["item"]
                except (ValueError, KeyError, TypeError) as error:
                    what = "no sample of our tasks" if line.endswith(b"\n") else "is cut off: the run was interrupted"
                    raise LogError(f"{header.samples}, line {number}: {what} ({error})") from None
                yield sample
    except OSError as error:
        raise LogError(f"cannot read {header.samples} ({error.strerror}); was it run with --log_samples?") from None


def read_matrix(header: Header) -> Matrix:
    """A run's matrix, read line by line, and held against the scores in its results file.

    Raises:
        LogError: the log is incomplete, faulty, or of another run than the results.
    """
    num_templates, num_items = len(header.templates), header.signature.items
    if TemplateSet("", header.templates).hash[:12] != header.signature.templates_hash:
        raise LogError(f"{header.results}: the templates have another hash than the signature says; one was changed")
    try:
        cells = (Cell.from_record(sample[RECORD_METRIC]) for sample in read_samples(header))
        matrix = build_matrix(cells, num_templates)
    except LogError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise LogError(f"{header.samples}: {error}; the file was changed or holds two runs") from None
    if len(matrix.items) != num_items or matrix.left_out:
        missing = f"; incomplete are {', '.join(matrix.left_out[:5])}" if matrix.left_out else ""
        raise LogError(
            f"{len(matrix.items)} of {num_items} items were answered with all {num_templates} templates{missing}. The "
            "run was interrupted, or cut by --limit: to ask about fewer items, set TM_ITEMS"
        )
    for name, computed in {**accuracy_metrics(matrix.correct), **matching_metrics(matrix)}.items():
        reported = header.scores[name]
        if not isinstance(reported, (int, float)) or not math.isclose(reported, computed, abs_tol=1e-6):
            raise LogError(
                f"{name} is {reported} in {header.results} and {computed:.6g} by {header.samples.name}: "
                "one of the two was changed, or belongs to another run"
            )
    return matrix
