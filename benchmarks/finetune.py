"""Speed of LoRA fine-tuning: LLaVA-1.5-7B's architecture with random weights, rank 128, bf16, gradient checkpointing.

Run: python benchmarks/finetune.py             (one GPU with 40 GB or more, about three minutes)
     python benchmarks/finetune.py --tiny      (CPU, seconds; shows that the script works and nothing else)
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from lmms_eval_templates.training.collator import Collator
from lmms_eval_templates.training.config import Config
from lmms_eval_templates.training.finetune import training_arguments
from PIL import Image
from transformers import AutoProcessor, CLIPVisionConfig, LlamaConfig, LlavaConfig, Trainer, TrainerCallback
from transformers import LlavaForConditionalGeneration as Llava

from lmms_eval_templates.demo.tiny_llava import build

STEPS, WARM_UP = 14, 4
WORDS = "What is the color of the object in the image ? "  # in the tiny tokenizer's vocabulary, a token each


def matmul_rate(device: str, dtype: torch.dtype, size: int) -> float:
    """FLOP/s of a square matrix product, the best this device was seen to do."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = 0.0
    for _ in range(5):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(10):
            a @ b
        synchronize(device)
        best = max(best, 10 * 2 * size**3 / (time.perf_counter() - began))
    return best


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def random_model(folder: Path, tiny: bool, device: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """Model and processor; the tokenizer is a toy, the architecture LLaVA-1.5-7B's."""
    processor = AutoProcessor.from_pretrained(build(folder / "tiny"))
    if tiny:
        return Llava.from_pretrained(folder / "tiny", dtype=dtype), processor
    vision = CLIPVisionConfig(
        **{"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16},
        **{"image_size": 336, "patch_size": 14, "projection_dim": 768},
    )
    text = LlamaConfig(vocab_size=32064, max_position_embeddings=4096, rms_norm_eps=1e-5)
    config = LlavaConfig(text_config=text, vision_config=vision, image_token_index=processor.image_token_id)
    size = {"height": 336, "width": 336}
    processor.image_processor.size = processor.image_processor.crop_size = size
    processor.patch_size = 14
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = Llava(config)
    torch.set_default_dtype(torch.float32)
    return model, processor


def model_flops(model: Any, tokens: int, images: int, batch: int) -> float:
    """Arithmetic that a step needs, without what checkpointing does again.

    A frozen weight costs 2 FLOP a token forward and 2 for the gradient of its input; its own gradient is not needed.
    LoRA weights cost 6. Attention costs 4 x tokens^2 x width a layer forward, half of it masked, and twice that back.
    The vision tower runs forward only.
    """
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    language = sum(
        p.numel() for n, p in model.named_parameters() if "vision_tower" not in n and "embed_tokens" not in n
    )
    vision = sum(p.numel() for n, p in model.named_parameters() if "vision_tower" in n)
    text, tower = model.config.text_config, model.config.vision_config
    patches = (tower.image_size // tower.patch_size) ** 2
    attention = 3 * 2 * tokens * (tokens / batch) * text.hidden_size * text.num_hidden_layers
    return 4 * (language - trained) * tokens + 6 * trained * tokens + attention + 2 * vision * patches * images


class Clock(TrainerCallback):
    """Time at the end of each optimizer step."""

    def __init__(self, device: str):
        self.device, self.times = device, []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        synchronize(self.device)
        self.times.append(time.perf_counter())


def main() -> None:
    from peft import LoraConfig, get_peft_model

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--batch", type=int, default=16, help="records a step (default: %(default)s)")
    parser.add_argument("--words", type=int, default=256, help="a record, besides its image (default: %(default)s)")
    asked = parser.parse_args()
    device, dtype = ("cpu", torch.float32) if asked.tiny else ("cuda", torch.bfloat16)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = Config("", "", "", output=name, global_batch_size=asked.batch, batch_size_per_device=asked.batch)
        config = dataclasses.replace(
            config, deepspeed=None, dataloader_workers=0 if asked.tiny else 8, save_steps=10**6
        )
        if asked.tiny:
            config = dataclasses.replace(config, dtype="fp32", device="cpu", lora_rank=4)
        peak = matmul_rate(device, dtype, 512 if asked.tiny else 8192)
        model, processor = random_model(folder, asked.tiny, device, dtype)
        model = get_peft_model(
            model, LoraConfig(r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules=config.lora_targets)
        )
        half = WORDS * (asked.words // 2 // len(WORDS.split()))
        content = [{"type": "image"}, {"type": "text", "text": half}]
        answer = {"role": "assistant", "content": [{"type": "text", "text": half}]}
        item = {"messages": [{"role": "user", "content": content}, answer], "images": [Image.new("RGB", (336, 336))]}
        records = [{**item, "name": str(i)} for i in range(asked.batch * STEPS)]
        collator = Collator(processor, config.max_length)
        tokens = collator(records[: asked.batch])["input_ids"].numel()
        clock = Clock(device)
        arguments = training_arguments(config, len(records), ranks=1)
        Trainer(model, arguments, collator, train_dataset=records, callbacks=[clock]).train()  # type: ignore[arg-type]
    seconds = (clock.times[-1] - clock.times[WARM_UP - 1]) / (STEPS - WARM_UP)
    flops = model_flops(model, tokens, asked.batch, asked.batch)
    again = flops + 2 * sum(p.numel() for n, p in model.named_parameters() if "vision_tower" not in n) * tokens
    print(f"{asked.batch} records of {tokens // asked.batch} tokens a step, {seconds:.3f} s a step")
    print(f"{tokens / seconds:,.0f} tokens/s")
    print(f"matrix product alone: {peak / 1e12:,.1f} TFLOP/s")
    print(f"model FLOP/s: {flops / seconds / 1e12:,.1f} T, {flops / seconds / peak:.0%} of that")
    print(f"with what checkpointing does again: {again / seconds / peak:.0%}; the rest is other work, or waiting")
    if device == "cuda":
        print(f"peak memory: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
