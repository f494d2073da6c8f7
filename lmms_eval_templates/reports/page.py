"""One self-contained HTML page: no request to any network, every model's text escaped."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jinja2

from ..settings import DEFAULT_EMBEDDER
from ..signature import installed_versions
from .examples import Example
from .figures import Picture
from .layouts import benchmark_name, setting_name, template_set_tables
from .logs import Header
from .summary import Summary
from .tables import Table, column_is_text, number, text

_LONG = 60  # characters from which on a column of text gets room
_DEFAULTS = {"TM_ITEMS": "100", "TM_SEED": "0", "TM_MATCH": "robust", "TM_SUBSET": "sampled"}


def render(template: str, tables: Sequence[Table], **values: Any) -> str:
    """Fills one of the package's page templates.

    Args:
        template: "report.html" or "leaderboard.html".
        tables: shown under `tables.NAME`; values may hold more, each once as made by `table_view`.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__), autoescape=True, undefined=jinja2.StrictUndefined
    )
    views = {table.name: table_view(table) for table in tables}
    names = {"pairs": None, "rankings": None, "table1": None} | views
    return environment.get_template(template).render(tables=names, version=installed_versions()["version"], **values)


def table_view(table: Table) -> dict[str, Any]:
    """A table as the page's macro draws it."""
    width = len(table.columns)
    numeric = [not column_is_text(table, column) for column in range(width)]
    heads = []
    for level, row in enumerate(table.header_rows):
        cells: list[dict[str, Any]] = []
        column = 0
        for words, columns, rows in row:
            leaf = rows > 0 and level + rows == len(table.header_rows)  # it stands right above the figures
            head = {"text": words, "columns": columns, "rows": rows, "leaf": leaf, "column": column}
            cells.append({**head, "numeric": numeric[column]})
            column += columns
        heads.append(cells)
    all_rows = [row for _, block in table.blocks for row in block]
    step = table.rows_each
    return {
        "id": f"table-{table.name}",  # sections have ids too
        "caption": table.caption,
        "notes": table.notes,
        "heads": heads,
        "width": width,
        "key_columns": table.key_columns,
        "numeric": numeric,
        "long": [any(len(row[column].text) > _LONG for row in all_rows) for column in range(width)],
        "blocks": [
            (title, [block[start : start + step] for start in range(0, len(block), step)])
            for title, block in table.blocks
        ],
    }


def report_page(
    summary: Summary,
    tables: Sequence[Table],
    pictures: Sequence[Picture],
    no_pictures: str,
    examples: Sequence[Example],
    command: Sequence[str],
) -> str:
    """The report as one page.

    Args:
        summary: what it says.
        tables: as `layouts.all_tables` made them.
        pictures: drawn ones.
        no_pictures: what to say where there are none.
        examples: of each model.
        command: the arguments that the report was made with.
    """
    by_name = {table.name: table for table in tables}
    extremes = by_name.pop("best_and_worst")
    del by_name["templates"]
    best_and_worst = [(model, table_view(_of_model(extremes, model, n))) for n, model in enumerate(summary.models)]
    sections = [("results", "Results"), ("statistics", "Statistics"), ("pictures", "Pictures")]
    sections += [("models", "Model against model")] if "pairs" in by_name else []
    sections += [("templates", "Templates"), ("example", "Largest disagreement"), ("reproduce", "Signatures")]
    return render(
        "report.html",
        list(by_name.values()),
        models=summary.models,
        lead=_lead(summary),
        notes=summary.notes,
        sections=sections,
        pictures=[
            {"title": p.title, "description": p.description, "data": base64.b64encode(p.svg).decode()} for p in pictures
        ],
        no_pictures=no_pictures,
        best_and_worst=best_and_worst,
        template_sets=[(setting_name(setting), table_view(t)) for setting, t in template_set_tables(summary)],
        examples=[_example_view(example, n) for n, example in enumerate(examples)],
        commands=_commands(summary),
        own_command=shlex.join(["lmms-eval-templates", "report", *command]),
    )


