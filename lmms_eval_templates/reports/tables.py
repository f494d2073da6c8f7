"""One table structure, written as Markdown, CSV and LaTeX; the HTML page draws it too."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_LATEX = str.maketrans(
    {
        **{c: f"\\{c}" for c in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        "\n": " ",
    }
)
MISSING = "–"


class Cell(NamedTuple):
    """A cell.

    Attributes:
        text: what is shown.
        value: what CSV holds and the HTML page sorts by: a number or a text.
        bold: the best of its column.
    """

    text: str
    value: float | str
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """A table whose first columns name the rows.

    Attributes:
        name: the files' stem.
        caption: what a reader has to know.
        columns: headings, from above to below: ("BLINK", "S") stands under a shared "BLINK".
        blocks: groups of rows with a title ("" for none), such as this report's models and the paper's.
        key_columns: how many of the columns name the row.
        rows_each: rows that belong together: 2 where a model has a row of Avg. and one of Max-Min.
    """

    name: str
    caption: str
    columns: Sequence[tuple[str, ...]]
    blocks: Sequence[tuple[str, Sequence[Sequence[Cell]]]]
    key_columns: int = 1
    rows_each: int = 1
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def header_rows(self) -> list[list[tuple[str, int, int]]]:
        """(text, columns it spans, rows it spans) of each heading, row by row; 0 rows below one that reaches down."""
        depth = max(len(column) for column in self.columns)
        rows = []
        for level in range(depth):
            row: list[tuple[str, int, int]] = []
            previous: tuple[str, ...] = ()
            for column in self.columns:
                above = column[: level + 1] if len(column) > level + 1 else ()
                if above and above == previous:
                    words, columns, _ = row[-1]
                    row[-1] = words, columns + 1, 1
                elif len(column) <= level:
                    row.append(("", 1, 0))
                else:
                    row.append((column[level], 1, 1 if above else depth - level))
                previous = above
            rows.append(row)
        return rows


def column_is_text(table: Table, column: int) -> bool:
    """Whether a column holds words, which stand to the left."""
    return any(isinstance(row[column].value, str) for _, rows in table.blocks for row in rows)


def number(value: float, digits: int = 2) -> Cell:
    """A figure, or a dash where there is none."""
    return Cell(MISSING, math.inf) if math.isnan(value) else Cell(f"{value:.{digits}f}", value)


def text(value: str) -> Cell:
    """A cell of words."""
    return Cell(value, value)


def embolden(cells: Sequence[Cell], highest: bool) -> list[Cell]:
    """Marks the best of several figures of a column, as they are shown: what looks equal is equally good."""
    shown = [float(cell.text.split()[0]) for cell in cells if cell.text != MISSING]
    best = (max if highest else min)(shown) if len(shown) > 1 else math.nan
    return [cell._replace(bold=cell.text != MISSING and float(cell.text.split()[0]) == best) for cell in cells]


def to_markdown(table: Table) -> str:
    """A GitHub table; headings of several levels are joined."""
    rules = ["---" if column_is_text(table, column) else "---:" for column in range(len(table.columns))]
    heads = [" ".join(column) for column in table.columns]
    lines = [table.caption, "", _pipe(heads), _pipe(rules)]
    for title, rows in table.blocks:
        if title:
            lines.append(_pipe([f"*{title}*", *[""] * (len(heads) - 1)]))
        lines += [_pipe([f"**{cell.text}**" if cell.bold else _markdown(cell.text) for cell in row]) for row in rows]
    return "\n".join([*lines, *(f"\n{note}" for note in table.notes)]) + "\n"


def _pipe(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(words: str) -> str:
    for mark in "\\`*_<|":
        words = words.replace(mark, f"\\{mark}")
    return words.replace("\n", "<br>")


def to_csv(table: Table) -> str:
    """Raw values, unrounded; a first column names the block where there are several."""
    several = any(title for title, _ in table.blocks)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((["source"] if several else []) + [" ".join(column) for column in table.columns])
    for title, rows in table.blocks:
        for row in rows:
            values = ["" if cell.text == MISSING else cell.value for cell in row]
            writer.writerow(([title] if several else []) + values)
    return out.getvalue()


def to_latex(table: Table) -> str:
    """A `table` environment; needs the package booktabs."""
    width = len(table.columns)
    alignment = "".join("l" if column_is_text(table, column) else "r" for column in range(width))
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{table.caption.translate(_LATEX)}}}",
        f"\\begin{{tabular}}{{{alignment}}}",
        "\\toprule",
        *(" & ".join(_latex_head(words, columns) for words, columns, _ in row) + " \\\\" for row in table.header_rows),
        "\\midrule",
    ]
    for position, (title, rows) in enumerate(table.blocks):
        lines += ["\\midrule"] * (position > 0)
        if title:
            lines.append(f"\\multicolumn{{{width}}}{{l}}{{\\textit{{{title.translate(_LATEX)}}}}} \\\\")
        for row in rows:
            cells = [cell.text.translate(_LATEX) for cell in row]
            cells = [f"\\textbf{{{words}}}" if cell.bold else words for cell, words in zip(row, cells, strict=True)]
            lines.append(" & ".join(cells) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}"]
    lines += [f"\\par\\small {note.translate(_LATEX)}" for note in table.notes]
    return "\n".join([*lines, "\\end{table}"]) + "\n"


def _latex_head(words: str, columns: int) -> str:
    words = words.translate(_LATEX)
    return words if columns == 1 else f"\\multicolumn{{{columns}}}{{c}}{{{words}}}"


WRITERS = {"md": to_markdown, "csv": to_csv, "tex": to_latex}
