r"""`lmms-eval-templates sample`: templates drawn from the space, on the screen or as a file for TM_TEMPLATES."""

from __future__ import annotations

import argparse
import json
import sys

from ..sets import TemplateError
from ..space import CHOICE, QUESTION, VQA

NAME = "sample"
HELP = "draw distinct templates, the same ones for the same seed on every machine"
EXAMPLE = "lmms-eval-templates sample 100 --seed 7 --json > my_templates.json"
_SPACES = {"vqa": VQA, "question": QUESTION, "choice": CHOICE}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("n", type=int, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--space", choices=list(_SPACES), default="vqa", help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print a JSON list; else one a line, line breaks as \\n")


def run(args: argparse.Namespace) -> int:
    try:
        templates = _SPACES[args.space].sample(args.n, args.seed)
    except ValueError as error:
        raise TemplateError(str(error)) from error
    if args.json:
        json.dump(templates, sys.stdout, indent=2, ensure_ascii=False)
        print()
    else:
        for template in templates:
            print(template.replace("\n", "\\n"))
    return 0
