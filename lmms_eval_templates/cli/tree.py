"""`lmms-eval-templates tree`: the sentence-pattern trees with the weight of every node."""

from __future__ import annotations

import argparse

from ..space import CHOICE, QUESTION, VQA

NAME = "tree"
HELP = "show the sentence-pattern trees and how many templates lie below each node"
EXAMPLE = "lmms-eval-templates tree question"
_SPACES = {"question": QUESTION, "choice": CHOICE}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("space", nargs="?", choices=sorted(_SPACES), help="one of the trees (default: both)")


def run(args: argparse.Namespace) -> int:
    for name in [args.space] if args.space else _SPACES:
        for path, weight in _SPACES[name].weights().items():
            depth = path.count("/") + 1 if path else 0
            label = path.split("/", 3)[-1].rsplit("/", 1)[-1] if depth < 4 else path.split("/", 3)[3]
            print(f"{weight:>9,}  {'  ' * depth}{label or name}")
        print()
    if args.space is None:
        print(f"{len(VQA):,} templates: each question template with each choice template")
    return 0
