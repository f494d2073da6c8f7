"""The template space: sentence-pattern trees whose strings are numbered 0..N-1.

A meta-template is a sequence of literals and slots; the weight of a tree node is the number of distinct strings below
it (paper, Algorithm 1). The integers 0..N-1 are laid out along the tree, so drawing one uniformly and descending by
the children's weights is the top-down weighted sampling of Algorithm 2, without a loop and without a global state.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
import yaml

from .rng import permutation, sample_without_replacement

if TYPE_CHECKING:
    import random

_SLOT = re.compile(r"<(\w+)>")


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class MetaTemplate:
    """A leaf of a sentence-pattern tree.

    Attributes:
        path: its place in the tree, e.g. `Declarative/Simple/Linking/the question is <as_follows><colon>{question}`.
        text: the meta-template as the bank writes it.
        pieces: for each literal and each slot in order, the strings that can stand there.
    """

    path: str
    text: str
    pieces: tuple[tuple[str, ...], ...]

    @property
    def weight(self) -> int:
        """Number of templates, all distinct, that the meta-template renders."""
        return math.prod(map(len, self.pieces))

    @property
    def mentions_image(self) -> bool:
        """Whether any of its templates speaks of an image or a picture."""
        return any(re.search("image|picture", option) for piece in self.pieces for option in piece)

    @cached_property
    def halves(self) -> tuple[list[str], list[str]]:
        """Every beginning and every end, so that template i is `heads[i // len(tails)] + tails[i % len(tails)]`."""
        # The first letter, which is made a capital, must lie in the head.
        first_filled = next(i for i, piece in enumerate(self.pieces) if all(piece))
        cuts = range(first_filled + 1, len(self.pieces) + 1)
        cut = min(cuts, key=lambda c: sum(math.prod(map(len, part)) for part in (self.pieces[:c], self.pieces[c:])))
        heads = [_capitalized("".join(parts)) for parts in itertools.product(*self.pieces[:cut])]
        return heads, ["".join(parts) for parts in itertools.product(*self.pieces[cut:])]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        pieces = [list(piece) for piece in self.pieces]
        for piece in pieces:  # only the first letter of a template differs from what the bank writes
            piece[:] = [option[:1].lower() + option[1:] for option in piece]
            if all(piece):
                break
        return re.compile("".join("(" + "|".join(map(re.escape, piece)) + ")" for piece in pieces))

    def index(self, text: str) -> int | None:
        """Number of `text` among the templates of this leaf, or None."""
        match = self._pattern.fullmatch(text[:1].lower() + text[1:])
        if match is None or text != _capitalized(text):
            return None
        index = 0
        for piece, option in zip(self.pieces, match.groups(), strict=True):
            index = index * len(piece) + next(i for i, o in enumerate(piece) if o.lower() == option.lower())
        return index


class _IndexedSpace:
    """What every numbered space of templates can do, given `__len__`, `take` and `_find`."""

    def __len__(self) -> int:
        raise NotImplementedError

    def take(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        """The templates with these numbers, in order. The fast way to render many."""
        raise NotImplementedError

    def _find(self, text: str) -> int | None:
        raise NotImplementedError

    @property
    def hash(self) -> str:
        """SHA-256 of everything that decides which template has which number."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> str:
        if not -len(self) <= index < len(self):
            raise IndexError(f"template {index} is outside the space of {len(self):,} templates")
        return self.take([index % len(self)])[0]

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), 65536):
            yield from self.take(range(start, min(start + 65536, len(self))))

    def index(self, text: str) -> int:
        """Number of a template, the inverse of `space[i]`.

        Raises:
            ValueError: the text is no template of this space.
        """
        found = self._find(text)
        if found is None:
            raise ValueError(f"not a template of this space: {text!r}")
        return found

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self._find(text) is not None

    def sample(self, n: int, seed: int) -> list[str]:
        """`n` distinct templates, uniform over the space and in random order (paper, Algorithm 2)."""
        return self.take(self.sample_indices(n, seed))

    def sample_indices(self, n: int, seed: int) -> np.ndarray:
        """The numbers of the templates that `sample` draws, shape [n], int64.

        Raises:
            ValueError: fewer than `n` templates exist.
        """
        if not 0 <= n <= len(self):
            raise ValueError(f"cannot draw {n:,} distinct templates: the space has {len(self):,}, allowed is 0 to that")
        return sample_without_replacement(len(self), n, seed)


