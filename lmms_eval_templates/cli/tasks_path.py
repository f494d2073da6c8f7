"""`lmms-eval-templates tasks-path`: the folder of task YAMLs, for commands that do not load plugins."""

from __future__ import annotations

import argparse

from ..plugin import tasks_path

NAME = "tasks-path"
HELP = "print the folder of our task YAMLs"
EXAMPLE = 'lmms-eval tasks list --include_path "$(lmms-eval-templates tasks-path)"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    print(tasks_path())
    return 0
