"""The base stage: the micro-LLaVA learns from random weights; lessons are encoded once and stay on the device."""

from __future__ import annotations

import itertools
import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from lmms_eval_templates.demo.scenes import SIZE

from ..collator import IGNORED
from ..saving import save_model
from .data import BATCH, DESCRIPTIONS, Lesson, lesson
from .model import build

_LEARNING_RATE, _WARMUP, _WEIGHT_DECAY, _BETAS, _CLIP = 1e-3, 100, 0.05, (0.9, 0.98), 1.0
_LOGGED_STEPS = 80  # whole rounds of the kinds of lessons


class Stage(NamedTuple):
    """A part of the base stage with a schedule of its own.

    Attributes:
        lessons: how many.
        horizon: lessons over which the learning rate falls to a fiftieth; with more than `lessons` it stops on the way.
    """

    lessons: int
    horizon: int


# Descriptions, as in LLaVA's own first stage; then questions, with a fresh rise of the learning rate.
STAGES = (Stage(DESCRIPTIONS, 150_000), Stage(128_000, 128_000))


class Encoded(NamedTuple):
    """Lessons as tensors.

    Attributes:
        ids: int64, shape [lessons, tokens].
        labels: the same, -100 outside the assistant's words.
        lengths: int64, shape [lessons].
        pictured: bool, shape [lessons].
        pixels: uint8, shape [lessons, SIZE, SIZE, 3], zero where there is no picture.
    """

    ids: torch.Tensor
    labels: torch.Tensor
    lengths: torch.Tensor
    pictured: torch.Tensor
    pixels: torch.Tensor


def encode(chosen: Sequence[Lesson], processor: Any, image_tokens: int) -> Encoded:
    """What `training.collator` makes of the same conversations, for many of them at once."""
    tokenizer = processor.tokenizer
    texts = []
    for turns, pixels in chosen:
        said = [f"USER: {h} ASSISTANT: {a}{tokenizer.eos_token}" for h, a in zip(turns[::2], turns[1::2], strict=True)]
        if pixels is not None:
            said[0] = said[0].replace("USER: ", "USER: " + processor.image_token * image_tokens + " ", 1)
        texts.append(" ".join(said))
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    ids = batch["input_ids"]
    begins, ends = ids == tokenizer.convert_tokens_to_ids("ASSISTANT"), ids == tokenizer.eos_token_id
    answering = (begins.cumsum(1) > ends.cumsum(1)) | ends  # from "ASSISTANT" to the end of text, which is learned too
    answering &= ~begins & ~begins.roll(1, dims=1)
    blank = np.zeros((SIZE, SIZE, 3), dtype=np.uint8)
    return Encoded(
        ids,
        torch.where(answering, ids, IGNORED),
        batch["attention_mask"].sum(1),
        torch.tensor([pixels is not None for _, pixels in chosen]),
        torch.from_numpy(np.stack([blank if pixels is None else pixels for _, pixels in chosen])),
    )


def _normalize(pixels: torch.Tensor, processor: Any) -> torch.Tensor:
    """As the image processor does; shape [images, 3, SIZE, SIZE]."""
    images = processor.image_processor
    mean, std = (torch.tensor(values, device=pixels.device) for values in (images.image_mean, images.image_std))
    return ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)


def pretrain(folder: Path, stages: Sequence[Stage], seed: int, device: str) -> Path:
    """Trains from random weights, stage by stage, and writes model and processor to `folder`.

    Each finished stage is kept beside `folder` until the last one is, so that the same call goes on after an
    interruption.

    Args:
        folder: must not exist.
        device: "cpu" or "cuda"; all lessons of a stage are on it.
    """
    model, processor = build(seed)
    model.to(device).train()
    ends = list(itertools.accumulate(stage.lessons for stage in stages))
    kept = [folder.with_name(f"{folder.name}_{end}.pt") for end in ends]
    for stage, end, target in zip(stages, ends, kept, strict=True):
        if target.exists():
            model.load_state_dict(torch.load(target, map_location=device, weights_only=True))
            continue
        numbers = tqdm(range(end - stage.lessons, end), "drawing lessons", unit=" lessons", disable=None)
        encoded = encode([lesson(n, seed) for n in numbers], processor, model.config.image_seq_length)
        _train(model, processor, Encoded(*(tensor.to(device) for tensor in encoded)), stage.horizon)
        partial = target.with_suffix(".partial")
        torch.save(model.state_dict(), partial)
        os.replace(partial, target)
    save_model(model, processor, folder)
    for path in kept:
        path.unlink()
    return folder


def _train(model: Any, processor: Any, data: Encoded, horizon: int) -> None:
    """One pass over lessons; the learning rate falls as a cosine over `horizon` lessons."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY, betas=_BETAS)
    steps = horizon // BATCH
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / _WARMUP) * (0.02 + 0.49 * (1 + math.cos(math.pi * step / steps))),
    )
    losses: list[float] = []
    with tqdm(range(len(data.ids) // BATCH), "base stage", unit=" steps", disable=None) as bar:
        for step in bar:
            loss = _loss(model, processor, data, slice(step * BATCH, (step + 1) * BATCH))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            if len(losses) == _LOGGED_STEPS:
                bar.set_postfix(loss=f"{statistics.fmean(losses):.3f}")
                losses.clear()


def _loss(model: Any, processor: Any, data: Encoded, rows: slice) -> torch.Tensor:
    """Mean cross-entropy of the assistant's words."""
    longest = int(data.lengths[rows].max())
    ids, labels = data.ids[rows, :longest], data.labels[rows, 1:longest]
    attended = torch.arange(longest, device=ids.device) < data.lengths[rows, None]
    shown = data.pixels[rows][data.pictured[rows]]
    pixels = _normalize(shown, processor) if len(shown) else None
    hidden = model.model(input_ids=ids, attention_mask=attended.long(), pixel_values=pixels)[0][:, :-1]
    learned = labels != IGNORED  # the output layer sees these places alone
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[learned]), labels[learned])
