"""What a user can set from the environment, read and checked in one place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from .sets import PUBLISHED_SETS, TemplateError, TemplateSet, find_template_set

DEFAULT_EMBEDDER = "sentence-transformers/all-mpnet-base-v2"
_MATCHERS = ("robust", "strict")
_SUBSETS = ("sampled", "paper")


_NAMES = ("TM_ITEMS", "TM_SEED", "TM_TEMPLATES", "TM_EMBEDDER", "TM_MATCH", "TM_SUBSET")


def _misspelled(environment: Mapping[str, str]) -> list[str]:
    """Names that are nearly ours: a setting that is silently not applied makes a wrong number."""
    faults = []
    for name in environment:
        if name.startswith("TM_") and name not in _NAMES and (near := get_close_matches(name, _NAMES, 1, 0.8)):
            faults.append(f"{name} is no setting; did you mean {near[0]}?")
    return faults


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Attributes:
        items: TM_ITEMS, items a benchmark; 0 means all.
        seed: TM_SEED, of the item sample and of the permutation test.
        templates: TM_TEMPLATES, a set that replaces the task's own, or None.
        embedder: TM_EMBEDDER, a sentence-transformers model or folder, or "none".
        match: TM_MATCH, "robust" or "strict" (the paper code's exact strings).
        subset: TM_SUBSET, "sampled" or "paper" (the rows that the paper's authors published).
    """

    items: int = 100
    seed: int = 0
    templates: TemplateSet | None = None
    embedder: str = DEFAULT_EMBEDDER
    match: str = "robust"
    subset: str = "sampled"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Reads TM_* variables.

        Raises:
            TemplateError: values that are not allowed, all of them at once.
        """
        faults = _misspelled(environment)

        def number(name: str, default: int, what: str) -> int:
            text = environment.get(name, "").strip()
            if text and not (text.isascii() and text.isdigit()):
                faults.append(f"{name}={text!r}: must be a whole number of 0 or more ({what})")
                return default
            return int(text) if text else default

        def one_of(name: str, allowed: tuple[str, ...]) -> str:
            text = environment.get(name, "").strip() or allowed[0]
            if text not in allowed:
                faults.append(f"{name}={text!r}: must be {' or '.join(allowed)}")
            return text

        templates = None
        if named := environment.get("TM_TEMPLATES", "").strip():
            try:
                templates = find_template_set(named, Path())
            except TemplateError as error:
                faults.append(
                    f"TM_TEMPLATES={named!r}: must be {', '.join(PUBLISHED_SETS)} or a file of templates\n{error}"
                )
        settings = cls(
            items=number("TM_ITEMS", cls.items, "items a benchmark, 0 for all"),
            seed=number("TM_SEED", cls.seed, "seed of the sample"),
            templates=templates,
            embedder=environment.get("TM_EMBEDDER", "").strip() or DEFAULT_EMBEDDER,
            match=one_of("TM_MATCH", _MATCHERS),
            subset=one_of("TM_SUBSET", _SUBSETS),
        )
        if faults:
            raise TemplateError("\n".join(faults))
        return settings
