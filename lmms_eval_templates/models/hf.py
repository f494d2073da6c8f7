"""`tm_hf`: any Hugging Face image-text-to-text model, with the image of all templates of an item computed once."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.models.model_utils.gen_metrics import log_metrics
from tqdm import tqdm

from .loading import (
    check_adapter,
    check_checkpoint,
    choose_device,
    choose_dtype,
    load_model,
    load_processor,
    refuse,
)
from .prompts import PromptReader
from .runner import Runner, Work
from .shared_prefix import prompt_length

_SHARE = ("auto", "off")


class SharedPrefixHF(lmms):
    """Groups requests by image, computes [system text + image] once a group and all texts behind it together.

    Args:
        pretrained: a checkpoint's folder or name on the hub.
        revision: branch, tag or commit of a checkpoint on the hub.
        dtype: "auto" (the checkpoint's), "float32", "bfloat16" or "float16".
        device: default: this rank's GPU if there is one, else the CPU.
        device_map: "auto" spreads one model over all GPUs of one process.
        attn_implementation: as in transformers. With flash_attention_2 packed rows are impossible; it falls back.
        peft: folder of a LoRA adapter, merged into the weights.
        trust_remote_code: whether code that comes with the checkpoint may run.
        chat_template: a file that replaces the checkpoint's chat template.
        share: "auto" shares where the self-check finds it exact; "off" runs every prompt alone.
        chunk: prompts computed together, "auto": as free memory allows. Halved after an out-of-memory error.
        max_pixels: of an image, for processors that have this setting.

    Example:
        lmms-eval --model tm_hf --model_args pretrained=llava-hf/llava-1.5-7b-hf --tasks blink_tm_complex
    """

    is_simple = False

    def __init__(
        self,
        pretrained: str = "",
        revision: str = "main",
        dtype: str = "auto",
        device: str | None = None,
        device_map: str | None = None,
        attn_implementation: str | None = None,
        peft: str | None = None,
        trust_remote_code: bool = False,
        chat_template: str | None = None,
        share: str = "auto",
        chunk: int | str = "auto",
        max_pixels: int | None = None,
        batch_size: int | str = 1,  # lmms-eval always passes these two; `chunk` stands in their place
        max_batch_size: int | None = None,
        **unknown: object,
    ):
        super().__init__()
        _check_arguments(pretrained, share, chunk, max_pixels, unknown)
        _check_kinds(
            *(("pretrained", pretrained), ("revision", revision), ("device", device), ("device_map", device_map)),
            *(("attn_implementation", attn_implementation), ("peft", peft), ("chat_template", chat_template)),
        )
        if not isinstance(trust_remote_code, bool):
            refuse(f"trust_remote_code={trust_remote_code}: must be True or False")
        self.accelerator = Accelerator()
        self._rank, self._world_size = self.accelerator.process_index, self.accelerator.num_processes
        self._device = choose_device(device, self.accelerator.local_process_index, self._world_size)
        chosen_dtype = choose_dtype(dtype)
        check_checkpoint(pretrained, revision, trust_remote_code)
        adapter = None if peft is None else check_adapter(peft, pretrained)
        processor = load_processor(pretrained, revision, trust_remote_code, max_pixels)
        template = _read_template(chat_template)
        if template is None and not getattr(processor, "chat_template", None):
            refuse(f"pretrained={pretrained}: it has no chat template; give one: chat_template=FILE")
        self._model = load_model(
            pretrained,
            revision,
            trust_remote_code,
            chosen_dtype,
            self._device,
            device_map,
            attn_implementation,
            adapter,
        )
        self._tokenizer = processor.tokenizer
        config = self._model.generation_config
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        self._ends = torch.tensor([end for end in ends if end is not None], dtype=torch.long)
        if config.pad_token_id is None:  # `generate` would warn at every call
            config.pad_token_id = self._tokenizer.pad_token_id if self._tokenizer.pad_token_id is not None else ends[0]
        self._reader = PromptReader(processor, template, self._split, self._model.device, self._model.dtype)
        self._runner = Runner(self._model, share == "auto", None if chunk == "auto" else int(chunk))

    @property
    def device(self) -> torch.device:
        return self._device

    def _split(self, task: str, split: str) -> Any:
        return self.task_dict[task][split]

    def generate_until(self, requests: list[Instance]) -> Sequence[GenerationResult]:
        """Answers, computed as they are read: lmms-eval's --use_cache stores each one before the next group starts."""
        return _AsTheyCome(self._answers(requests), len(requests))

    def _answers(self, requests: list[Instance]) -> Iterator[GenerationResult]:
        with tqdm(total=len(requests), desc="tm_hf", unit="template", disable=self.rank != 0) as progress:
            for item, group in enumerate(self._reader.groups(requests), start=1):
                progress.set_postfix(item=item, refresh=False)
                for prompt, tokens in zip(group.prompts, self._runner.run(group), strict=True):
                    answer = self._until_end(tokens.cpu())
                    self._runner.work.new_tokens += len(answer)
                    text = cut(self._tokenizer.decode(answer, skip_special_tokens=True), group.generation.get("until"))
                    progress.update()
                    if progress.n == len(requests):  # nobody asks for more than the last answer
                        progress.close()
                    yield GenerationResult(text, TokenCounts(prompt_length(prompt), len(answer)))

    def _until_end(self, tokens: torch.Tensor) -> torch.Tensor:
        ends = torch.isin(tokens, self._ends).nonzero()
        return tokens[: int(ends[0]) + 1] if len(ends) else tokens

    def clean(self) -> None:
        """lmms-eval calls this on every rank when all answers are there: the time to add up the ranks' work."""
        works = [self._runner.work]
        if dist.is_available() and dist.is_initialized():
            works = [Work() for _ in range(dist.get_world_size())]
            dist.all_gather_object(works, self._runner.work)
        work = sum(works, start=Work())
        log_metrics(
            total_elapsed_time=work.seconds,
            total_gen_tokens=work.new_tokens,
            avg_speed=work.new_tokens / work.seconds if work.seconds else 0.0,
            additional_metrics={
                **{name: value for name, value in asdict(work).items() if name not in ("seconds", "new_tokens")},
                "prefix_share": work.prefix_tokens / work.prompt_tokens if work.prompt_tokens else 0.0,
            },
        )
        super().clean()

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        refuse("it gives responses, no likelihoods")

    def generate_until_multi_round(self, requests: list[Instance]) -> list[str]:
        refuse("it answers in one round")


def _check_arguments(pretrained: str, share: str, chunk: object, max_pixels: object, unknown: dict) -> None:
    if unknown:
        ours = inspect.signature(SharedPrefixHF).parameters
        known = [name for name in ours if name not in ("batch_size", "max_batch_size", "unknown")]
        refuse(f"unknown model_args {', '.join(unknown)}; known are {', '.join(known)}")
    if not pretrained:
        refuse("model_args pretrained is missing; give a checkpoint's folder or name")
    if share not in _SHARE:
        refuse(f"share={share}: must be {' or '.join(_SHARE)}")
    if chunk != "auto" and not (isinstance(chunk, int) and not isinstance(chunk, bool) and chunk > 0):
        refuse(f"chunk={chunk}: must be auto or a whole number of prompts, 1 or more")
    if max_pixels is not None and not (isinstance(max_pixels, int) and max_pixels > 0):
        refuse(f"max_pixels={max_pixels}: must be a whole number of pixels")


def _check_kinds(*texts: tuple[str, object]) -> None:
    """lmms-eval turns what looks like a number or a truth value into one."""
    for name, value in texts:
        if value is not None and not isinstance(value, str):
            refuse(f"{name}={value}: must be a name or a path; write a path of digits as ./{value}")


class _AsTheyCome(Sequence):
    """A list whose elements an iterator computes when they are first asked for."""

    def __init__(self, source: Iterator[Any], length: int):
        self._source, self._length = source, length
        self._known: list[Any] = []

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        last = range(self._length)[index]
        needed = (max(last, default=-1) if isinstance(index, slice) else last) + 1
        while len(self._known) < needed:
            self._known.append(next(self._source))
        return self._known[index]


def cut(text: str, until: str | list[str] | None) -> str:
    """The text before the first of the stop strings."""
    for stop in [until] if isinstance(until, str) else until or []:
        if stop:
            text = text.split(stop)[0]
    return text


def _read_template(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"chat_template={file}: not a readable file ({error})")
