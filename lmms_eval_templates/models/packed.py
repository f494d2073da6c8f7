"""All suffixes of a group in one row behind one copy of their prefix.

    keys      [ prefix | suffix 1 | suffix 2 | suffix 3 | tokens generated so far ]
    suffix 2       x                    x

Each suffix sees the prefix and itself, at the positions it would have alone. Nothing is padded, the prefix's keys are
stored once, and a decoding step is one forward pass over as many tokens as there are unfinished prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from .shared_prefix import GREEDY, Generated, NotShareable, Prefix, Prompt, cache_argument, prompt_length

# Suffixes are computed in pieces of about this many tokens. Attention within a piece is dense, so a larger one wastes
# arithmetic on pairs that are masked; a smaller one does not fill the processor.
PIECE_TOKENS = {"cpu": 512, "cuda": 1024}


def check_packable(model: Any, prompts: Sequence[Prompt], prefix: Prefix, new_tokens: int) -> None:
    """
    Raises:
        NotShareable: prompts of this model, or these prompts, cannot stand in one row.
    """
    for layer in prefix.cache.layers:
        if type(layer).__name__ not in ("DynamicLayer", "DynamicSlidingWindowLayer"):
            raise NotShareable(f"a layer keeps its state in a {type(layer).__name__}")
    longest = max(map(prompt_length, prompts)) + new_tokens - 1
    if prefix.window is not None and longest > prefix.window:
        raise NotShareable(f"a prompt of {longest} tokens is longer than the attention window of {prefix.window}")
    config = model.generation_config
    if getattr(config, "no_repeat_ngram_size", None) or getattr(config, "min_length", None):
        raise NotShareable("its generation_config counts padding (no_repeat_ngram_size or min_length)")


def generate_packed(
    model: Any, prompts: Sequence[Prompt], prefix: Prefix, keep_logits: bool = False, **generation: Any
) -> list[Generated]:
    """Greedy search for all prompts at once."""
    rows = _filled([prompt["input_ids"][0] for prompt in prompts])
    row = _Row(model, prompts, prefix)
    logits: list[torch.Tensor] = []

    def decode(
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **unused: Any,
    ) -> torch.Tensor:
        unfinished = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        scores = row.prefill()
        while True:
            if keep_logits:
                logits.append(scores)
            copied = scores.to(torch.float32, copy=True)  # processors may write into it
            tokens = logits_processor(input_ids, copied).argmax(-1)
            if generation_config._pad_token_tensor is not None:
                tokens = torch.where(unfinished, tokens, generation_config._pad_token_tensor)
            input_ids = torch.cat([input_ids, tokens[:, None]], 1)
            unfinished = unfinished & ~stopping_criteria(input_ids, None)
            numbers = unfinished.nonzero()[:, 0]
            if len(numbers) == 0:
                return input_ids
            scores = scores.index_copy(0, numbers, row.step(tokens, numbers))

    # `generate` reads the checkpoint's generation settings and then leaves the search to `decode`.
    sequences = model.generate(
        input_ids=rows,
        attention_mask=torch.ones_like(rows),
        position_ids=torch.zeros_like(rows),
        custom_generate=decode,
        **{**GREEDY, **generation},
    )
    new = sequences[:, rows.shape[1] :]
    return [Generated(new[k], torch.stack([s[k] for s in logits]) if keep_logits else None) for k in range(len(new))]


def _filled(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """One batch for the logits processors. Filled with a token that the row has anyway, so that none counts as new."""
    longest = max(map(len, rows))
    return torch.stack([torch.cat([row[-1:].expand(longest - len(row)), row]) for row in rows])


class _Row:
    """The packed row: its keys and values, and who sees what."""

    def __init__(self, model: Any, prompts: Sequence[Prompt], prefix: Prefix):
        self.model, self.prefix, self.prompts = model, prefix, prompts
        self.device = prompts[0]["input_ids"].device
        self.positions = torch.tensor(list(map(prompt_length, prompts)), device=self.device)  # of each next token
        self.cache = DynamicCache()
        self.visible = torch.empty(0)

    def prefill(self) -> torch.Tensor:
        """Computes all suffixes; returns the logits behind each, shape (prompts, vocabulary)."""
        logits, caches, owners = [], [], []
        start = self.prefix.length
        for prompts in _pieces(self.prompts, start):
            lengths = torch.tensor([prompt_length(prompt) - start for prompt in prompts], device=self.device)
            total = sum(map(prompt_length, prompts)) - start * len(prompts)
            owner = torch.arange(len(prompts), device=self.device).repeat_interleave(lengths, output_size=total)
            order = torch.arange(total, device=self.device)
            ends = lengths.cumsum(0)
            causal = (owner[:, None] == owner[None, :]) & (order[:, None] >= order[None, :])
            visible = torch.cat([causal.new_ones(len(owner), start), causal], 1)
            inputs = {name: torch.cat([prompt[name][:, start:] for prompt in prompts], 1) for name in self._inputs}
            caches.append(_copy(self.prefix.cache))
            logits.append(self._forward(inputs, order - (ends - lengths)[owner] + start, visible, caches[-1], ends - 1))
            owners.append(owner[None, :] == torch.arange(len(prompts), device=self.device)[:, None])
        self.cache = _joined(self.prefix, caches)
        own = torch.block_diag(*owners).bool()
        self.visible = torch.cat([own.new_ones(len(own), start), own], 1)
        return torch.cat(logits)

    @property
    def _inputs(self) -> list[str]:
        # Type ids only tell images from text, and all here is text.
        return [name for name in ("input_ids", "cross_attention_mask") if name in self.prompts[0]]

    def step(self, tokens: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """One more token for the prompts `numbers`.

        Args:
            tokens: the last token of every prompt, shape (prompts,).
            numbers: the unfinished prompts, shape (unfinished,).

        Returns:
            Logits, shape (unfinished, vocabulary).
        """
        newest = torch.zeros(len(tokens), len(numbers), dtype=torch.bool, device=self.device)
        newest[numbers, torch.arange(len(numbers), device=self.device)] = True
        self.visible = torch.cat([self.visible, newest], 1)
        inputs = {"input_ids": tokens[None, numbers]}
        if "cross_attention_mask" in self._inputs:  # what is generated sees the tiles that the prompt's end sees
            inputs["cross_attention_mask"] = torch.cat(
                [self.prompts[number]["cross_attention_mask"][:, -1:] for number in numbers.tolist()], 1
            )
        logits = self._forward(inputs, self.positions[numbers], self.visible[numbers], self.cache)
        self.positions[numbers] += 1
        return logits

    def _forward(
        self,
        inputs: dict[str, torch.Tensor],
        positions: torch.Tensor,
        visible: torch.Tensor,
        cache: DynamicCache,
        keep: torch.Tensor | None = None,
    ) -> torch.Tensor:
        dtype = self.model.dtype
        mask = torch.zeros(visible.shape, dtype=dtype, device=self.device)
        mask.masked_fill_(~visible, torch.finfo(dtype).min)
        positions = positions[None]
        if self.prefix.rope_deltas is not None:  # M-RoPE: time, height and width advance together behind the images
            positions = (positions + self.prefix.rope_deltas).expand(3, 1, -1)
        output = self.model(
            **inputs,
            attention_mask=mask[None, None],
            position_ids=positions,
            use_cache=True,
            logits_to_keep=0 if keep is None else keep,
            **{cache_argument(self.model): cache},
        )
        return output.logits[0]


def _pieces(prompts: Sequence[Prompt], start: int) -> Iterator[Sequence[Prompt]]:
    most = PIECE_TOKENS.get(prompts[0]["input_ids"].device.type, PIECE_TOKENS["cuda"])
    first, tokens = 0, 0
    for number, prompt in enumerate(prompts):
        suffix = prompt_length(prompt) - start
        if number > first and tokens + suffix > most:
            yield prompts[first:number]
            first, tokens = number, 0
        tokens += suffix
    yield prompts[first:]


def _copy(cache: Any) -> DynamicCache:
    """A cache that grows from the same keys and values and never drops any: the mask alone says what is seen."""
    copy = DynamicCache()
    for number, layer in enumerate(cache.layers):
        copy.update(layer.keys, layer.values, number)
    return copy


def _joined(prefix: Prefix, pieces: Sequence[DynamicCache]) -> DynamicCache:
    """One cache: the prefix, then every piece's suffixes."""
    if len(pieces) == 1:
        return pieces[0]
    joined = DynamicCache()
    for number, before in enumerate(prefix.cache.layers):
        start = before.keys.shape[-2]  # cross attention keeps the image's keys, and they do not grow
        layers: list[Any] = [piece.layers[number] for piece in pieces]
        keys = torch.cat([layers[0].keys, *(layer.keys[..., start:, :] for layer in layers[1:])], -2)
        values = torch.cat([layers[0].values, *(layer.values[..., start:, :] for layer in layers[1:])], -2)
        joined.update(keys, values, number)
        for layer in layers:
            layer.keys = layer.values = None  # frees memory layer by layer
    return joined
