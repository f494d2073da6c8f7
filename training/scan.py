"""Finding the records of a file: LLaVA JSON (one array) or JSON Lines.

A file is read a stretch at a time and each record is known by its bytes, so that memory does not grow with the file and
whoever changes a record can leave every other byte alone.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, NoReturn

from lmms_eval_templates.sets import TemplateError

SPACE = re.compile(r"[ \t\n\r]*")
_STRETCH = 4 << 20
_LONGEST_RECORD = 64 << 20  # a record beyond it lacks a quote; real ones have a few thousand bytes
_BEFORE_OBJECT = re.compile(r",[ \t\n\r]*(?=\{)")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")


class Element(NamedTuple):
    """One record of a file.

    Attributes:
        start: its first byte in the file.
        end: the byte after its last.
        raw: its text as it stands in the file.
        value: what the text says; None where there is a fault.
        fault: why it cannot be read, or None.
        repair: what the file needs in its place if it is left out.
    """

    start: int
    end: int
    raw: str
    value: Any
    fault: str | None = None
    repair: str = ""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


DECODER = json.JSONDecoder(parse_constant=_no_constant)


def byte_length(text: str) -> int:
    """Bytes that `text` takes in the file it was read from."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


class _Window:
    """The part of a file that is in memory. `position` is the next character there, `offset` its byte in the file."""

    def __init__(self, file: BinaryIO):
        self.file, self.text, self.position, self.offset, self.ended = file, "", 0, 0, False
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def more(self) -> bool:
        """Reads on, and at least doubles what is left; False where the file has ended."""
        left = self.text[self.position :]
        if len(left) > _LONGEST_RECORD:
            raise TemplateError(
                f"byte {self.offset:,}: no end of this record within {_LONGEST_RECORD >> 20} MB; is a quote missing?"
            )
        if not self.ended:
            data = self.file.read(max(_STRETCH, len(left)))
            new = self._decoder.decode(data, final=not data)
            self.ended = not data and not new
            if not self.ended:  # else positions in the text must stay valid
                self.text, self.position = left + new, 0
        return not self.ended

    def advance(self, position: int) -> None:
        if self.text.isascii():
            self.offset += position - self.position
        else:
            self.offset += byte_length(self.text[self.position : position])
        self.position = position

    def peek(self) -> str:
        """The next character that is no white space, "" at the end of the file."""
        while True:
            if self.text[self.position : self.position + 1] in " \t\n\r":  # as "" is
                self.advance(SPACE.match(self.text, self.position).end())  # type: ignore[union-attr]
            if self.position < len(self.text):
                return self.text[self.position]
            if not self.more():
                return ""

    def take(self, end: int, value: Any, fault: str | None = None) -> Element:
        """The element from here to `end`, and moves behind it."""
        raw, start = self.text[self.position : end], self.offset
        self.advance(end)
        if fault is None and not raw.isascii() and (wrong := _NOT_UTF8.search(raw)):
            fault = f"broken JSON at byte {start + byte_length(raw[: wrong.start()]):,}: not UTF-8"
        return Element(start, self.offset, raw, value if fault is None else None, fault)


def scan(file: BinaryIO) -> Iterator[Element]:
    """The records of a file opened in binary mode, in order.

    A record with broken JSON reaches to the next record that can be read, or to the end of its line in JSON Lines.

    Raises:
        TemplateError: the file is neither an array nor JSON Lines.
    """
    window = _Window(file)
    window.more()
    if window.text.startswith("\ufeff"):
        window.advance(1)
    first = window.peek()
    if first == "[":
        window.advance(window.position + 1)
        yield from _scan_array(window)
    elif first == "{":
        yield from _scan_lines(window)
    else:
        found = f"begins with {first!r}" if first else "is empty"
        raise TemplateError(f"the file {found}; allowed is a JSON array of records, or JSON Lines with a record a line")


def _scan_array(window: _Window) -> Iterator[Element]:
    after = window.peek()
    while after != "]":
        if after == "":
            yield Element(
                window.offset, window.offset, "", None, _broken(window.offset, "the array is not closed"), "]"
            )
            return
        yield _array_element(window)
        after = window.peek()
        if after not in (",", "]", ""):
            yield _broken_element(window, _broken(window.offset, "Expecting ',' delimiter"))
            after = window.peek()
        if after == ",":
            window.advance(window.position + 1)
    bracket = window.offset
    window.advance(window.position + 1)
    if window.peek():
        fault = _broken(window.offset, "text after the end of the array")
        while window.peek():
            window.advance(len(window.text))
        yield Element(bracket, window.offset, "", None, fault, "]")


def _array_element(window: _Window) -> Element:
    window.peek()
    before: tuple[str, int] | None = None
    while True:
        try:
            value, end = DECODER.raw_decode(window.text, window.position)
        except (ValueError, RecursionError) as error:
            # Of a record that goes on in the next stretch, the fault is at the end of this one, or an open string.
            place = getattr(error, "pos", 0) - window.position
            reason, fault = str(getattr(error, "msg", error)), _describe(error, window)
            again = before == (reason, place) and not reason.startswith("Unterminated string")
            before = (reason, place)
            if again or not window.more():
                return _broken_element(window, fault)
        else:
            if end < len(window.text) or not window.more():
                return window.take(end, value)


def _broken_element(window: _Window, fault: str) -> Element:
    """What stands before the next record, or else before the end of the array.

    A missing quote turns text and structure around from there on, so only a whole record shows that one begins.
    """
    while True:
        for comma in _BEFORE_OBJECT.finditer(window.text, window.position):
            try:
                value, _ = DECODER.raw_decode(window.text, comma.end())
            except (ValueError, RecursionError):
                continue
            if "conversations" in value or "messages" in value:
                return window.take(comma.start(), None, fault)
        if not window.more():
            rest = window.text[window.position :].rstrip(" \t\r\n")
            return window.take(window.position + len(rest.removesuffix("]")), None, fault)


def _scan_lines(window: _Window) -> Iterator[Element]:
    while window.peek():
        while (end := window.text.find("\n", window.position)) < 0 and window.more():
            pass
        end = len(window.text) if end < 0 else end
        end = window.position + len(window.text[window.position : end].rstrip(" \t\r"))
        try:
            value, stop = DECODER.raw_decode(window.text, window.position)
            if stop != end:
                raise json.JSONDecodeError("Extra data", window.text, stop)
        except (ValueError, RecursionError) as error:
            yield window.take(end, None, _describe(error, window))
        else:
            yield window.take(end, value)


def _broken(byte: int, reason: str) -> str:
    return f"broken JSON at byte {byte:,}: {reason}"


def _describe(error: Exception, window: _Window) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return _broken(window.offset, str(error))
    return _broken(window.offset + byte_length(window.text[window.position : error.pos]), error.msg)
