"""What an augmentation is asked for, what it found in the file, and which template goes where."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lmms_eval_templates.sets import TemplateError
from lmms_eval_templates.space import CHOICE, QUESTION

# Records with an image and records without draw from different templates.
POOLS = ("image", "image_free")
REMOVE, REMOVE_AND_CLOSE = 2, 3


@dataclass(frozen=True)
class Options:
    """What decides the output besides the input.

    Attributes:
        num_templates: distinct question templates, or None to follow `ratio`.
        ratio: templates to records, or None.
        seed: of the drawing and the dealing of templates.
        turns: "first", the first question of each record as in the paper, or "all" questions.
        text_only: "keep" records without an image as they are, or "image-free" templates for them.
        all_instructions: whether captioning, region and bounding-box instructions get templates too.
        on_error: "stop" at a bad record, or "skip" it.
    """

    num_templates: int | None = None
    ratio: float | None = None
    seed: int = 0
    turns: str = "first"
    text_only: str = "keep"
    all_instructions: bool = False
    on_error: str = "stop"

    def __post_init__(self) -> None:
        if (self.num_templates is None) == (self.ratio is None):
            raise TemplateError(
                "give either --num-templates (e.g. 5000) or --ratio (templates to records, e.g. 7.5e-3)"
            )
        if self.num_templates is not None and not 1 <= self.num_templates <= len(QUESTION):
            raise TemplateError(f"--num-templates {self.num_templates}: must be 1 to {len(QUESTION):,}")
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise TemplateError(f"--ratio {self.ratio}: must be above 0 and at most 1")


@dataclass
class Plan:
    """What the first pass found.

    Attributes:
        starts: first byte of each edit, in file order.
        lengths: bytes it replaces.
        actions: the number of a pool whose next template goes there, `REMOVE` or `REMOVE_AND_CLOSE`.
        records: how many are kept.
        changed_records: how many of them get a template.
        kinds: records of each kind.
        bad: those that cannot be used: number, id, byte and reason.
        digest: SHA-256 of the input.
    """

    starts: array = field(default_factory=lambda: array("q"))
    lengths: array = field(default_factory=lambda: array("q"))
    actions: array = field(default_factory=lambda: array("b"))
    records: int = 0
    changed_records: int = 0
    kinds: Counter = field(default_factory=Counter)
    bad: list[dict[str, Any]] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)

    def edit(self, spans: list[tuple[int, int]], action: int) -> None:
        self.starts.extend([start for start, _ in spans])
        self.lengths.extend([end - start for start, end in spans])
        self.actions.extend([action] * len(spans))


@dataclass(frozen=True)
class Pool:
    """Templates for one kind of record, and which of them each edit gets, shape [edits]."""

    question: np.ndarray  # indices into QUESTION
    choice: np.ndarray  # indices into CHOICE, one beside each question template
    dealt: np.ndarray

    @property
    def texts(self) -> list[tuple[str, str]]:
        return list(zip(QUESTION.take(self.question), CHOICE.take(self.choice), strict=True))
