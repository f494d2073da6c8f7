"""`lmms-eval-templates leaderboard`: ranks submissions."""

from __future__ import annotations

import argparse
from pathlib import Path

from tqdm import tqdm

NAME = "leaderboard"
HELP = "rank submissions by overall Avg., with Max-Min, worst case and rank range over templates"
EXAMPLE = "lmms-eval-templates leaderboard submissions/*.json -o leaderboard"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("submissions", nargs="+", metavar="SUBMISSION", help="files that `submit` wrote")
    parser.add_argument("-o", "--output", default="leaderboard", help="folder to write (default: %(default)s)")
    parser.add_argument("--mixed", action="store_true", help="rank submissions though items or templates differ")
    parser.add_argument("--with-paper", action="store_true", help="show the paper's rows for reference")


def run(args: argparse.Namespace) -> int:
    from ..reports.leaderboard import write_leaderboard
    from ..reports.report import PAGE
    from ..reports.submission import read_submission

    submissions = [read_submission(path) for path in tqdm(args.submissions, "Checking", unit="file", disable=None)]
    write_leaderboard(submissions, args.output, args.mixed, args.with_paper)
    print(f"page: {Path(args.output) / PAGE}\ntables: {args.output}/*.md, *.csv, *.tex")
    return 0
