"""From lmms-eval's requests to groups of prompts on the same images.

Templates of an item are neighbours among the requests, so a group is a stretch of requests whose images and generation
settings are equal. Each image is decoded and preprocessed once a group; the texts go through the processor one by one,
exactly as they would alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import datasets
import torch
from lmms_eval.api.instance import Instance
from lmms_eval.protocol import ChatMessages
from PIL import Image

from .shared_prefix import PER_TOKEN, Prompt

# Keeps memory bounded where thousands of neighbours show no image at all.
_LARGEST_GROUP = 512


@dataclass
class Group:
    """Neighbouring requests that show the same images.

    Attributes:
        task: lmms-eval's name of it.
        generation: lmms-eval's generation_kwargs.
        prompts: one a request, on the model's device.
    """

    task: str
    generation: dict[str, Any]
    prompts: list[Prompt]


@dataclass
class _Conversation:
    task: str
    generation: dict[str, Any]
    messages: list[dict]
    images: list[Image.Image]

    def shares_with(self, other: _Conversation) -> bool:
        return (
            self.task == other.task
            and self.generation == other.generation
            and len(self.images) == len(other.images)
            and all(map(_same, self.images, other.images))
        )


def _same(one: Image.Image, other: Image.Image) -> bool:
    return one is other or (one.size == other.size and one.mode == other.mode and one.tobytes() == other.tobytes())


class PromptReader:
    """Turns requests into groups of prompts.

    Args:
        processor: of the checkpoint.
        chat_template: replaces the checkpoint's own, or None.
        documents: gives lmms-eval's dataset of a task and split.
        device: where the prompts are put.
        dtype: of the images' tensors.
    """

    def __init__(
        self,
        processor: Any,
        chat_template: str | None,
        documents: Callable[[str, str], Any],
        device: torch.device,
        dtype: torch.dtype,
    ):
        self._processor, self._chat_template, self._documents = processor, chat_template, documents
        self._device, self._dtype = device, dtype
        self._splits: dict[tuple[str, str], Any] = {}

    def groups(self, requests: Sequence[Instance]) -> Iterator[Group]:
        """In the order of the requests; every request is in one group."""
        conversations = map(self._conversation, requests)
        for first, *others in _stretches(conversations):
            members = [first, *others]
            with preprocessed_once(getattr(self._processor, "image_processor", None)):
                moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
                prompts = [self._prompt(member.messages, first.images, moved) for member in members]
            yield Group(first.task, first.generation, prompts)

    def _conversation(self, request: Instance) -> _Conversation:
        _, doc_to_messages, generation, doc_id, task, split = request.args
        if (task, split) not in self._splits:
            self._splits[task, split] = _DecodedOnce.of(self._documents(task, split))
        chat = ChatMessages(messages=doc_to_messages(self._splits[task, split][doc_id]))
        images, videos, audios = chat.extract_media()
        if videos or audios:
            raise SystemExit(f"tm_hf: {task} shows {'videos' if videos else 'audio'}; it is for images and text")
        return _Conversation(task, generation, chat.to_hf_messages(), images)

    def _prompt(
        self, messages: list[dict], images: list, moved: dict[int, tuple[torch.Tensor, torch.Tensor]]
    ) -> Prompt:
        """
        Args:
            moved: tensors that are on the device already, by identity, so that an image travels there once.
        """
        template = {"chat_template": self._chat_template} if self._chat_template else {}
        text = self._processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **template)
        begin = self._processor.tokenizer.bos_token
        written = begin is not None and text.startswith(begin)  # the template did; a second one would be wrong
        inputs = self._processor(
            text=[text],
            images=[images] if images else None,
            return_tensors="pt",
            **({"add_special_tokens": False} if written else {}),
        )
        return {name: self._moved(name, value, moved) for name, value in inputs.items()}

    def _moved(self, name: str, value: Any, moved: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._moved(name, element, moved) for element in value]
        if not torch.is_tensor(value):
            return value
        dtype = self._dtype if value.is_floating_point() else value.dtype
        if name in PER_TOKEN:
            return value.to(self._device, dtype)
        if id(value) not in moved:
            moved[id(value)] = value, value.to(self._device, dtype)
        return moved[id(value)][1]


def _stretches(conversations: Iterator[_Conversation]) -> Iterator[list[_Conversation]]:
    stretch: list[_Conversation] = []
    for conversation in conversations:
        if stretch and (len(stretch) == _LARGEST_GROUP or not stretch[0].shares_with(conversation)):
            yield stretch
            stretch = []
        stretch.append(conversation)
    if stretch:
        yield stretch


class _DecodedOnce:
    """A dataset whose stored images are decoded anew only when they differ from the last document's."""

    def __init__(self, dataset: datasets.Dataset, columns: Sequence[str]):
        for column in columns:
            dataset = dataset.cast_column(column, datasets.Image(decode=False))
        self._dataset, self._columns = dataset, columns
        self._last: dict[str, tuple[Mapping, Any]] = {}

    @classmethod
    def of(cls, dataset: Any) -> Any:
        features = getattr(dataset, "features", None) or {}
        columns = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
        return cls(dataset, columns) if columns and isinstance(dataset, datasets.Dataset) else dataset

    def __getitem__(self, number: int) -> dict:
        document = self._dataset[number]
        for column in self._columns:
            stored = document[column]
            if stored is not None:
                if column not in self._last or self._last[column][0] != stored:
                    self._last[column] = stored, datasets.Image().decode_example(stored)
                document[column] = self._last[column][1]
        return document


@contextmanager
def preprocessed_once(image_processor: Any) -> Iterator[None]:
    """Within, an image object is preprocessed once for each set of options, whatever text it comes with."""
    if image_processor is None:
        yield
        return
    compute, known = image_processor.preprocess, {}

    def remember(images: Any, *args: Any, **options: Any) -> Any:
        objects = list(_flat(images))
        key = (*map(id, objects), repr(args), repr(sorted(options.items())))
        if key not in known:
            known[key] = compute(images, *args, **options), objects  # held, so that no id is used twice
        features = known[key][0]
        return type(features)(dict(features))  # processors take entries out of what they get

    image_processor.preprocess = remember
    try:
        yield
    finally:
        del image_processor.preprocess


def _flat(images: Any) -> Iterator[Any]:
    if isinstance(images, (list, tuple)):
        yield from itertools.chain.from_iterable(map(_flat, images))
    else:
        yield images
