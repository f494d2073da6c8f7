"""Makes a report: tables, pictures and one page in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from .examples import largest_disagreements
from .figures import INSTALL, draw_all, matplotlib_missing
from .layouts import all_tables
from .output import new_folder
from .page import report_page
from .paper import paper_scores
from .ratios import read_ratios
from .summary import Summary
from .tables import WRITERS

PAGE, PICTURES = "index.html", "figures"


def write_report(
    summary: Summary,
    output: str | Path,
    ratios: Sequence[str] = (),
    with_paper: bool = False,
    command: Sequence[str] = (),
    show_progress: bool = False,
) -> None:
    """Writes a report into a folder, whole or not at all.

    Without matplotlib there are no pictures, and the page says what to install.

    Args:
        summary: what it says.
        output: the folder; an earlier report there is replaced.
        ratios: "MODEL=RATIO" pairs, see `read_ratios`.
        with_paper: whether the paper's own rows stand in Tables 1 and 2.
        command: the arguments that the report was made with.
        show_progress: whether to draw progress bars.

    Raises:
        TemplateError: a ratio is faulty, or the folder cannot be written.
    """
    read = read_ratios(summary, ratios)
    tables = all_tables(summary, {n: paper_scores(n) for n in (1, 2)} if with_paper else {})
    with new_folder(output) as folder:
        for table in tables:
            for suffix, write in WRITERS.items():
                (folder / f"{table.name}.{suffix}").write_text(write(table), "utf-8")
        pictures = []
        if not matplotlib_missing():
            (folder / PICTURES).mkdir()
            drawn = draw_all(summary, read, folder / PICTURES)
            pictures = list(tqdm(drawn, "Pictures", unit="", disable=not show_progress or None))
        page = report_page(summary, tables, pictures, INSTALL, largest_disagreements(summary), command)
        (folder / PAGE).write_text(page, "utf-8")
