"""What sharing the image's prefix among templates saves. Prints one JSON line; all weights are random.

    python benchmarks/shared_prefix.py --size host    # tm_hf against lmms-eval's llava_hf, real requests, tiny LLaVA
    python benchmarks/shared_prefix.py --size small   # the generation alone, a LLaVA that a CPU computes in seconds
    python benchmarks/shared_prefix.py --size 7b      # the same with LLaVA-1.5-7B's architecture, bf16, on a GPU

All ratios are between figures measured in one run, side by side. The arithmetic floor is the time that the prompts'
matrix products take at the rate of one large matrix product measured on the same device, each token once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import transformers

from lmms_eval_templates.models import packed
from lmms_eval_templates.models.shared_prefix import (
    common_prefix,
    compute_prefix,
    generate_single,
    prompt_length,
)

PROMPTS, SHORTEST, LONGEST, NEW_TOKENS = 100, 55, 104, 5
SYSTEM_TOKENS, IMAGE_TOKENS, IMAGE_SIDE, PATCH = 30, 576, 336, 14
ITEMS = 10
SIZES = {
    "small": {
        "text": {"hidden_size": 1024, "intermediate_size": 2752, "num_hidden_layers": 2, "num_attention_heads": 8},
        "vision": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    },
    "7b": {
        "text": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
        "vision": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16},
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["host", *SIZES], default="host")
    parser.add_argument("--repeats", type=int, default=3, help="the median of so many runs counts (default: 3)")
    parser.add_argument("--piece-tokens", type=int, help="see PIECE_TOKENS in lmms_eval_templates/models/packed.py")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    print(json.dumps(host() if args.size == "host" else generation(args.size, args.repeats, args.piece_tokens)))


def host() -> dict:
    """Whole requests, from the dataset to text: 10 items x 100 templates, an image of 576 tokens, on the CPU."""
    os.environ |= {"TM_ITEMS": str(ITEMS), "TM_EMBEDDER": "none"}
    from lmms_eval.models import get_model
    from lmms_eval.tasks import TaskManager, get_task_dict

    from lmms_eval_templates.demo.tiny_llava import build

    seconds, answers = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        build(folder, image_size=8 * int(IMAGE_TOKENS**0.5))
        for name, options in (("llava_hf", {"device_map": "cpu"}), ("tm_hf", {})):
            model = get_model(name)(pretrained=folder, device="cpu", **options)
            (task,) = get_task_dict(["demo_tm_complex"], TaskManager("ERROR", model_name=name), "chat").values()
            model.task_dict["demo_tm_complex"] = task.dataset
            task.build_all_requests()
            started = time.perf_counter()
            answers[name] = [answer.text for answer in model.generate_until(task.instances)]
            seconds[name] = time.perf_counter() - started
    return {
        "size": "host",
        "threads": torch.get_num_threads(),
        "items": ITEMS,
        "templates": len(answers["tm_hf"]) // ITEMS,
        "image_tokens": IMAGE_TOKENS,
        "llava_hf_s": round(seconds["llava_hf"], 2),
        "tm_hf_s": round(seconds["tm_hf"], 2),
        "times_faster": round(seconds["llava_hf"] / seconds["tm_hf"], 2),
        "equal_answers": sum(a == b for a, b in zip(answers["llava_hf"], answers["tm_hf"], strict=True)),
    }


@torch.inference_mode()
def generation(size: str, repeats: int, piece_tokens: int | None) -> dict:
    """The model alone: 100 prompts of 55 to 104 tokens behind one image."""
    device = torch.device("cuda" if size == "7b" else "cpu")
    dtype = torch.bfloat16 if size == "7b" else torch.float32
    if piece_tokens:
        packed.PIECE_TOKENS[device.type] = piece_tokens
    model = _model(size, device, dtype)
    prompts = _prompts(model, device, dtype)

    def shared() -> None:
        prefix = compute_prefix(model, prompts, common_prefix(model, prompts))
        packed.generate_packed(model, prompts, prefix, max_new_tokens=NEW_TOKENS)

    def alone(count: int) -> Callable[[], None]:
        step = len(prompts) // count
        return lambda: [None for prompt in prompts[::step] for _ in generate_single(model, [prompt], max_new_tokens=5)]  # type: ignore[return-value]

    one = _seconds(alone(10), repeats, device) / 10
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    together = _seconds(shared, repeats, device)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    length = common_prefix(model, prompts)
    tokens = length + sum(prompt_length(prompt) - length for prompt in prompts) + (NEW_TOKENS - 1) * len(prompts)
    weights = sum(p.numel() for p in model.model.language_model.layers.parameters())
    floor = 2 * weights * tokens / _rate(device, dtype)
    return {
        "size": size,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads",
        "dtype": str(dtype),
        "piece_tokens": packed.PIECE_TOKENS[device.type],
        "prompts": len(prompts),
        "tokens_one_by_one": sum(map(prompt_length, prompts)) + (NEW_TOKENS - 1) * len(prompts),
        "tokens_shared": tokens,
        "one_prompt_s": round(one, 4),
        "shared_s": round(together, 4),
        "floor_s": round(floor, 4),
        "times_one_prompt": round(together / one, 2),
        "times_less_than_one_by_one": round(len(prompts) * one / together, 2),
        "times_floor": round(together / floor, 2),
        "peak_gib": peak and round(peak, 1),
    }


def _model(size: str, device: torch.device, dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(image_size=IMAGE_SIDE, patch_size=PATCH, **SIZES[size]["vision"]),
        text_config=transformers.LlamaConfig(vocab_size=32064, max_position_embeddings=4096, **SIZES[size]["text"]),
        image_token_index=32000,
    )
    torch.set_default_dtype(dtype)
    with device:
        model = transformers.LlavaForConditionalGeneration(config).eval()
    torch.set_default_dtype(torch.float32)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None  # every prompt gets all its new tokens
    return model


def _prompts(model: torch.nn.Module, device: torch.device, dtype: torch.dtype) -> list[dict]:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(1, 3, IMAGE_SIDE, IMAGE_SIDE, generator=generator).to(device, dtype)
    prefix = torch.cat([torch.arange(10, 10 + SYSTEM_TOKENS), torch.full((IMAGE_TOKENS,), model.config.image_token_id)])
    prompts = []
    for length in torch.randint(SHORTEST, LONGEST + 1, (PROMPTS,), generator=generator).tolist():
        suffix = torch.randint(100, 30000, (length,), generator=generator)
        ids = torch.cat([prefix, suffix])[None].to(device)
        prompts.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels})
    return prompts


def _seconds(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Median of `repeats` runs after one that warms up."""
    times = []
    for _ in range(repeats + 1):
        _wait(device)
        started = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def _rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second in a large matrix product."""
    side = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return 10 * 2 * side**3 / _seconds(lambda: [a @ b for _ in range(10)], 5, device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
