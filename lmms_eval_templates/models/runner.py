"""Runs groups of prompts: which mode, how many at once, and what that came to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from loguru import logger

from .packed import check_packable, generate_packed
from .prompts import Group
from .self_check import GROUPED, PACKED, SINGLE, Choice, choose_mode
from .shared_prefix import (
    Generated,
    NotShareable,
    Prefix,
    Prompt,
    check_positions,
    common_prefix,
    compute_prefix,
    generate_grouped,
    generate_single,
    prompt_length,
)

_DEFAULT_NEW_TOKENS = 1024  # as lmms-eval's own classes
# Settings of `generate` that tasks use; lmms-eval's generation_kwargs hold others that are not for it.
_SAMPLING = ("temperature", "top_p", "top_k")
_SEARCH = ("repetition_penalty", "no_repeat_ngram_size", "min_new_tokens", "length_penalty")
_MOST_AT_ONCE = 256
_MEMORY_SHARE = 0.8


@dataclass
class Work:
    """What a run came to. All are sums, so that ranks can be added up.

    Attributes:
        prompts_packed, prompts_grouped, prompts_single: prompts by mode.
        prompt_tokens: of all prompts, images included.
        prefix_tokens: those of them in a shared prefix.
        computed_tokens: tokens that went through the language model for the prompts; the self-check's are among them.
        saved_tokens: prefix tokens that were not computed again.
        new_tokens: generated.
        seconds: in the model.
    """

    prompts_packed: int = 0
    prompts_grouped: int = 0
    prompts_single: int = 0
    prompt_tokens: int = 0
    prefix_tokens: int = 0
    computed_tokens: int = 0
    saved_tokens: int = 0
    new_tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Work)))


def generation_options(generation: dict[str, Any]) -> dict[str, Any]:
    """lmms-eval's generation_kwargs as options of `generate`.

    As in lmms-eval's own classes the temperature, where there is one, decides whether to sample: a task's do_sample
    stays in place when --gen_kwargs changes the temperature alone.
    """
    options: dict[str, Any] = {"max_new_tokens": generation.get("max_new_tokens", _DEFAULT_NEW_TOKENS)}
    options["num_beams"] = generation.get("num_beams") or 1
    temperature = generation.get("temperature")
    sampled = bool(generation.get("do_sample")) if temperature is None else temperature > 0
    options["do_sample"] = sampled
    if sampled:
        options |= {name: generation[name] for name in _SAMPLING if generation.get(name) is not None}
    return options | {name: generation[name] for name in _SEARCH if generation.get(name) is not None}


class Runner:
    """Generates for groups, in the fastest mode that is exact.

    Args:
        share: False runs every prompt alone, with plain `generate`.
        chunk: prompts computed at once, or None to go by free memory.
    """

    def __init__(self, model: Any, share: bool, chunk: int | None):
        self._model, self._share, self._chunk = model, share, chunk
        self._choices: dict[tuple[str, bool], Choice] = {}
        self._told: set[tuple[str, str, str]] = set()
        self.work = Work()

    @torch.inference_mode()
    def run(self, group: Group) -> Iterator[torch.Tensor]:
        """The new tokens of each prompt in turn; padding may follow the end-of-sequence token."""
        results = self._results(group)
        while True:
            started = time.perf_counter()
            result = next(results, None)
            self.work.seconds += time.perf_counter() - started
            if result is None:
                return
            yield result.tokens

    def _results(self, group: Group) -> Iterator[Generated]:
        options = generation_options(group.generation)
        if not self._share:
            self._tell(group.task, SINGLE, "share=off")
        mode, prefix = self._mode(group, options) if self._share else (SINGLE, None)
        tokens = sum(map(prompt_length, group.prompts))
        saved = 0 if prefix is None else (len(group.prompts) - 1) * prefix.length
        self.work += Work(
            **{f"prompts_{mode}": len(group.prompts)},
            prompt_tokens=tokens,
            prefix_tokens=0 if prefix is None else len(group.prompts) * prefix.length,
            computed_tokens=tokens - saved,
            saved_tokens=saved,
        )
        if prefix is not None:
            yield from self._in_chunks(mode, group.prompts, prefix, options)
        elif self._share:
            yield from generate_single(self._model, group.prompts, **options)
        else:
            for prompt in group.prompts:
                yield from generate_single(self._model, [prompt], **options)

    def _mode(self, group: Group, options: dict[str, Any]) -> tuple[str, Prefix | None]:
        """Checked once a task, and once more if some of its images allow less than others."""
        if len(group.prompts) == 1:
            self._tell(group.task, SINGLE, "one prompt on its image has nothing to share")
            return SINGLE, None
        if (
            options.keys() != {"max_new_tokens", "num_beams", "do_sample"}
            or options["do_sample"]
            or options["num_beams"] > 1
        ):
            self._tell(group.task, SINGLE, "only plain greedy search is shared")
            return SINGLE, None
        known = [choice for (task, _), choice in self._choices.items() if task == group.task]
        if any(choice.mode == SINGLE for choice in known):
            return SINGLE, None
        try:
            check_positions(self._model, group.prompts, options["max_new_tokens"])
            prefix = compute_prefix(self._model, group.prompts, common_prefix(self._model, group.prompts))
        except NotShareable as reason:
            self._tell(group.task, SINGLE, str(reason))
            return SINGLE, None
        try:
            check_packable(self._model, group.prompts, prefix, options["max_new_tokens"])
            packable = True
        except NotShareable:
            packable = False
        if (group.task, packable) not in self._choices:
            choice = choose_mode(self._model, group.prompts, options["max_new_tokens"])
            self._choices[group.task, packable] = choice
            self.work.computed_tokens += choice.tokens
            self._tell(group.task, choice.mode, choice.reason)
        mode = self._choices[group.task, packable].mode
        return mode, None if mode == SINGLE else prefix

    def _tell(self, task: str, mode: str, reason: str) -> None:
        if (task, mode, reason) not in self._told:
            self._told.add((task, mode, reason))
            logger.info(f"tm_hf: {task}: prompts run {mode}: {reason}")

    def _in_chunks(
        self, mode: str, prompts: Sequence[Prompt], prefix: Prefix, options: dict[str, Any]
    ) -> Iterator[Generated]:
        generate = {PACKED: generate_packed, GROUPED: generate_grouped}[mode]
        order = sorted(range(len(prompts)), key=lambda number: prompt_length(prompts[number]))
        results: dict[int, Generated] = {}
        while len(results) < len(order):
            chunk = self._chunk or self._room(mode, prompts, prefix, options["max_new_tokens"])
            numbers = order[len(results) :][:chunk]
            try:
                chosen = [prompts[number] for number in numbers]
                results |= zip(numbers, generate(self._model, chosen, prefix, **options), strict=True)
                continue
            except torch.OutOfMemoryError:
                if len(numbers) == 1:
                    raise
            # Outside of the handler, whose exception would keep the tensors alive.
            self._chunk = len(numbers) // 2
            torch.cuda.empty_cache()
            logger.warning(f"tm_hf: out of memory with {len(numbers)} prompts at once; going on with {self._chunk}")
        yield from (results[number] for number in range(len(prompts)))

    def _room(self, mode: str, prompts: Sequence[Prompt], prefix: Prefix, new_tokens: int) -> int:
        """How many prompts fit into free GPU memory, their keys and values counted twice: joining copies them."""
        device = self._model.device
        if device.type != "cuda":
            return _MOST_AT_ONCE
        free = (
            torch.cuda.mem_get_info(device)[0]
            + torch.cuda.memory_reserved(device)
            - torch.cuda.memory_allocated(device)
        )
        tensors = [getattr(layer, kind, None) for layer in prefix.cache.layers for kind in ("keys", "values")]
        bytes_a_token = sum(t.nbytes for t in tensors if t is not None) / prefix.length
        tokens = max(map(prompt_length, prompts)) + new_tokens - (prefix.length if mode == PACKED else 0)
        return max(1, min(_MOST_AT_ONCE, int(_MEMORY_SHARE * free / (2 * bytes_a_token * tokens))))
