"""Template sets: the fixed lists of templates that an evaluation asks every question with."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

PUBLISHED_SETS = ("simple", "complex", "ood")
PLACEHOLDERS = ("{question}", "{choices}")
_PUBLISHED_KEY = "MultiChoiceImageQa"  # the format of the sets that the paper's authors published


class TemplateError(ValueError):
    """A template, a set or a setting that cannot be used; the message lists every fault."""


@dataclass(frozen=True)
class TemplateSet:
    """Templates with a name.

    Attributes:
        name: "simple", "complex", "ood", or the name of the file it came from.
        templates: texts with `{question}` and `{choices}` once each.
    """

    name: str
    templates: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.templates)

    @cached_property
    def hash(self) -> str:
        """SHA-256 over the templates and their order."""
        return hashlib.sha256(json.dumps(self.templates).encode()).hexdigest()


def fill(template: str, question: str, choices: str) -> str:
    """The prompt. One pass, so that braces inside a question or a choice are plain text."""
    values = {"{question}": question, "{choices}": choices}
    return re.sub(r"\{question\}|\{choices\}", lambda match: values[match[0]], template)


def _template_faults(template: str) -> list[str]:
    faults = []
    for placeholder in PLACEHOLDERS:
        count = template.count(placeholder)
        if count != 1:
            faults.append(f"{placeholder} stands {count} times, must stand once")
    rest = re.sub(r"\{question\}|\{choices\}", lambda match: " " * len(match[0]), template)
    for match in re.finditer(r"\{[^{}]*\}|[{}]", rest):
        kind = "lone brace" if len(match[0]) == 1 else "unknown placeholder"
        faults.append(f"{kind} {match[0]} at character {match.start() + 1}; known are {{question}} and {{choices}}")
    return faults


def check_templates(templates: Sequence[object], source: str, unit: str = "template") -> list[str]:
    """Every fault of a list of templates, each as `SOURCE, UNIT N: reason`; empty when the list can be used."""
    faults: list[str] = []
    seen: dict[str, int] = {}
    if not templates:
        faults.append(f"{source}: no templates in it; write one a line, or a JSON list")
    for number, template in enumerate(templates, start=1):
        where = f"{source}, {unit} {number}"
        if not isinstance(template, str):
            faults.append(f"{where}: {template!r} is no text")
            continue
        faults += [f"{where}: {fault}" for fault in _template_faults(template)]
        if template in seen:
            faults.append(f"{where}: repeats {unit} {seen[template]}")
        seen.setdefault(template, number)
    return faults


def load_template_set(path: str | Path) -> TemplateSet:
    r"""Reads a set from a file.

    A `.json` file is a list of templates, the published `{"MultiChoiceImageQa": [...]}`, or an object whose
    `templates` is a list (a training manifest). Any other file has one template a line, with `\n` for a line break.

    Raises:
        TemplateError: the file cannot be read, or templates in it are faulty; all faults are in the message.
    """
    path = Path(path)
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"cannot read template set {path}: {error}") from error
    unit = "template"
    if path.suffix == ".json":
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise TemplateError(f"{path}, line {error.lineno}, column {error.colno}: no JSON: {error.msg}") from error
        templates = content
        if isinstance(content, dict):
            templates = content.get(_PUBLISHED_KEY, content.get("templates"))
        if not isinstance(templates, list):
            raise TemplateError(
                f'{path}: no list of templates; allowed: [...], {{"{_PUBLISHED_KEY}": [...]}}, {{"templates": [...]}}'
            )
    else:
        unit = "line"
        templates = [line.replace("\\n", "\n") for line in text.split("\n")]
        while templates and not templates[-1].strip():
            templates.pop()
    faults = check_templates(templates, str(path), unit)
    if faults:
        raise TemplateError("\n".join(faults))
    return TemplateSet(path.stem, tuple(templates))


def find_template_set(name: str, folder: Path) -> TemplateSet:
    """A shipped set by name, or else a file, whose path is taken from `folder`.

    Raises:
        TemplateError: neither can be had.
    """
    return template_set(name) if name in PUBLISHED_SETS else load_template_set(folder / name)


def template_set(name: str) -> TemplateSet:
    """A set that ships with the package.

    "simple" is the paper's three (section 3.1), "complex" 100 templates drawn from `VQA` (Table 1's Complex, Table 2's
    ID), "ood" 25 written by hand outside the template space (Table 2's OOD).

    Raises:
        TemplateError: the name is none of these.
    """
    if name not in PUBLISHED_SETS:
        raise TemplateError(f"no template set {name!r}; shipped are {', '.join(PUBLISHED_SETS)}, or name a file")
    with resources.as_file(resources.files(__package__) / f"sets/{name}.json") as path:
        return load_template_set(path)
