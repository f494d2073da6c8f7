"""`lmms-eval-templates submit`: one model's logs as one file for a leaderboard, and the check of such files."""

from __future__ import annotations

import argparse
import json

from ..sets import TemplateError
from .report import add_log_arguments

NAME = "submit"
HELP = "write one model's runs as a submission to a leaderboard, or check submissions"
EXAMPLE = (
    "lmms-eval-templates submit logs/my_model -o submission.json; lmms-eval-templates submit --check submission.json"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_log_arguments(parser)
    parser.add_argument("-o", "--output", help="file to write (default: submission.json)")
    parser.add_argument("--hardware", default="", help="what the runs ran on (default: what the logs say)")
    parser.add_argument(
        "--check", action="store_true", help="LOGS are submissions: check each, and compute every figure again"
    )


def run(args: argparse.Namespace) -> int:
    from ..reports.output import write_file
    from ..reports.runs import read_runs
    from ..reports.submission import build_submission, check_submission, read_submission
    from ..reports.summary import summarise

    if args.check:
        given = {"-o": args.output, "--latest": args.latest, "--only": args.only, "--hardware": args.hardware}
        if useless := [name for name, value in given.items() if value]:
            raise TemplateError(f"--check reads submissions and writes nothing: leave out {', '.join(useless)}")
        faults = []
        for path in args.logs:
            try:
                submission = read_submission(path)
            except TemplateError as error:
                faults.append(str(error))
            else:
                print(
                    f"{path}: {submission.model}, {len(submission.analyses)} runs, all figures follow from the answers"
                )
        if faults:
            raise TemplateError("\n".join(faults))
        return 0
    summary = summarise(read_runs(args.logs, args.only, args.latest, show_progress=True), show_progress=True)
    for note in summary.notes:
        print(f"note: {note}")
    output = args.output or "submission.json"
    text = json.dumps(build_submission(summary, args.hardware), indent=1) + "\n"
    check_submission(json.loads(text), output)
    write_file(output, text)
    print(f"{output}: {summary.models[0]}, {len(summary.runs[summary.models[0]])} runs")
    return 0
