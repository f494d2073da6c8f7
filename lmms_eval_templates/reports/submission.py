"""One model's runs as one JSON file that can be checked: it holds every answer, from which all figures follow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ..matching import LETTERS
from ..metrics import Matrix
from ..sets import TemplateError, TemplateSet
from ..signature import Signature
from .logs import benchmark_of
from .runs import Run
from .statistics import Analysis, Overall, analyse, overall
from .summary import Key, Summary

FORMAT = "lmms-eval-templates submission 1"
_NO_CHOICE = "-"
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Submission:
    """A submission that was checked.

    Attributes:
        content: the file's.
        analyses: (benchmark, setting) -> statistics, computed from its answers.
        overall: their means.
        signatures: (benchmark, setting) -> signature.
    """

    content: dict[str, Any]
    analyses: dict[Key, Analysis]
    overall: Overall
    signatures: dict[Key, Signature]

    @property
    def model(self) -> str:
        return self.content["model"]["name"]


def schema() -> dict[str, Any]:
    """The published JSON Schema."""
    return json.loads(resources.files(__package__).joinpath("submission.schema.json").read_text("utf-8"))


def build_submission(summary: Summary, hardware: str = "") -> dict[str, Any]:
    """A report's only model as a submission.

    Args:
        summary: a report on one model.
        hardware: what the runs ran on, where the logs do not say.

    Raises:
        TemplateError: there are several models, a run has one item, or the hardware is unknown.
    """
    if len(summary.models) != 1:
        raise TemplateError(
            f"a submission is one model's, and these logs hold {', '.join(summary.models)}; choose one with --only"
        )
    (model,) = summary.models
    runs = list(summary.runs[model].values())
    if any(len(run.matrix.items) == 1 for run in runs):
        raise TemplateError("a run of one item has no interval and cannot be submitted: ask about more, with TM_ITEMS")
    known = sorted({run.header.environment.get("hardware", "") for run in runs} - {""})
    if not hardware and not known:
        raise TemplateError("the logs do not say what hardware the runs ran on; name it with --hardware")
    versions: dict[str, set[str]] = {}
    for run in runs:
        of_run = {name: value for name, value in run.header.environment.items() if name != "hardware"}
        of_run |= {"lmms-eval-templates": run.signature.version, "lmms-eval": run.signature.lmms_eval}
        for name, value in of_run.items():
            versions.setdefault(name, set()).add(value)
    day = max(run.header.date for run in runs)
    return {
        "format": FORMAT,
        "model": {
            "name": model,
            "type": runs[0].header.model_type,
            "args": sorted({run.header.model_args for run in runs}),
        },
        "date": f"{day[:4]}-{day[4:6]}-{day[6:8]}",
        "hardware": hardware or ", ".join(known),
        "versions": {name: ", ".join(sorted(values)) for name, values in sorted(versions.items())},
        "overall": _overall(summary.overall[model]),
        "template_sets": {run.signature.templates_hash: list(run.header.templates) for run in runs},
        "runs": [_run(run, summary.analyses[model][key]) for key, run in summary.runs[model].items()],
    }


def _overall(means: Overall) -> dict[str, Any]:
    return {
        "avg": means.avg._asdict(),
        "max_min": means.max_min._asdict(),
        "worst": means.worst,
        "null_max_min": means.null_max_min,
        "p_value": means.p_value,
    }


def _figures(analysis: Analysis) -> dict[str, Any]:
    """What a run holds that follows from its answers."""
    return {
        "avg": analysis.avg._asdict(),
        "max_min": analysis.max_min._asdict(),
        "metrics": analysis.metrics,
        "accuracies": analysis.accuracies.tolist(),
    }


def _run(run: Run, analysis: Analysis) -> dict[str, Any]:
    matrix = run.matrix
    letters = np.array([*LETTERS, _NO_CHOICE])  # a prediction of -1 takes the last
    return {
        "task": run.header.task,
        "benchmark": run.benchmark,
        "setting": run.setting,
        "signature": str(run.signature),
        "templates_hash": run.signature.templates_hash,
        "items_hash": run.signature.items_hash,
        "item_ids_hash": hashlib.sha256(json.dumps(matrix.items).encode()).hexdigest(),
        **_figures(analysis),
        "embedded": matrix.embedded.sum(axis=0).tolist(),
        "answers": "".join(letters[matrix.answers]),
        "predictions": ["".join(row) for row in letters[matrix.predictions]],
    }


def read_submission(path: str | Path) -> Submission:
    """Reads and checks a submission.

    Raises:
        TemplateError: it does not follow the schema, or a figure does not follow from its answers; every fault is
            named by its field.
    """
    try:
        content = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TemplateError(f"cannot read submission {path}: {error}") from error
    return check_submission(content, path)


def check_submission(content: Any, path: str | Path) -> Submission:
    """Checks a submission's content.

    Args:
        content: as JSON has it.
        path: its file, for messages.

    Raises:
        TemplateError: as `read_submission`.
    """
    try:
        faults = list(_schema_faults(content))
    except RecursionError as error:
        raise TemplateError(f"{path}: is nested too deeply for a submission") from error
    if not faults:
        faults = list(_inconsistencies(content))
    if faults:
        raise TemplateError("\n".join(f"{path}: {fault}" for fault in faults))
    analyses, signatures = {}, {}
    for run in content["runs"]:
        key = run["benchmark"], run["setting"]
        signatures[key] = Signature.parse(run["signature"])
        analyses[key] = analyse(_matrix(run), run["benchmark"], signatures[key].seed)
    means = overall(list(analyses.values()))
    expected = {"overall": _overall(means), "runs": [_figures(analysis) for analysis in analyses.values()]}
    faults = list(_differences(content, expected, ""))
    if faults:
        raise TemplateError("\n".join(f"{path}: {fault}" for fault in faults))
    return Submission(content, analyses, means, signatures)


def _schema_faults(content: Any) -> Iterator[str]:
    import jsonschema

    validator = jsonschema.Draft202012Validator(schema())
    for error in sorted(validator.iter_errors(content), key=lambda error: error.json_path):
        yield f"{error.json_path.removeprefix('$.')}: {error.message[:300]}"


def _inconsistencies(content: Mapping[str, Any]) -> Iterator[str]:
    """What a schema cannot say: lengths, hashes, and that a signature says what its run says."""
    try:
        date.fromisoformat(content["date"])
    except ValueError as error:
        yield f"date: is {content['date']!r} ({error})"
    for digits, templates in content["template_sets"].items():
        if TemplateSet("", tuple(templates)).hash[:12] != digits:
            yield f"template_sets.{digits}: the templates have another hash"
    seen: set[Key] = set()
    versions: dict[str, set[str]] = {"lmms-eval-templates": set(), "lmms-eval": set()}
    for number, run in enumerate(content["runs"]):
        where = f"runs[{number}]"
        key = run["benchmark"], run["setting"]
        if key in seen:
            yield f"{where}: a second run of {run['benchmark']} with the {run['setting']} templates"
        seen.add(key)
        try:
            signature = Signature.parse(run["signature"])
        except ValueError as error:
            yield f"{where}.signature: {error}"
            continue
        versions["lmms-eval-templates"].add(signature.version)
        versions["lmms-eval"].add(signature.lmms_eval)
        if run["benchmark"] != benchmark_of(run["task"]):
            yield f"{where}.task: is {run['task']!r}, which is no task of the benchmark {run['benchmark']!r}"
        for name, value in (("setting", signature.templates), ("templates_hash", signature.templates_hash)):
            if run[name] != value:
                yield f"{where}.{name}: is {run[name]!r}, but the signature says {value!r}"
        if run["items_hash"] != signature.items_hash:
            yield f"{where}.items_hash: is {run['items_hash']!r}, but the signature says {signature.items_hash!r}"
        if run["templates_hash"] in content["template_sets"]:
            num_templates = len(content["template_sets"][run["templates_hash"]])
            yield from (f"{where}.{fault}" for fault in _shape_faults(run, signature.items, num_templates))
        else:
            yield f"{where}.templates_hash: {run['templates_hash']} is not among the template_sets"
    for name, values in versions.items():
        given, signed = content["versions"][name], ", ".join(sorted(values))
        if given != signed:
            yield f"versions.{name}: is {given!r}, but the signatures say {signed!r}"


def _shape_faults(run: Mapping[str, Any], num_items: int, num_templates: int) -> Iterator[str]:
    lengths = {"answers": num_items, "predictions": num_items, "accuracies": num_templates, "embedded": num_templates}
    for name, length in lengths.items():
        if len(run[name]) != length:
            yield f"{name}: has {len(run[name])} entries, must have {length}"
    for item, row in enumerate(run["predictions"]):
        if len(row) != num_templates:
            yield f"predictions[{item}]: has {len(row)} letters, must have one for each of {num_templates}"
    for template, count in enumerate(run["embedded"]):
        if count > num_items:
            yield f"embedded[{template}]: is {count}, but there are {num_items} items"


def _matrix(run: Mapping[str, Any]) -> Matrix:
    """The matrix that a run's letters describe."""
    answers = np.array([LETTERS.index(letter) for letter in run["answers"]])
    predictions = np.array([[LETTERS.find(letter) for letter in row] for row in run["predictions"]])
    embedded = np.arange(len(answers))[:, None] < np.array(run["embedded"])  # which ones does not matter
    items = tuple(map(str, range(len(answers))))
    return Matrix(items, answers, predictions, predictions == answers[:, None], embedded, ())


def _differences(given: Any, expected: Any, where: str) -> Iterator[str]:
    """Every figure in `expected` that `given` has otherwise."""
    if isinstance(expected, dict):
        for name, value in expected.items():
            yield from _differences(given[name], value, f"{where}.{name}" if where else name)
    elif isinstance(expected, list):
        for number, value in enumerate(expected):
            yield from _differences(given[number], value, f"{where}[{number}]")
    elif not expected - _TOLERANCE <= given <= expected + _TOLERANCE:  # true of nan, and of an int beyond all floats
        yield f"{where}: is {given}, but the answers in the file give {expected:.6f}"
