"""What a training record says: its turns, its images, and where in its text each of them stands.

LLaVA's form has `conversations` with `from` and `value`; that of TRL and LLaMA-Factory `messages` with `role` and
`content`, a text or a list of parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from lmms_eval_templates.sets import TemplateError

from .scan import DECODER, SPACE

IMAGE_MARK = "<image>"
# The look-behind comes last, because the search is faster where a pattern begins with plain text.
_KEYS = {key: re.compile(rf'"{key}"(?<!\\"{key}")[ \t\n\r]*:[ \t\n\r]*') for key in ("value", "content", "text")}
_ESCAPED_LETTERS = re.compile(r"\\u00[67]")  # a to z; a key can be spelled with them
_ROLES = {
    **{"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"},
    **{name: name for name in ("system", "tool", "observation", "function_call")},
}

Path = tuple[str | int, ...]  # keys and numbers that lead to a value in a record
Place = tuple[Path, str]  # of a text, and the text


class Turn(NamedTuple):
    """A message.

    Attributes:
        role: "user", "assistant", "system", "tool", "observation" or "function_call".
        text: what is said, parts of a content list joined by line breaks, each image as `<image>`.
        places: path in the record of each text part, with the part's text.
    """

    role: str
    text: str
    places: tuple[Place, ...]


class RecordError(TemplateError):
    """A record that cannot be used; the message says why."""


class Conversation:
    """The turns of a record, all of them checked.

    Attributes:
        key: where they stand in the record, "conversations" or "messages".
        plain: whether each is an object with `from` and `value`, both texts, as nearly all are.

    Raises:
        RecordError: the record is no object, has no conversation, or a turn of it cannot be understood.
    """

    def __init__(self, record: Any):
        if not isinstance(record, dict):
            raise RecordError(f"not an object but {json.dumps(record)[:60]}")
        key = _turns_key(record)
        if key is None:
            raise RecordError(f"no conversations: it has {', '.join(map(repr, record)) or 'no keys'}")
        self.key, self._raw = key, record[key]
        if not isinstance(self._raw, list) or not self._raw:
            raise RecordError(f"{key} is {json.dumps(self._raw)[:60]}, must be a list of turns")
        try:
            self.plain = {turn["from"] for turn in self._raw} <= _ROLES.keys()
            self.plain &= {turn["value"].__class__ for turn in self._raw} == {str}
        except (KeyError, TypeError):
            self.plain = False
        self._turns = None if self.plain else [_turn(turn, key, i) for i, turn in enumerate(self._raw)]

    def turns(self) -> Iterator[Turn]:
        """The turns in order."""
        if self._turns is not None:
            yield from self._turns
            return
        for number, turn in enumerate(self._raw):
            text = turn["value"]
            yield Turn(_ROLES[turn["from"]], text, (((self.key, number, "value"), text),))

    def user_places(self) -> list[tuple[Place, ...]]:
        """The places of each turn of the user, without the rest of the turn: that would take most of the time."""
        if self._turns is not None:
            return [turn.places for turn in self._turns if turn.role == "user"]
        return [
            (((self.key, number, "value"), turn["value"]),)
            for number, turn in enumerate(self._raw)
            if _ROLES[turn["from"]] == "user"
        ]

    def __len__(self) -> int:
        return len(self._raw)

    def paths(self, key: str) -> list[Path]:
        """Path of every text that stands under `key`, in order."""
        return [path for turn in self.turns() for path, _ in turn.places if path[-1] == key]


def _turns_key(record: dict) -> str | None:
    if "conversations" in record:
        return "conversations"
    return "messages" if "messages" in record else None


def _image_parts(record: dict) -> Iterator[dict]:
    """The images among the content parts of a record that is a `Conversation`."""
    for turn in record[_turns_key(record)]:
        content = turn.get("value" if "from" in turn else "content")
        for part in content if isinstance(content, list) else ():
            if part["type"] in ("image", "image_url"):
                yield part


def _turn(turn: Any, key: str, number: int) -> Turn:
    where = f"turn {number + 1}"
    if not isinstance(turn, dict):
        raise RecordError(f"{where} is {json.dumps(turn)[:60]}, must be an object")
    role_key, content_key = ("from", "value") if "from" in turn else ("role", "content")
    name = turn.get(role_key)
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise RecordError(f"{where} has the unknown role {json.dumps(name)}; known are {', '.join(_ROLES)}")
    content = turn.get(content_key)
    path = (key, number, content_key)
    if isinstance(content, str):
        return Turn(role, content, ((path, content),))
    if content is None and turn.get("tool_calls"):
        return Turn(role, "", ())
    if not isinstance(content, list):
        raise RecordError(f"{where}: {content_key} is {json.dumps(content)[:60]}, must be text or a list of parts")
    texts, places = [], []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            places.append(((*path, place, "text"), part["text"]))
            texts.append(part["text"])
        elif kind in ("image", "image_url"):
            texts.append(IMAGE_MARK)
        elif not isinstance(kind, str) or kind == "text":
            raise RecordError(
                f"{where}: part {place + 1} is {json.dumps(part)[:60]}, must have a type and, if that is text, a text"
            )
    return Turn(role, "\n".join(texts), tuple(places))


def image_names(record: dict) -> list[str]:
    """File names of a record's images in order, from `image`, `images` and the content parts."""
    names: list[Any] = []
    for key in ("image", "images"):
        value = record.get(key)
        names += value if isinstance(value, list) else [value]
    for part in _image_parts(record):
        value = part.get("image", part.get("path", part.get("url", part.get("image_url"))))
        names.append(value.get("url") if isinstance(value, dict) else value)
    return [name.get("path", "") if isinstance(name, dict) else str(name) for name in names if name]


