"""The three forms of a table."""

from __future__ import annotations

import csv
import io

from lmms_eval_templates.reports.tables import Table, embolden, number, text, to_csv, to_latex, to_markdown

TABLE = Table(
    name="t",
    caption="50% of it & more.",
    columns=[("Model",), ("BLINK", "S"), ("BLINK", "ID"), ("Overall",)],
    blocks=[
        ("", [[text("a_b|c"), number(1.005), number(float("nan")), number(3)]]),
        ("paper", [[text("d\ne"), number(2), *embolden([number(4.004), number(4.001)], highest=True)]]),
    ],
)


def test_headings_span():
    assert TABLE.header_rows == [
        [("Model", 1, 2), ("BLINK", 2, 1), ("Overall", 1, 2)],
        [("", 1, 0), ("S", 1, 1), ("ID", 1, 1), ("", 1, 0)],
    ]


def test_markdown():
    assert to_markdown(TABLE).split("\n")[2:7] == [
        "| Model | BLINK S | BLINK ID | Overall |",
        "| --- | ---: | ---: | ---: |",
        "| a\\_b\\|c | 1.00 | – | 3.00 |",
        "| *paper* |  |  |  |",
        "| d<br>e | 2.00 | **4.00** | **4.00** |",  # what looks equal is equally good
    ]


def test_csv_holds_raw_values():
    rows = list(csv.reader(io.StringIO(to_csv(TABLE))))
    assert rows == [
        ["source", "Model", "BLINK S", "BLINK ID", "Overall"],
        ["", "a_b|c", "1.005", "", "3"],
        ["paper", "d\ne", "2", "4.004", "4.001"],
    ]


def test_latex():
    lines = to_latex(TABLE).split("\n")
    assert r"\caption{50\% of it \& more.}" in lines
    assert r"\begin{tabular}{lrrr}" in lines
    assert r"Model & \multicolumn{2}{c}{BLINK} & Overall \\" in lines
    assert r" & S & ID &  \\" in lines
    assert r"a\_b|c & 1.00 & – & 3.00 \\" in lines
    assert r"d e & 2.00 & \textbf{4.00} & \textbf{4.00} \\" in lines


def test_the_lowest_is_best_for_max_min():
    assert [cell.bold for cell in embolden([number(2), number(float("nan")), number(1)], highest=False)] == [
        *(False, False, True)
    ]
