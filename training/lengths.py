"""Finds the records that `max_length` would spoil, before training starts."""

from __future__ import annotations

from typing import Any

from PIL import Image
from tqdm import tqdm

from .collator import IGNORED, Collator
from .dataset import Records

# Tokens that a chat template and a processor may write around a message or an image.
_AROUND = 64


def leave_out_unanswered(records: Records, collator: Collator, progress: bool) -> None:
    """Leaves out the records whose answers all lie beyond `max_length`.

    A token has a byte or more, so only records with many bytes or images before the first answer are tokenized.

    Raises:
        TemplateError: the image tokens of a record do not fit into `max_length`, or no record is left.
    """
    most = _tokens_of_an_image(collator.processor)
    long = [
        number
        for number, (size, messages, images) in enumerate(records.heads())
        if size + _AROUND * (messages + images) + most * images > collator.max_length
    ]
    unanswered = []
    for number in tqdm(long, desc="checking long records", disable=not progress or not long):
        if (collator([records[number]])["labels"] == IGNORED).all():
            unanswered.append(number)
    records.leave_out(unanswered, f"no answer within max_length {collator.max_length}")


def _tokens_of_an_image(processor: Any) -> float:
    """Infinite where it depends on the image's size: then every record with an image is looked at."""
    counts = set()
    for size in ((64, 64), (2048, 512)):
        inputs = processor(text=[processor.image_token], images=[[Image.new("RGB", size)]], return_tensors="pt")
        counts.add(int((inputs["input_ids"] == processor.image_token_id).sum()))
    return counts.pop() if len(counts) == 1 else float("inf")
