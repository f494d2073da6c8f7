"""Checkpoint folders of tiny models with the real processors of their architectures and the demo's words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny_models
import transformers as hf
from tiny_models import _PINPOINTS, _TEXT, _VISION

from lmms_eval_templates.demo import tiny_llava

_CHAT = (
    "{% for message in messages %}USER: {% for part in message['content'] %}{% if part['type'] == 'image' %}MARK"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %} {% endfor %}ASSISTANT:"
)


def build(family: str, folder: Path) -> Path:
    """Writes model and processor of `family` below `folder`."""
    target = folder / family
    if family == "llava":
        return tiny_llava.build(target)
    words = tiny_llava.build(folder / f"words_of_{family}")

    def tokenizer(*marks: str, **named: str) -> Any:
        result = hf.AutoTokenizer.from_pretrained(words, **({"extra_special_tokens": named} if named else {}))
        if marks:
            result.add_special_tokens({"additional_special_tokens": list(marks)})
        return result

    model, processor = globals()[f"_{family}"](tokenizer)
    tiny_models._ready(model).save_pretrained(target)
    processor.save_pretrained(target)
    return target


def _text(tokenizer: Any, **more: Any) -> dict[str, Any]:
    return {**_TEXT, "vocab_size": len(tokenizer), **more}


def _llava_next(tokenizer: Callable[..., Any]) -> tuple[Any, Any]:
    words = tokenizer("<image>")
    processor = hf.LlavaNextProcessor(
        hf.LlavaNextImageProcessor(
            size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}, image_grid_pinpoints=_PINPOINTS
        ),
        words,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=_CHAT.replace("MARK", "<image>"),
    )
    config = hf.LlavaNextConfig(
        vision_config=hf.CLIPVisionConfig(**_VISION),
        text_config=hf.LlamaConfig(**_text(words)),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=_PINPOINTS,
    )
    return hf.LlavaNextForConditionalGeneration(config), processor


def _idefics2(tokenizer: Callable[..., Any]) -> tuple[Any, Any]:
    words = tokenizer("<image>", "<fake_token_around_image>", "<end_of_utterance>")
    processor = hf.Idefics2Processor(
        hf.Idefics2ImageProcessor(size={"longest_edge": 32, "shortest_edge": 24}, do_image_splitting=False),
        words,
        image_seq_len=8,
        chat_template=_CHAT.replace("MARK", "<image>"),
    )
    config = hf.Idefics2Config(
        vision_config=_VISION,
        text_config=hf.MistralConfig(**_text(words)),
        perceiver_config={
            "hidden_size": 64,
            "resampler_n_latents": 8,
            "resampler_depth": 1,
            "resampler_n_heads": 4,
            "resampler_head_dim": 16,
            "num_key_value_heads": 2,
        },
        image_token_id=words.convert_tokens_to_ids("<image>"),
    )
    return hf.Idefics2ForConditionalGeneration(config), processor


def _idefics3(tokenizer: Callable[..., Any]) -> tuple[Any, Any]:
    words = tokenizer("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
    processor = hf.Idefics3Processor(
        hf.Idefics3ImageProcessor(size={"longest_edge": 64}, max_image_size={"longest_edge": 32}),
        words,
        image_seq_len=4,
        chat_template=_CHAT.replace("MARK", "<image>"),
    )
    config = hf.Idefics3Config(
        vision_config=_VISION,
        text_config=hf.LlamaConfig(**_text(words)),
        scale_factor=2,
        image_token_id=words.convert_tokens_to_ids("<image>"),
    )
    return hf.Idefics3ForConditionalGeneration(config), processor


def _gemma3(tokenizer: Callable[..., Any]) -> tuple[Any, Any]:
    marks = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    words = tokenizer(**marks)
    image, start, end = words.convert_tokens_to_ids(list(marks.values()))
    processor = hf.Gemma3Processor(
        hf.Gemma3ImageProcessor(size={"height": 32, "width": 32}),
        words,
        image_seq_length=16,
        chat_template=_CHAT.replace("MARK", "<start_of_image>"),
    )
    config = hf.Gemma3Config(
        vision_config=_VISION,
        text_config=_text(words, head_dim=16, layer_types=["sliding_attention", "full_attention"]),
        image_token_index=image,
        mm_tokens_per_image=16,
        boi_token_index=start,
        eoi_token_index=end,
    )
    return hf.Gemma3ForConditionalGeneration(config), processor


def _internvl(tokenizer: Callable[..., Any]) -> tuple[Any, Any]:
    words = tokenizer(
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )
    processor = hf.InternVLProcessor(
        hf.GotOcr2ImageProcessor(size={"height": 32, "width": 32}, crop_to_patches=True),
        words,
        hf.InternVLVideoProcessor(),
        image_seq_length=4,
        chat_template=_CHAT.replace("MARK", "<IMG_CONTEXT>"),
    )
    config = hf.InternVLConfig(
        vision_config={**_VISION, "image_size": [32, 32], "patch_size": [8, 8]},
        text_config=hf.Qwen2Config(**_text(words)),
        image_token_id=words.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        downsample_ratio=0.5,
    )
    return hf.InternVLForConditionalGeneration(config), processor


def _paligemma(tokenizer: Callable[..., Any]) -> tuple[Any, Any]:
    words = tokenizer(image_token="<image>")
    images = hf.SiglipImageProcessor(size={"height": 32, "width": 32})
    images.image_seq_length = 16
    processor = hf.PaliGemmaProcessor(images, words, chat_template=_CHAT.replace("MARK", "<image>"))
    config = hf.PaliGemmaConfig(
        vision_config={**_VISION, "projection_dim": 64},
        text_config=_text(words, model_type="gemma", num_key_value_heads=1, head_dim=16),
        projection_dim=64,
        hidden_size=64,
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    return hf.PaliGemmaForConditionalGeneration(config), processor


def _qwen2_5_vl(tokenizer: Callable[..., Any]) -> tuple[Any, Any]:
    marks = ["<|vision_start|>", "<|image_pad|>", "<|video_pad|>", "<|vision_end|>"]
    words = tokenizer(*marks)
    start, image, video, end = words.convert_tokens_to_ids(marks)
    patches = {"patch_size": 8, "merge_size": 2, "temporal_patch_size": 2}
    processor = hf.Qwen2_5_VLProcessor(
        hf.Qwen2VLImageProcessor(min_pixels=256, max_pixels=16384, **patches),
        words,
        hf.Qwen2VLVideoProcessor(**patches),
        chat_template=_CHAT.replace("MARK", "<|vision_start|><|image_pad|><|vision_end|>"),
    )
    config = hf.Qwen2_5_VLConfig(
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "num_heads": 4,
            "out_hidden_size": 64,
            "intermediate_size": 128,
            "patch_size": 8,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 32,
            "fullatt_block_indexes": [1],
        },
        text_config=_text(
            words, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
        ),
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
    )
    return hf.Qwen2_5_VLForConditionalGeneration(config), processor
