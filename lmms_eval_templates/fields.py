"""The fields adapter: which column of a dataset holds what, and how a row becomes a multiple-choice item."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from typing import Any

from .matching import LETTERS
from .sets import TemplateError

SPLIT_COLUMN = "__split__"  # the name of the split a row comes from, where `splits: all` joins several
_ANSWER_KINDS = ("letter", "text", "index")
_MISSING = {"", "nan", "none", "null"}
# "<image>", "<image 1>", "<image_1>", "<img>": models would take them for a second image.
_IMAGE_MARK = re.compile(r"[ \t]*<\s*(?:image|img)[ _]?\d*\s*/?>[ \t]*", re.I)
_NAMES_IMAGE = re.compile(
    r"\b(?:image|picture|figure|photo|photograph|diagram|graph|chart|table|map|circuit|plot|drawing|illustration|fig\.)$",
    re.I,
)


@dataclass(frozen=True)
class Item:
    """A single-image multiple-choice question.

    Attributes:
        id: unique in its benchmark.
        category: stratum of the sample.
        question: with its context, if any, on the lines before it.
        choices: contents in the dataset's order.
        answer: index of the right choice.
        row: position in the dataset.
    """

    id: str
    category: str
    question: str
    choices: tuple[str, ...]
    answer: int
    row: int


@dataclass(frozen=True)
class FieldsAdapter:
    """Which column holds what.

    Attributes:
        id: column of the row's id.
        question: column of the question.
        choices: a column that holds a list (or a list written as a string), or a list of columns, one a choice.
        answer: column of the right answer.
        image: column of the image, or of a list of images of which one is there.
        answer_is: "letter" ("B" or "(B)"), "text" (the choice itself) or "index" (from 0).
        category: column to stratify the sample by, or None.
        category_pattern: regular expression whose first group is the category within that column.
        context: column of a text that is shown before the question, or None.
        keep: column -> the value, or a list of values, that a kept row has there; null means empty.
    """

    id: str
    question: str
    choices: str | Sequence[str]
    answer: str
    image: str
    answer_is: str = "letter"
    category: str | None = None
    category_pattern: str | None = None
    context: str | None = None
    keep: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], task: str) -> FieldsAdapter:
        """Reads the `template_fields` of a task's YAML.

        Raises:
            TemplateError: unknown or missing keys, or a value that is not allowed.
        """
        where, known = f"task {task}, template_fields", [f.name for f in dataclass_fields(cls)]
        if not isinstance(mapping, Mapping):
            raise TemplateError(f"{where}: must map {', '.join(known)} to columns, got {mapping!r}")
        faults = [f"{where}: unknown key {key!r}; known are {', '.join(known)}" for key in mapping if key not in known]
        required = ("id", "question", "choices", "answer", "image")
        faults += [
            f"{where}: {key} is missing; name the column that holds it" for key in required if key not in mapping
        ]
        if mapping.get("answer_is", "letter") not in _ANSWER_KINDS:
            faults.append(f"{where}: answer_is is {mapping['answer_is']!r}, must be one of {', '.join(_ANSWER_KINDS)}")
        if faults:
            raise TemplateError("\n".join(faults))
        return cls(**mapping)

    @property
    def text_columns(self) -> list[str]:
        """Columns whose values are read; the image is only tested for being there."""
        choices = [self.choices] if isinstance(self.choices, str) else list(self.choices)
        named = [self.id, self.question, *choices, self.answer, self.category, self.context, *self.keep]
        return list(dict.fromkeys(column for column in named if column and column != self.image))

    def keeps(self, row: Mapping[str, Any]) -> bool:
        """Whether the keep rule takes the row."""
        for column, allowed in self.keep.items():
            if row[column] not in (allowed if isinstance(allowed, list) else [allowed]):
                return False
        return True

    def item(self, row: Mapping[str, Any], number: int, task: str) -> Item:
        """Turns row `number` into an item.

        Raises:
            TemplateError: the row cannot be asked as it stands; the message names the task and the row's id.
        """
        where = f"task {task}, row {number}, {self.id} {row[self.id]!r}"
        choices, answer_columns = self._choices(row, where)
        if len(choices) < 2 or len(choices) > len(LETTERS):
            raise TemplateError(f"{where}: {len(choices)} choices {choices}; 2 to {len(LETTERS)} are allowed")
        if not all(choices):
            raise TemplateError(f"{where}: choice {LETTERS[choices.index('')]} is empty")
        question = clean_text(str(row[self.question]))
        if not question:
            raise TemplateError(f"{where}: the question in column {self.question!r} is empty")
        context = clean_text(str(row[self.context])) if self.context and not _is_missing(row[self.context]) else ""
        category = self._category(row, where)
        return Item(
            # Ids begin anew in each split.
            id=f"{category}/{row[self.id]}" if self.category == SPLIT_COLUMN else str(row[self.id]),
            category=category,
            question=f"{context}\n{question}" if context else question,
            choices=tuple(choices),
            answer=self._answer(row[self.answer], choices, answer_columns, where),
            row=number,
        )

    def _choices(self, row: Mapping[str, Any], where: str) -> tuple[list[str], list[int]]:
        """The contents, and for each the position in the dataset's own lettering."""
        if isinstance(self.choices, str):
            value = row[self.choices]
            if isinstance(value, str):
                value = _parse_list(value)
            if not isinstance(value, (list, tuple)) or None in value:
                raise TemplateError(f"{where}: column {self.choices!r} holds {row[self.choices]!r}, no list of choices")
            texts = [clean_text(str(choice)) for choice in value]
            return texts, list(range(len(texts)))
        present = [(i, row[column]) for i, column in enumerate(self.choices) if not _is_missing(row[column])]
        return [clean_text(str(value)) for _, value in present], [i for i, _ in present]

    def _answer(self, value: Any, choices: Sequence[str], positions: Sequence[int], where: str) -> int:
        text = str(value).strip()
        if self.answer_is == "text":
            same = [i for i, choice in enumerate(choices) if choice == clean_text(text)]
            if len(same) == 1:
                return same[0]
        elif self.answer_is == "letter":
            letter = re.fullmatch(r"\(?([A-Za-z])\)?\.?", text)
            if letter and (position := LETTERS.index(letter[1].upper())) in positions:
                return positions.index(position)
        elif text.isdigit() and int(text) in positions:
            return positions.index(int(text))
        raise TemplateError(
            f"{where}: the answer {value!r} (column {self.answer!r}, answer_is {self.answer_is}) is not exactly one of "
            f"the choices {list(choices)}"
        )

    def _category(self, row: Mapping[str, Any], where: str) -> str:
        if self.category is None:
            return ""
        text = str(row[self.category])
        if self.category_pattern is None:
            return text
        match = re.search(self.category_pattern, text)
        if match is None:
            raise TemplateError(f"{where}: {self.category} {text!r} does not match {self.category_pattern!r}")
        return match[1]


