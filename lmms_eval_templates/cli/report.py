"""`lmms-eval-templates report`: lmms-eval's logs as the paper's tables and figures, with statistics, on one page."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

NAME = "report"
HELP = "write tables, statistics, pictures and one HTML page from lmms-eval's logs of our tasks"
EXAMPLE = "lmms-eval-templates report logs --with-paper -o report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_log_arguments(parser)
    parser.add_argument("-o", "--output", default="report", help="folder to write (default: %(default)s)")
    parser.add_argument("--with-paper", action="store_true", help="show the paper's rows in Tables 1 and 2")
    parser.add_argument(
        "--ratio",
        action="append",
        default=[],
        metavar="MODEL=RATIO[,LINE]",
        help="template-to-data ratio that a model was trained with: a number, or the manifest that `augment` wrote; "
        "models of one LINE are joined",
    )


def add_log_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which logs to read."""
    parser.add_argument(
        "logs", nargs="+", metavar="LOGS", help="lmms-eval's --output_path, or NAME=FOLDER to name the model in it"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="read only runs MODEL/DATE/TASK that match"
    )
    parser.add_argument(
        "--latest", action="store_true", help="of several runs of one task, take the newest that is complete"
    )


def run(args: argparse.Namespace) -> int:
    os.environ["HF_HUB_OFFLINE"] = "1"  # a report shows images that are on this machine, and downloads none
    from ..reports.figures import INSTALL, matplotlib_missing
    from ..reports.report import PAGE, write_report
    from ..reports.runs import read_runs
    from ..reports.summary import summarise

    logs = read_runs(args.logs, args.only, args.latest, show_progress=True)
    summary = summarise(logs, show_progress=True)
    for model, runs in summary.runs.items():
        print(f"{model}: {len(runs)} runs, {', '.join(dict.fromkeys(benchmark for benchmark, _ in runs))}")
    for note in summary.notes:
        print(f"note: {note}")
    if matplotlib_missing():
        print(f"note: {INSTALL}", file=sys.stderr)
    command = [*args.logs, *(f"--only={pattern}" for pattern in args.only), *(f"--ratio={r}" for r in args.ratio)]
    command += ["--latest"] * args.latest + ["--with-paper"] * args.with_paper
    write_report(summary, args.output, args.ratio, args.with_paper, command, show_progress=True)
    output = Path(args.output)
    print(f"page: {output / PAGE}\ntables: {output}/*.md, *.csv, *.tex")
    if not matplotlib_missing():
        print(f"pictures: {output}/figures/*.png, *.svg")
    return 0
