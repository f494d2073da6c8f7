"""`lmms-eval-templates check`: whether a file of templates can be used, and every fault if not."""

from __future__ import annotations

import argparse

from ..sets import TemplateError, load_template_set
from ..space import VQA

NAME = "check"
HELP = "check files of templates; every fault is named with file, position and reason"
EXAMPLE = "lmms-eval-templates check my_templates.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON, or one template a line")


def run(args: argparse.Namespace) -> int:
    faults = []
    for name in args.files:
        try:
            templates = load_template_set(name)
        except TemplateError as error:
            faults.append(str(error))
        else:
            inside = sum(template in VQA for template in templates.templates)
            print(
                f"{name}: {len(templates)} templates, {inside} of them in the template space, SHA-256 {templates.hash}"
            )
    if faults:
        raise TemplateError("\n".join(faults))
    return 0
