"""Which instructions of a training mix are questions, and how a template goes around one."""

from __future__ import annotations

import re
from typing import NamedTuple

from lmms_eval_templates.sets import fill

from .records import IMAGE_MARK

QUESTION_KINDS = ("question", "multiple-choice")

_PICTURE = r"(?:image|picture|photo|photograph|scene|snapshot|artwork|painting|illustration|chart|figure)s?\b"
_POLITE = r"(?:(?:please|kindly|now)[, ]+|(?:can|could|would|will)\ you\ |i(?:\ woul|')d\ like\ you\ to\ )*"
_NOT_ASKING = r"(?:(?!\b(?:what|why|who|which|where|when|whether|how|if)\b).)*?"
# Patterns of this block are for lower case: `re.I` takes twice as long.
# Requests for prose about the picture, as the brief and the detailed instructions of LLaVA word them.
_CAPTION = re.compile(
    rf"""
    (?:(?:in|with|using)\ [^,?]{{1,60}},\ )?{_POLITE}
    (?:
      (?:describe|caption|narrate|portray|depict|characteri[sz]e|elaborate\ on|walk\ (?:me\ )?through)\b
    | (?:give|provide|write|share|offer|present|generate|create|compose|produce|render|relay|come\ up\ with|suggest)\b
      {_NOT_ASKING}\b(?:descriptions?|captions?|summary|explanation|account|depiction|narrative|interpretation|rundown
      |overview|analysis)\b
      (?!\ (?:of|for|about|on|as\ to)?\ ?(?:why|how|what|which|who|where|whether)\b)
    | (?:explain|analy[sz]e|summari[sz]e|clarify|break\ down|illustrate|examine|tell\ me\ about|express)\b
      {_NOT_ASKING}\b{_PICTURE}
    )""",
    re.S | re.X,
)
_BOUNDING_BOX = re.compile(r"\bbounding[- ]box|\bbbox")
_REGION = re.compile(
    _POLITE + r"(?:give|provide|describe|caption|write|generate|locate|find|identify|detect|output|mark|highlight)\b"
    r".*\b(?:this|the|that|each|following|given|specified)\s+region",
    re.S,
)
_OCR_LINE = re.compile(r"^\s*Reference OCR token:.*$", re.M)

_CHOICE_LINE = re.compile(r"[ \t]*(?:\((?P<round>[A-Za-z])\)|(?P<plain>[A-Za-z])[.):])[ \t]*(?=\S)")
# Behind the end of a question or of a label: "Is panel (a) or (b) darker" offers nothing to choose from.
_CHOICES_IN_LINE = re.compile(r"(?<=[?:.？：。])\s*(?P<choices>\([Aa]\) ?\S[^?\n]*? \([Bb]\) ?\S[^\n]*)")
_FORMAT_IN_LINE = re.compile(
    r"(?<=[^\s)])\s+(?=(?:Please |please |Kindly )?(?:(?:[Aa]nswer|[Rr]espond|[Rr]eply|[Cc]hoose|[Ss]elect) "
    r"(?:with|using|by|in|only|just|directly|the|from|one)\b|Answer:$))"
)
_SECOND_CHOICE = re.compile(r"[Bb][.):]")
_CHOICES_LABEL = re.compile(r"(?:^|(?<=\s))(?:answer )?(?:options|choices):\s*$", re.I)


class Instruction(NamedTuple):
    """A human turn taken apart. Joined again, only white space and a label ("Options:") before choices are lost.

    Attributes:
        before: image marks and white space in front.
        question: what a template's `{question}` stands for.
        choices: what its `{choices}` stands for; None in an open question.
        after: what follows the choices (a format line), then image marks and white space.
    """

    before: str
    question: str
    choices: str | None
    after: str


def take_apart(text: str) -> Instruction:
    r"""Finds the question and its choices in the text of a human turn.

    Example:
        >>> take_apart("<image>\nWhich?\nA. cat\nB. dog\nAnswer with the letter.")
        Instruction('<image>\n', 'Which?', 'A. cat\nB. dog', '\nAnswer with the letter.')
    """
    inner = text.lstrip()
    while inner.startswith(IMAGE_MARK):
        inner = inner.removeprefix(IMAGE_MARK).lstrip()
    core = inner.rstrip()
    while core.endswith(IMAGE_MARK):
        core = core.removesuffix(IMAGE_MARK).rstrip()
    before, after = text[: len(text) - len(inner)], inner[len(core) :]
    if span := _choices_span(core):
        begin, end = span
        question = _CHOICES_LABEL.sub("", core[:begin]).rstrip()
        if question:
            return Instruction(before, question, core[begin:end], core[end:] + after)
    return Instruction(before, core, None, after)


def kind_of(instruction: Instruction) -> str:
    """ "question", "multiple-choice", "caption", "region", "bounding-box" or "empty"."""
    if instruction.choices is not None:
        return "multiple-choice"
    asked = instruction.question
    if "OCR" in asked:
        asked = _OCR_LINE.sub("", asked).strip()
    if not asked:
        return "empty"
    asked = asked.lower()
    if "box" in asked and _BOUNDING_BOX.search(asked):
        return "bounding-box"
    if "region" in asked and _REGION.match(asked):
        return "region"
    return "caption" if _CAPTION.match(asked) else "question"


def _choices_span(core: str) -> tuple[int, int] | None:
    """Where the choices stand: lines "A. cat", "B. dog", also with other lines between them, or "(A) cat (B) dog"."""
    if not _SECOND_CHOICE.search(core):
        return None
    run: list[tuple[int, int]] = []
    offset = 0
    for line in core.split("\n"):
        here = (offset, offset + len(line))
        offset += len(line) + 1
        letter = _letter(line)
        if letter == len(run):
            run.append(here)
        elif letter == 0:
            if len(run) >= 2:
                break
            run = [here]
    if len(run) >= 2:
        return run[0][0], run[-1][1]
    if in_line := _CHOICES_IN_LINE.search(core):
        begin, end = in_line.span("choices")
        if told := _FORMAT_IN_LINE.search(core, begin, end):
            end = told.start()
        if "?" not in core[begin:end]:
            return begin, end
    return None


def _letter(line: str) -> int | None:
    """Number of the choice that a line like "B. dog" holds."""
    match = _CHOICE_LINE.match(line)
    return ord((match["round"] or match["plain"]).upper()) - ord("A") if match else None


def render(instruction: Instruction, question_template: str, choice_template: str) -> str:
    """The turn with a template around its question, and around its choices if it has any."""
    if instruction.choices is None:
        asked = question_template.replace("{question}", instruction.question)
    else:
        asked = fill(question_template + "\n" + choice_template, instruction.question, instruction.choices)
    return instruction.before + asked + instruction.after
