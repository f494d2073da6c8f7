"""Which way of sharing a prefix is exact for a model: found out by trying, on real prompts, before any answer counts.

Two measurements decide. First, the keys and values of the prefix must not depend on what follows (they do where a model
reads prompts in both directions). Second, the logits of the first two steps must be those of plain `generate` for the
shortest, a middle and the longest prompt: logits, because wrong ones often still give the right token, and two steps,
because some models go wrong only at the second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .packed import check_packable, generate_packed
from .shared_prefix import (
    Generated,
    NotShareable,
    Prefix,
    Prompt,
    common_prefix,
    compute_prefix,
    generate_grouped,
    generate_single,
    prompt_length,
)

PACKED, GROUPED, SINGLE = "packed", "grouped", "single"
_STEPS = 2
# Relative error of logits. Ordinary left-padded batching shows up to 3e-5 in float32; wrong positions or masks show
# 0.1 and more.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_TOLERANCE_HALF = 0.1
# Of a prefix's keys and values. A causal model gives the same ones to the bit, one that is not changes them by 0.04.
_PREFIX_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Choice:
    """The mode to run, why, in words for the log, and how many prompt tokens finding out took."""

    mode: str
    reason: str
    tokens: int


def choose_mode(model: Any, prompts: Sequence[Prompt], new_tokens: int) -> Choice:
    """Tries the modes on the prompts of one image, the fastest first; costs about ten prompts.

    Args:
        prompts: at least two, all on the same images.
        new_tokens: how many will be generated for each.
    """
    tokens = 0
    try:
        length = common_prefix(model, prompts)
        ordered = sorted(prompts, key=prompt_length)
        picked = [ordered[0], ordered[len(ordered) // 2], ordered[-1]]
        expected = list(generate_single(model, picked, keep_logits=True, max_new_tokens=_STEPS))
        tokens = sum(map(prompt_length, picked)) + 2 * prompt_length(ordered[-1])
        if (change := _prefix_change(model, ordered[-1], length)) > _PREFIX_TOLERANCE:
            raise NotShareable(f"the image's keys depend on the question (by {change:.1g})")
        prefix = compute_prefix(model, picked, length)
        tokens += length
    except NotShareable as reason:
        return Choice(SINGLE, str(reason), tokens)
    refused = []
    for mode, generate in ((PACKED, generate_packed), (GROUPED, generate_grouped)):
        try:
            if mode == PACKED:
                check_packable(model, prompts, prefix, new_tokens)
            tokens += sum(prompt_length(prompt) - length for prompt in picked)
            error = _error(generate, model, picked, prefix, expected)
        except NotShareable as reason:
            refused.append(f"{mode}: {reason}")
            continue
        except torch.OutOfMemoryError:
            raise
        except Exception as fault:  # a model may refuse masks or positions in any way; the log says which
            refused.append(f"{mode}: {type(fault).__name__}: {fault}")
            continue
        if error <= _TOLERANCE.get(model.dtype, _TOLERANCE_HALF):
            return Choice(mode, "; ".join([f"logits agree with plain generate to {error:.1g}", *refused]), tokens)
        refused.append(f"{mode}: logits differ from plain generate by {error:.1g}")
    return Choice(SINGLE, "; ".join(refused), tokens)


def _prefix_change(model: Any, prompt: Prompt, length: int) -> float:
    """Largest relative change of the prefix's keys and values when other tokens follow it."""
    ids = prompt["input_ids"]
    other = torch.cat([ids[:, :length], ids[:, length:].flip(1)], 1)
    if torch.equal(other, ids):
        other[:, length:] = ids[:, :1]
    before, after = (
        _prefix_tensors(compute_prefix(model, [{**prompt, "input_ids": x}], ids.shape[1]), length) for x in (ids, other)
    )
    changes = [
        float((a - b).float().norm() / a.float().norm().clamp(min=1e-9)) for a, b in zip(before, after, strict=True)
    ]
    return max(changes, default=0.0)


def _prefix_tensors(prompt: Prefix, length: int) -> list[torch.Tensor]:
    """What the layers still hold of the first `length` tokens' keys and values; a window drops the oldest."""
    tensors = [getattr(layer, name, None) for layer in prompt.cache.layers for name in ("keys", "values")]
    return [
        t[..., : max(0, length - (prompt.length - t.shape[-2])), :] for t in tensors if t is not None and t.ndim == 4
    ]


def _error(
    generate: Callable[..., list[Generated]],
    model: Any,
    prompts: Sequence[Prompt],
    prefix: Prefix,
    expected: Sequence[Generated],
) -> float:
    """Largest relative error of a step's logits; a later step counts only behind the same tokens."""
    worst = 0.0
    for got, want in zip(
        generate(model, prompts, prefix, keep_logits=True, max_new_tokens=_STEPS), expected, strict=True
    ):
        for step, (a, b) in enumerate(zip(got.logits, want.logits, strict=False)):  # type: ignore[arg-type]
            if torch.equal(got.tokens[:step], want.tokens[:step]):
                a, b = a.float(), b.float()
                worst = max(worst, float((a - b).norm() / (b - b.mean()).norm()))
    return worst
