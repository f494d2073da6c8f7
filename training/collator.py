"""From records to a batch whose labels are the assistant's words alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image

from lmms_eval_templates.sets import TemplateError

IGNORED = -100


def conversation_text(processor: Any, messages: Sequence[dict[str, Any]]) -> tuple[str, list[tuple[int, int]]]:
    """A conversation as the chat template writes it, and where in it the assistant's words stand.

    The assistant's words end with the end-of-text token, so that the model learns to stop: chat templates that close a
    turn themselves (`<|im_end|>`) are left alone, those that do not, LLaVA's among them, get it.

    Raises:
        TemplateError: the template writes earlier turns otherwise once later ones follow.
    """
    tokenizer = processor.tokenizer
    text, done, spans = "", "", []

    def written(end: int, prompt: bool) -> str:
        result = processor.apply_chat_template(list(messages[:end]), tokenize=False, add_generation_prompt=prompt)
        if not result.startswith(done):
            raise TemplateError(
                "this model's chat template rewrites earlier turns; its assistant turns cannot be found"
            )
        return result

    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        head = written(number, True)
        text, done = text + head[len(done) :], head
        turn = written(number + 1, False)
        answer = turn[len(head) :].rstrip()
        said = "".join(part.get("text", "") for part in message["content"]).strip()
        if not answer[answer.find(said) + len(said) :].endswith(tuple(tokenizer.all_special_tokens)):
            answer += tokenizer.eos_token
            after = ""
        else:
            after = turn[len(head) + len(answer) :]
        spans.append((len(text), len(text) + len(answer)))
        text, done = text + answer + after, turn
    return text + written(len(messages), False)[len(done) :], spans


class Collator:
    """Makes batches for any Hugging Face image-text-to-text processor with a chat template.

    Args:
        processor: of the model.
        max_length: tokens a record; longer text is cut at its end.
        image_in_every_batch: give a batch without images one that nothing attends to. ZeRO-3 gathers the weights of the
            vision tower on all ranks together, and dies when one rank's batch has an image and another's has none.
    """

    def __init__(self, processor: Any, max_length: int, image_in_every_batch: bool = False):
        if not getattr(processor, "image_token", None) or not getattr(processor, "tokenizer", None):
            raise TemplateError(f"{type(processor).__name__} names no image token; this model cannot be trained here")
        self.processor, self.max_length, self.image_in_every_batch = processor, max_length, image_in_every_batch
        processor.tokenizer.padding_side = "right"

    def __call__(self, records: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """A batch of `Records` items.

        Returns:
            What the processor returns, and `labels`, shape [records, tokens], -100 outside the assistant's words.

        Raises:
            TemplateError: the image tokens of a record do not fit into `max_length`.
        """
        texts, spans = map(list, zip(*(self._text(record) for record in records), strict=True))
        images = [record["images"] for record in records]
        padding_image = self.image_in_every_batch and not any(images)
        if padding_image:
            shown = texts[0] + self.processor.image_token
            batch = self._encode([shown, *texts[1:]], [[Image.new("RGB", (64, 64))], *images[1:]])
        else:
            batch = self._encode(texts, images if any(images) else None)
        batch["labels"] = torch.full_like(batch["input_ids"], IGNORED)
        plain = self._tokenize(texts)
        for row, (ids, offsets) in enumerate(zip(plain["input_ids"], plain["offset_mapping"], strict=True)):
            places = _places(ids, batch["input_ids"][row].tolist(), records[row]["name"])
            for place, token, (start, end) in zip(places, ids, offsets, strict=True):
                if any(start < stop and end > begin for begin, stop in spans[row]):
                    batch["labels"][row, place] = token
            if padding_image and row == 0:
                batch["attention_mask"][row, places[-1] + 1 :] = 0
        return batch if padding_image else self._cut(batch, records)

    def _text(self, record: dict[str, Any]) -> tuple[str, list[tuple[int, int]]]:
        token = self.processor.image_token
        messages = [
            {**m, "content": [self._harmless(part, token) for part in m["content"]]} for m in record["messages"]
        ]
        text, spans = conversation_text(self.processor, messages)
        if not record["images"]:
            offsets = self._tokenize([text])["offset_mapping"][0]
            if len(offsets) > self.max_length:
                text = text[: offsets[self.max_length - 1][1]]
        return text, spans

    @staticmethod
    def _harmless(part: dict[str, str], image_token: str) -> dict[str, str]:
        """Text that spells the image token would be taken for an image."""
        if part["type"] == "text" and image_token in part["text"]:
            return {**part, "text": part["text"].replace(image_token, " ".join(image_token))}
        return part

    def _tokenize(self, texts: Sequence[str]) -> dict[str, list]:
        return self.processor.tokenizer(list(texts), return_offsets_mapping=True, **self._special(texts))

    def _encode(self, texts: Sequence[str], images: list[list[Image.Image]] | None) -> dict[str, torch.Tensor]:
        return dict(
            self.processor(text=list(texts), images=images, padding=True, return_tensors="pt", **self._special(texts))
        )

    def _special(self, texts: Sequence[str]) -> dict[str, bool]:
        beginning = self.processor.tokenizer.bos_token
        return {"add_special_tokens": not (beginning and texts[0].startswith(beginning))}

    def _cut(self, batch: dict[str, torch.Tensor], records: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        length = batch["input_ids"].shape[1]
        if length <= self.max_length:
            return batch
        beyond = batch["input_ids"][:, self.max_length :] == self.processor.image_token_id
        for record, cut in zip(records, beyond.any(dim=1).tolist(), strict=True):
            if cut:
                raise TemplateError(
                    f"{record['name']}: its image tokens do not fit into max_length {self.max_length}; raise max_length"
                )
        sequences = {name for name, tensor in batch.items() if tensor.shape[:2] == batch["input_ids"].shape}
        return {name: t[:, : self.max_length] if name in sequences else t for name, t in batch.items()}


def _places(ids: Sequence[int], expanded: Sequence[int], name: str) -> list[int]:
    """Where each token of a text stands among the processor's, which has many tokens for each image mark."""
    places, position = [], 0
    for token in ids:
        try:
            position = expanded.index(token, position)
        except ValueError:
            raise TemplateError(
                f"{name}: the processor's tokens are not the tokenizer's; labels cannot be set"
            ) from None
        places.append(position)
        position += 1
    return places
