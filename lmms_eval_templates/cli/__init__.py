"""The `lmms-eval-templates` command; each subcommand is a module with `NAME`, `HELP`, `EXAMPLE` and two functions."""

from __future__ import annotations

import argparse
import os
import sys

from ..sets import TemplateError
from . import augment, check, demo, leaderboard, report, sample, submit, tasks_path, tree

SUBCOMMANDS = (tree, sample, check, tasks_path, demo, report, submit, leaderboard, augment)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="lmms-eval-templates",
        description="Instruction templates for multimodal evaluation and training. To evaluate, run lmms-eval itself: "
        "lmms-eval --model ... --tasks blink_tm_complex",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in SUBCOMMANDS:
        command = commands.add_parser(
            module.NAME,
            help=module.HELP,
            description=module.HELP,
            epilog=f"example: {module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Runs a subcommand; an error of the user's is one message and exit status 2."""
    parsed = build_parser().parse_args(arguments)
    try:
        return parsed.run(parsed)
    except TemplateError as error:
        print(f"lmms-eval-templates: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `... | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