class TemplateSpace(_IndexedSpace):
    """All templates of a sentence-pattern tree, numbered in tree order.

    Example:
        >>> QUESTION[0]
        'The question about the image is as follows: {question}'
    """

    def __init__(self, leaves: Sequence[MetaTemplate]):
        if not leaves:
            raise ValueError("a template space needs at least one meta-template")
        self.leaves = tuple(leaves)
        self._starts = [0, *itertools.accumulate(leaf.weight for leaf in self.leaves)]

    @classmethod
    def from_bank(cls, name: str) -> TemplateSpace:
        """Reads a tree from the package's bank, e.g. "question"."""
        bank = yaml.safe_load(resources.files(__package__).joinpath(f"bank/{name}.yaml").read_text("utf-8"))
        slots = bank["slots"]

        def leaves(node: dict | list, path: str) -> Iterator[MetaTemplate]:
            if isinstance(node, dict):
                for key, child in node.items():
                    yield from leaves(child, f"{path}{key}/")
            else:
                for text in node:
                    parts = _SLOT.split(text)  # literal, slot name, literal, ...
                    pieces = [tuple(slots[p]) if i % 2 else (p,) for i, p in enumerate(parts) if i % 2 or p]
                    yield MetaTemplate(path + text, text, tuple(pieces))

        return cls(list(leaves(bank["tree"], "")))

    def __len__(self) -> int:
        return self._starts[-1]

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(json.dumps([leaf.pieces for leaf in self.leaves]).encode()).hexdigest()

    @cached_property
    def _tables(self) -> tuple[list[list[str]], list[list[str]]]:
        heads, tails = zip(*(leaf.halves for leaf in self.leaves), strict=True)
        return list(heads), list(tails)

    def take(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        heads, tails = self._tables
        numbers = np.asarray(indices, dtype=np.int64)
        leaf = np.searchsorted(self._starts, numbers, side="right") - 1
        head, tail = np.divmod(numbers - np.take(self._starts, leaf), np.take([len(t) for t in tails], leaf))
        return [heads[k][h] + tails[k][t] for k, h, t in zip(leaf.tolist(), head.tolist(), tail.tolist(), strict=True)]

    def _find(self, text: str) -> int | None:
        for start, leaf in zip(self._starts, self.leaves, strict=False):
            index = leaf.index(text)
            if index is not None:
                return start + index
        return None

    def leaf_of(self, index: int) -> MetaTemplate:
        """The meta-template that renders template `index`."""
        return self.leaves[bisect_right(self._starts, index) - 1]

    def subtree(self, path: str) -> TemplateSpace:
        """The part of the tree below `path`, e.g. "Declarative/Simple", as a space of its own.

        Raises:
            ValueError: nothing lies below the path.
        """
        prefix = path.strip("/") + "/"
        leaves = [leaf for leaf in self.leaves if leaf.path.startswith(prefix)]
        if not leaves:
            known = sorted({leaf.path[: m.start()] for leaf in self.leaves for m in re.finditer("/", leaf.path)})
            raise ValueError(f"no node {path!r} in the tree; nodes are {', '.join(known)}")
        return TemplateSpace(leaves)

    def image_free(self) -> TemplateSpace:
        """The meta-templates that do not mention an image, for data without one."""
        return TemplateSpace([leaf for leaf in self.leaves if not leaf.mentions_image])

    def weights(self) -> dict[str, int]:
        """Weight of every node by path, parents before children, the root as "" (paper, Algorithm 1)."""
        weights = {"": len(self)}
        for leaf in self.leaves:
            parts = leaf.path.split("/", 3)
            for depth in range(1, len(parts) + 1):
                node = "/".join(parts[:depth])
                weights[node] = weights.get(node, 0) + leaf.weight
        return weights

    def walk(self, rng: random.Random) -> str:
        """One template by Algorithm 2 as the paper prints it: descend by the weights, then fill each slot.

        Every template is equally likely, as with `sample`; this form is for reading and for checking the other.
        """
        node, weights = "", self.weights()
        while True:
            children = [p for p in weights if p and (p.rsplit("/", 1)[0] if "/" in p else "") == node]
            if not children:
                break
            node = rng.choices(children, [weights[c] for c in children])[0]
        leaf = next(leaf for leaf in self.leaves if leaf.path == node)
        return _capitalized("".join(rng.choice(piece) for piece in leaf.pieces))


class JointSpace(_IndexedSpace):
    """Every question template followed, on a new line, by every choice template."""

    def __init__(self, question: TemplateSpace, choice: TemplateSpace):
        self.question, self.choice = question, choice

    def __len__(self) -> int:
        return len(self.question) * len(self.choice)

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(f"{self.question.hash} {self.choice.hash}".encode()).hexdigest()

    def take(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        question, choice = np.divmod(np.asarray(indices, dtype=np.int64), len(self.choice))
        pairs = zip(self.question.take(question), self.choice.take(choice), strict=True)
        return [q + "\n" + c for q, c in pairs]

    def _find(self, text: str) -> int | None:
        # Question templates end with {question}, so the split is unique.
        head, mark, tail = text.partition("{question}\n")
        question, choice = self.question._find(head + "{question}"), self.choice._find(tail)
        return None if not mark or question is None or choice is None else question * len(self.choice) + choice

    def walk(self, rng: random.Random) -> str:
        """One template by Algorithm 2 in both trees."""
        return self.question.walk(rng) + "\n" + self.choice.walk(rng)


def assign_templates(num_records: int, templates: Sequence[str], seed: int) -> np.ndarray:
    """Which template each record gets: every template used, usage balanced to within one (paper section 4.3).

    Returns:
        Indices into `templates`, shape [num_records], int64.

    Raises:
        ValueError: there are fewer records than templates, so that some template would never be used.
    """
    if not templates:
        raise ValueError("no templates to assign")
    if num_records < len(templates):
        raise ValueError(f"{num_records:,} records cannot use {len(templates):,} templates; take that many or fewer")
    assignment = np.empty(num_records, dtype=np.int64)
    assignment[permutation(num_records, "assign", seed)] = np.arange(num_records) % len(templates)
    return assignment


QUESTION = TemplateSpace.from_bank("question")
CHOICE = TemplateSpace.from_bank("choice")
VQA = JointSpace(QUESTION, CHOICE)
