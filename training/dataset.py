"""Training records read from their file when they are needed, and checked before training starts."""

from __future__ import annotations

import json
import os
from array import array
from pathlib import Path
from typing import Any

from PIL import Image
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


class Records:
    """The records of a file that have their images, as a map-style dataset of `{"messages", "images", "name"}`.

    Only the place of each record is kept in memory.

    Args:
        path: the file.
        image_folder: what image names are relative to.
        missing_images: "error", or "skip" the records whose image file is missing.
        report: file for the names of missing images.
        progress: whether to show a bar.

    Raises:
        TemplateError: a record cannot be used, image files are missing, or nothing is left.
    """

    def __init__(self, path: str, image_folder: str, missing_images: str, report: Path, progress: bool):
        self.path, self.image_folder = path, image_folder
        self._starts, self._lengths = array("q"), array("q")
        self.left_out: list[str] = []
        missing: dict[str, None] = {}
        folders: dict[str, set[str]] = {}
        if not os.path.isfile(path):
            raise TemplateError(f"data: no file {path}")
        with open(path, "rb") as file, tqdm(unit=" records", desc="checking the data", disable=not progress) as bar:
            for number, element in enumerate(scan(file)):
                bar.update()
                try:
                    if element.fault:
                        raise RecordError(element.fault)
                    to_messages(element.value)
                except NothingToLearnError as error:
                    self.left_out.append(f"record {number}: {error}")
                    continue
                except RecordError as error:
                    raise TemplateError(f"{path}, record {number} at byte {element.start:,}: {error}") from error
                absent = [name for name in image_names(element.value) if not self._has(name, folders)]
                missing.update(dict.fromkeys(absent))
                if absent:
                    self.left_out.append(f"record {number}: no image {', '.join(absent)}")
                    continue
                self._starts.append(element.start)
                self._lengths.append(element.end - element.start)
        if missing and missing_images == "error":
            shown = "".join(f"\n  {name}" for name in list(missing)[:_SHOWN])
            report.write_text("".join(f"{name}\n" for name in missing), "utf-8")
            raise TemplateError(
                f"{len(missing):,} image files are missing in {image_folder}; the list is in {report}:{shown}\n"
                "add them, or train without their records: --missing-images skip"
            )
        if not self._starts:
            raise TemplateError(f"{path}: no record left to train on")

    def _has(self, name: str, folders: dict[str, set[str]]) -> bool:
        """One look a folder, instead of one an image, matters on network disks."""
        folder, file = os.path.split(os.path.join(self.image_folder, name))
        if folder not in folders:
            folders[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        return file in folders[folder]

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
            except OSError as error:
                raise TemplateError(f"cannot read image {name} in {self.image_folder}: {error}") from error
        name = f"record {record.get('id', '')!r} at byte {self._starts[number]:,} of {self.path}"
        return {"messages": to_messages(record), "images": images, "name": name}