def _parse_list(text: str) -> Any:
    """A list written as JSON or in Python; None where the text is neither."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    # Python joins neighbouring strings: NumPy's "['a' 'b']" would read as one choice.
    if re.search(r"'\s+'|\"\s+\"", text):
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None


def _is_missing(value: Any) -> bool:
    """MMBench writes missing choices and hints as the string "nan"."""
    return value is None or value != value or str(value).strip().lower() in _MISSING


def clean_text(text: str) -> str:
    """Takes image marks out of a text; one that a sentence needs ("shown in <image 1>") becomes "the image"."""

    def replace(match: re.Match[str]) -> str:
        before, after = text[: match.start()], text[match.end() :]
        gap = "" if not after or after[0] in ".,;:?!)\n" else " "
        opens_line = not before or before.endswith("\n")
        lead = "" if opens_line or before.endswith("(") else " "
        if opens_line or before[-1] in ".:;!?":
            is_subject = after[:1].islower() and not before.endswith((":", ";"))
            return lead + "The image" + gap if is_subject else lead and gap
        return gap if _NAMES_IMAGE.search(before) else lead + "the image" + gap

    return _IMAGE_MARK.sub(replace, text).strip()


def unique_ids(items: Iterable[Item], task: str, image_hash: Callable[[int], str]) -> list[Item]:
    """Makes repeated ids unique by a hash of what is asked, so that they do not depend on the rows' order.

    Args:
        image_hash: of the image in a row; called for repeated ids only.

    Raises:
        TemplateError: two rows have the same id and ask the same about the same image.
    """
    items = list(items)
    counts = Counter(item.id for item in items)
    result, seen = [], set()
    for item in items:
        if counts[item.id] > 1:
            content = json.dumps([item.category, item.question, item.choices, item.answer, image_hash(item.row)])
            item = replace(item, id=f"{item.id}#{hashlib.sha256(content.encode()).hexdigest()[:8]}")
        if item.id in seen:
            raise TemplateError(f"task {task}, row {item.row}: id {item.id!r} and all it asks stand in the data twice")
        seen.add(item.id)
        result.append(item)
    return result
