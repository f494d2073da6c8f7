"""Training records read from their file when they are needed, and checked before training starts."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageFile
from tqdm import tqdm

from lmms_eval_templates.sets import TemplateError

from .records import IMAGE_MARK, Conversation, RecordError, image_names
from .scan import scan

_SHOWN = 20


class NothingToLearnError(RecordError):
    """A sound record without an answer; it is left out."""


def to_messages(record: Any) -> list[dict[str, Any]]:
    """A record in the form that chat templates take, each `<image>` of a human turn as a part of its own.

    Assistant turns before the first human one are left out, as LLaVA does; images without a mark come first.

    Returns:
        `[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Who?"}]}, ...]`

    Raises:
        RecordError: the record cannot be understood, has more marks than images, or no turn to learn from.
    """
    images = image_names(record) if isinstance(record, dict) and Conversation(record) else []
    messages: list[dict[str, Any]] = []
    for turn in Conversation(record).turns():
        role = "assistant" if turn.role == "function_call" else turn.role
        if role == "assistant" and not any(message["role"] == "user" for message in messages):
            continue
        parts: list[dict[str, str]] = []
        for number, text in enumerate(turn.text.split(IMAGE_MARK) if images and role == "user" else [turn.text]):
            if number:
                parts.append({"type": "image"})
            if text := text.strip("\n") if images and role == "user" else text:
                parts.append({"type": "text", "text": text})
        messages.append({"role": role, "content": parts})
    if not any(message["role"] == "assistant" for message in messages):
        raise NothingToLearnError("no assistant turn after a human one, so nothing to learn")
    marks = sum(part["type"] == "image" for message in messages for part in message["content"])
    if marks > len(images):
        raise RecordError(f"{marks} {IMAGE_MARK} but {len(images)} images")
    first = next(message for message in messages if message["role"] == "user")
    first["content"][:0] = [{"type": "image"}] * (len(images) - marks)
    return messages


def image_fault(path: str) -> str | None:
    """Why an image file cannot be read, or None; as little of it is decoded as shows that."""
    tolerant = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = False  # other packages, lmms-eval among them, set it for the whole process
    try:
        with Image.open(path) as image:
            # Pillow's `verify` reads a PNG to its end, and of other kinds the header alone.
            if image.format == "PNG" or (image.format == "JPEG" and _tail(path) == b"\xff\xd9"):
                image.verify()
            else:
                image.load()
    except Exception as error:  # Pillow raises many kinds
        return str(error) or type(error).__name__
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = tolerant
    return None


def _tail(path: str) -> bytes:
    with open(path, "rb") as file:
        file.seek(-2, os.SEEK_END)
        return file.read()


def _head(messages: Sequence[dict[str, Any]]) -> tuple[int, int, int]:
    """UTF-8 bytes and messages before the first answer or the last image, whichever is later, and number of images."""
    images = [sum(part["type"] == "image" for part in message["content"]) for message in messages]
    answer = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
    end = max([answer, *(i + 1 for i, count in enumerate(images) if count)])
    texts = (part.get("text", "") for message in messages[:end] for part in message["content"])
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts), end, sum(images)


class Records:
    """The records of a file whose images can be read, as a map-style dataset of `{"messages", "images", "name"}`.

    Only the place of each record is kept in memory.

    Args:
        path: the file.
        image_folder: what image names are relative to.
        missing_images: "error", or "skip" the records whose image file is missing or cannot be read.
        report: file for the names of these images.
        progress: whether to show a bar.

    Raises:
        TemplateError: a record cannot be used, image files are missing or cannot be read, or nothing is left.
    """

    def __init__(self, path: str, image_folder: str, missing_images: str, report: Path, progress: bool):
        self.path, self.image_folder = path, image_folder
        self._starts, self._lengths, self._heads = array("q"), array("q"), array("q")
        self.left_out: list[str] = []
        missing: dict[str, str] = {}  # and what is wrong with each
        folders: dict[str, set[str]] = {}
        if not os.path.isfile(path):
            raise TemplateError(f"data: no file {path}")
        with open(path, "rb") as file, tqdm(unit=" records", desc="checking the data", disable=not progress) as bar:
            for number, element in enumerate(scan(file)):
                bar.update()
                try:
                    if element.fault:
                        raise RecordError(element.fault)
                    messages = to_messages(element.value)
                except NothingToLearnError as error:
                    self.left_out.append(f"record {number}: {error}")
                    continue
                except RecordError as error:
                    raise TemplateError(f"{path}, record {number} at byte {element.start:,}: {error}") from error
                absent = {}
                for name in image_names(element.value):
                    fault = self._image_fault(name, folders)
                    if fault is not None:
                        absent[name] = name + fault
                if absent:
                    missing.update(absent)
                    self.left_out.append(f"record {number}: no image {', '.join(absent.values())}")
                    continue
                self._starts.append(element.start)
                self._lengths.append(element.end - element.start)
                self._heads.extend(_head(messages))
        if missing and missing_images == "error":
            shown = "".join(f"\n  {fault}" for fault in list(missing.values())[:_SHOWN])
            report.write_text("".join(f"{name}\n" for name in missing), "utf-8")
            raise TemplateError(
                f"{len(missing):,} image files are missing or cannot be read in {image_folder}; "
                f"the list is in {report}:{shown}\n"
                "mend that, or train without their records: --missing-images skip"
            )
        self.leave_out([], "")

    def heads(self) -> Iterator[tuple[int, int, int]]:
        """Of each record UTF-8 bytes and messages before its first answer or last image, and its number of images."""
        parts = iter(self._heads)
        return zip(parts, parts, parts, strict=True)

    def leave_out(self, numbers: Sequence[int], reason: str) -> None:
        """Goes on without some records.

        Raises:
            TemplateError: no other is left.
        """
        self.left_out += [f"{self[number]['name']}: {reason}" for number in numbers]
        for number in reversed(numbers):
            del self._starts[number], self._lengths[number], self._heads[3 * number : 3 * number + 3]
        if not self._starts:
            raise TemplateError(f"{self.path}: no record left to train on{': ' if reason else ''}{reason}")

    def _image_fault(self, name: str, folders: dict[str, set[str]]) -> str | None:
        """What is wrong with an image, "" where it is missing."""
        folder, file = os.path.split(os.path.join(self.image_folder, name))
        if folder not in folders:
            folders[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        if file not in folders[folder]:
            return ""
        fault = image_fault(os.path.join(folder, file))
        return fault and f" (cannot be read: {fault})"

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> dict[str, Any]:
        with open(self.path, "rb") as file:
            file.seek(self._starts[number])
            record = json.loads(file.read(self._lengths[number]))
        images = []
        for name in image_names(record):
            try:
                with Image.open(os.path.join(self.image_folder, name)) as image:
                    images.append(image.convert("RGB"))
            except Exception as error:  # Pillow raises many kinds
                raise TemplateError(f"cannot read image {name} in {self.image_folder}: {error}") from error
        name = f"record {record.get('id', '')!r} at byte {self._starts[number]:,} of {self.path}"
        return {"messages": to_messages(record), "images": images, "name": name}