def has_image(record: dict) -> bool:
    """Whether a record comes with an image, also one whose file is named elsewhere."""
    if record.get("image") or record.get("images"):
        return True
    return any(True for _ in _image_parts(record))


def find_strings(raw: str, places: Sequence[Place], conversation: Conversation) -> list[int]:
    """Where in a record's text some strings begin, with their quote.

    Args:
        raw: the record.
        places: some places of its turns.
        conversation: all its turns.

    Raises:
        RecordError: an object on the way has one of its keys twice.
    """
    # A quoted key before a colon cannot stand inside a string. So if there are as many as turns have such places, these
    # are they, in order; otherwise the record has that key elsewhere too, and is walked through.
    starts: dict[Path, int] = {}
    plain_keys = r"\u00" not in raw or not _ESCAPED_LETTERS.search(raw)
    for key in {str(path[-1]) for path, _ in places} if plain_keys else ():
        found = [match.end() for match in _KEYS[key].finditer(raw)]
        if conversation.plain and len(found) == len(conversation):
            return [found[int(path[1])] for path, _ in places]
        if len(found) == len(paths := conversation.paths(key)):
            starts.update(zip(paths, found, strict=True))
    return [starts[path] if path in starts else _walk(raw, path) for path, _ in places]


def _walk(raw: str, path: Path) -> int:
    start = 0
    for step in path:
        found = [at for name, at in _children(raw, start) if name == step]
        if len(found) != 1:
            raise RecordError(f"the key {step!r} stands {len(found)} times in one object")
        start = found[0]
    return start


def _children(raw: str, start: int) -> Iterator[tuple[str | int, int]]:
    """Key or number, and position of the value, of each member of the object or array at `start`."""

    def skip(position: int) -> int:
        return SPACE.match(raw, position).end()  # type: ignore[union-attr]

    is_object, position, number = raw[start] == "{", skip(start + 1), 0
    while raw[position] not in "]}":
        name: str | int = number
        if is_object:
            name, position = scanstring(raw, position + 1)
            position = skip(skip(position) + 1)
        yield name, position
        position = skip(DECODER.raw_decode(raw, position)[1])
        position = skip(position + 1) if raw[position] == "," else position
        number += 1
