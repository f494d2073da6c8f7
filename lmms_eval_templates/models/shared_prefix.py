"""Prompts that begin alike, generated from with their common beginning computed once.

A prompt is what a processor returns for one conversation: a mapping of tensors with batch size 1. All prompts of a
group show the same images, so that they share [system text + image tokens] and differ in the text behind. Three ways
of generating, the fastest first; `self_check` says which of them is exact for a model:

- packed: all suffixes stand in one row behind one copy of the prefix's keys and values (`packed`);
- grouped: prompts of equal length form a batch behind copies of the prefix's cache;
- single: one prompt at a time, with the vision tower's output remembered. Always exact.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

Prompt = Mapping[str, torch.Tensor]

# Inputs with one entry a token; all others describe the images.
PER_TOKEN = (
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "mm_token_type_ids",
    "moe_mm_token_type_ids",
    "cross_attention_mask",
    "image_embeds_position_mask",
)
_IMAGE_TOKENS = ("image_token_id", "image_token_index", "video_token_id", "video_token_index", "image_patch_id")


class NotShareable(Exception):  # noqa: N818 - a finding, not a fault
    """Why a group of prompts cannot be generated from in the way that was tried."""


@dataclass
class Prefix:
    """The computed common beginning of a group of prompts.

    Attributes:
        length: tokens.
        cache: its keys and values (or recurrent states), batch size 1. To be copied before use: `generate` changes it.
        rope_deltas: what M-RoPE models add to positions behind the images, shape (1, 1), or None.
        window: the shortest attention window among the layers, or None.
    """

    length: int
    cache: Any
    rope_deltas: torch.Tensor | None
    window: int | None


@dataclass
class Generated:
    """What was generated for one prompt.

    Attributes:
        tokens: shape (new,), after the end-of-sequence token padding may follow.
        logits: shape (new, vocabulary), before any logits processor; None unless asked for.
    """

    tokens: torch.Tensor
    logits: torch.Tensor | None = None


def prompt_length(prompt: Prompt) -> int:
    return prompt["input_ids"].shape[1]


def common_prefix(model: Any, prompts: Sequence[Prompt]) -> int:
    """Tokens that all prompts have in common from the start; every image token is among them.

    Raises:
        NotShareable: there are none, or more than the text differs.
    """
    if model.config.is_encoder_decoder:
        raise NotShareable("an encoder-decoder reads the whole prompt at once")
    rows = [prompt["input_ids"][0] for prompt in prompts]
    longest = min(len(row) for row in rows) - 1  # each prompt keeps a token to predict from
    differs = (torch.stack([row[:longest] for row in rows]) != rows[0][:longest]).any(0).nonzero()
    length = int(differs[0]) if len(differs) else longest
    if length < 1:
        raise NotShareable("the prompts have no common beginning")
    # One comparison for all prompts: on a GPU each answer that Python waits for costs as much as a small kernel.
    image_tokens = [token for name in _IMAGE_TOKENS if isinstance(token := getattr(model.config, name, None), int)]
    behind = torch.cat([row[length:] for row in rows])
    if torch.isin(behind, torch.tensor(image_tokens, dtype=behind.dtype, device=behind.device)).any():
        raise NotShareable("an image stands behind text that differs")
    for name, value in prompts[0].items():
        if not torch.is_tensor(value):
            raise NotShareable(f"{name} is no tensor")
        if name in PER_TOKEN:
            same = bool((torch.cat([prompt[name][:, :length] for prompt in prompts]) == value[:, :length]).all())
        else:
            same = all(_equal(prompt[name], value) for prompt in prompts)
        if not same:
            raise NotShareable(f"{name} differs between prompts")
    return length


def check_positions(model: Any, prompts: Sequence[Prompt], new_tokens: int) -> None:
    """
    Raises:
        NotShareable: a token's rotary position depends on the prompt's length, so that a prefix is not the same in all.
    """
    config = model.config.get_text_config()
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    longest = max(map(prompt_length, prompts)) + new_tokens
    for kind in [parameters, *(value for value in parameters.values() if isinstance(value, dict))]:
        if kind.get("rope_type") in ("dynamic", "longrope"):
            limit = kind.get("original_max_position_embeddings") or config.max_position_embeddings
            if longest > limit:
                raise NotShareable(f"with {longest} tokens, {kind['rope_type']} rotary positions depend on the length")


def compute_prefix(model: Any, prompts: Sequence[Prompt], length: int) -> Prefix:
    """Runs the first `length` tokens, images included.

    Raises:
        NotShareable: the model's cache is of an unknown kind.
    """
    inputs = {name: value[:, :length] if name in PER_TOKEN else value for name, value in prompts[0].items()}
    _set_rope_deltas(model, None)
    output = model.generate(**inputs, **GREEDY, max_new_tokens=1, return_dict_in_generate=True)
    cache = output.past_key_values
    if not hasattr(cache, "layers") or cache.get_seq_length() != length:
        raise NotShareable(f"its cache is a {type(cache).__name__}")
    windows = [layer.sliding_window for layer in cache.layers if getattr(layer, "sliding_window", None)]
    return Prefix(length, cache, _rope_deltas(model), min(windows, default=None))


# What `generate` is told for greedy search; the unused sampling settings of a checkpoint would only cause warnings.
GREEDY: dict[str, Any] = {"do_sample": False, "num_beams": 1, "temperature": None, "top_p": None, "top_k": None}


def generate_grouped(
    model: Any, prompts: Sequence[Prompt], prefix: Prefix, keep_logits: bool = False, **generation: Any
) -> list[Generated]:
    """Prompts of equal length as one batch, so that no model sees padding."""
    by_length = defaultdict(list)
    for number, prompt in enumerate(prompts):
        by_length[prompt_length(prompt)].append(number)
    results: dict[int, Generated] = {}
    for length, numbers in by_length.items():
        cache = copy.deepcopy(prefix.cache)
        cache.reorder_cache(torch.zeros(len(numbers), dtype=torch.long, device=prompts[0]["input_ids"].device))
        inputs = {
            name: torch.cat([prompts[number][name] for number in numbers]) for name in PER_TOKEN if name in prompts[0]
        }
        _set_rope_deltas(model, prefix.rope_deltas)
        output = model.generate(
            **inputs,
            **{cache_argument(model): cache},
            **{**GREEDY, **generation},
            return_dict_in_generate=True,
            output_logits=keep_logits,
        )
        for row, number in enumerate(numbers):
            logits = torch.stack([step[row] for step in output.logits]) if keep_logits else None
            results[number] = Generated(output.sequences[row, length:], logits)
    return [results[number] for number in range(len(prompts))]


def generate_single(
    model: Any, prompts: Sequence[Prompt], keep_logits: bool = False, **generation: Any
) -> Iterator[Generated]:
    """One prompt at a time; plain `generate`, but that the images of the group are encoded once."""
    with images_encoded_once(model):
        for prompt in prompts:
            _set_rope_deltas(model, None)
            output = model.generate(
                **prompt, **{**GREEDY, **generation}, return_dict_in_generate=True, output_logits=keep_logits
            )
            # Encoder-decoders return the answer alone.
            start = 0 if model.config.is_encoder_decoder else prompt_length(prompt)
            logits = torch.stack(output.logits)[:, 0] if keep_logits else None
            yield Generated(output.sequences[0, start:], logits)


@contextmanager
def images_encoded_once(model: Any) -> Iterator[None]:
    """Within, `get_image_features` is computed again only for other arguments than the last ones."""
    core = model.model if hasattr(getattr(model, "model", None), "get_image_features") else model
    if not hasattr(core, "get_image_features"):
        yield
        return
    compute = core.get_image_features
    last: list[Any] = []

    @functools.wraps(compute)  # `generate` looks at the signature
    def remember(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *sorted(kwargs.items())]
        if not last or not _equal(last[0], given):  # some models' image features depend on the question
            last[:] = given, compute(*args, **kwargs)
        return last[1]

    core.get_image_features = remember
    try:
        yield
    finally:
        del core.get_image_features


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return type(one) is type(other) and bool(one == other)


def cache_argument(model: Any) -> str:
    """What `forward` calls the cache: transformers renamed it in version 5."""
    return "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"


def _rope_deltas(model: Any) -> torch.Tensor | None:
    return getattr(getattr(model, "model", model), "rope_deltas", None)


def _set_rope_deltas(model: Any, deltas: torch.Tensor | None) -> None:
    """M-RoPE models keep the position offset of the last images they saw; a stale one would silently be used."""
    core = getattr(model, "model", model)
    if hasattr(core, "rope_deltas"):
        core.rope_deltas = deltas