def _lead(summary: Summary) -> str:
    runs = [run for of_model in summary.runs.values() for run in of_model.values()]
    benchmarks = ", ".join(dict.fromkeys(benchmark_name(benchmark) for benchmark, _ in summary.keys))
    answers = sum(run.matrix.predictions.size for run in runs)
    dates = sorted({_day(run.header.date) for run in runs})
    days = f"on {dates[0]}" if len(dates) == 1 else f"from {dates[0]} to {dates[-1]}"
    return (
        f"{len(runs)} runs on {benchmarks}, {answers:,} answers. Each question was asked with every template of a set; "
        f"Avg. is the mean accuracy, Max-Min the distance from the worst to the best template. "
        f"The runs were logged {days}."
    )


def _day(date: str) -> str:
    return f"{date[:4]}-{date[4:6]}-{date[6:8]}"


def _of_model(table: Table, model: str, place: int) -> Table:
    rows = [row[1:] for _, block in table.blocks for row in block if row[0].text == model]
    return replace(
        table,
        name=f"extremes-{place}",
        columns=table.columns[1:],
        blocks=[("", rows)],
        key_columns=table.key_columns - 1,
    )


def _example_view(example: Example, place: int) -> dict[str, Any]:
    right = [answer for answer in example.answers if answer.correct][:1]
    wrong = [answer for answer in example.answers if not answer.correct][:2]
    rows = [
        [
            number(a.template, 0),
            text(a.choice),
            text("right" if a.correct else "wrong"),
            text(a.response),
            text(a.prompt),
        ]
        for a in example.answers
    ]
    table = Table(
        name=f"example-{place}",
        caption=f"Every answer of {example.run.model} to item {example.item}.",
        columns=[("Template",), ("Choice",), ("Verdict",), ("Response",), ("Prompt",)],
        blocks=[("", rows)],
    )
    return {
        "model": example.run.model,
        "benchmark": f"{benchmark_name(example.run.benchmark)}, {setting_name(example.run.setting)} templates",
        "item": example.item,
        "right": example.right,
        "counts": example.counts,
        "answers": example.answers,
        "shown": (right + wrong)[:2],
        "image": base64.b64encode(example.image).decode() if example.image else "",
        "image_note": example.image_note,
        "table": table_view(table),
    }


def _commands(summary: Summary) -> list[dict[str, Any]]:
    """For each call of lmms-eval what to type to have it again."""
    commands = []
    for model, runs in summary.runs.items():
        calls: dict[Any, list[Header]] = {}
        for run in runs.values():
            calls.setdefault(run.header.results, []).append(run.header)
        for headers in calls.values():
            environment = ", ".join(f"{k} {v}" for k, v in sorted(headers[0].environment.items()))
            commands.append(
                {
                    "model": model,
                    "command": _command(headers),
                    "environment": environment,
                    "signatures": [(header.task, str(header.signature)) for header in headers],
                }
            )
    return commands


def _command(headers: Sequence[Header]) -> str:
    first = headers[0]
    signature = first.signature
    settings = {
        "TM_ITEMS": str(signature.items),
        "TM_SEED": str(signature.seed),
        "TM_MATCH": signature.match,
        "TM_SUBSET": signature.subset,
        "TM_EMBEDDER": signature.embedder,
    }
    defaults = _DEFAULTS | {"TM_EMBEDDER": DEFAULT_EMBEDDER}
    words = [f"{name}={shlex.quote(value)}" for name, value in settings.items() if value != defaults[name]]
    if not all(header.task.endswith(f"_{header.setting}") for header in headers):
        words.append(f"TM_TEMPLATES={shlex.quote(first.setting)}")
    arguments = ["lmms-eval", "--model", first.model_type]
    arguments += ["--model_args", first.model_args] if first.model_args else []
    arguments += ["--tasks", ",".join(header.task for header in headers)]
    arguments += ["--log_samples", "--output_path", "logs"]
    return " ".join([*words, shlex.join(arguments)])
