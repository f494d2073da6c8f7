"""Tiny models of real architectures with random weights, and prompts for them: no processor, no download.

Weights are scaled so that every image, position and token changes the logits; at the default scale a wrong mask would
hide in the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import transformers as hf

VOCABULARY, PAD, IMAGE, VIDEO, START, END = 256, 0, 190, 191, 192, 193
_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
_PINPOINTS = [[32, 64], [64, 32], [64, 64]]


@dataclass
class Tiny:
    """A model, the token ids of [system | image], the image's tensors, and per-token inputs as functions of the ids."""

    model: torch.nn.Module
    prefix: list[int]
    image: dict[str, torch.Tensor]
    per_token: dict[str, Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=dict)

    def prompts(self, count: int = 6, seed: int = 1, lengths: tuple[int, int] = (4, 14)) -> list[dict]:
        """Prompts on the image with random suffixes, of lengths drawn from `lengths`."""
        generator = torch.Generator().manual_seed(seed)
        prompts = []
        for length in torch.randint(*lengths, (count,), generator=generator).tolist():
            suffix = torch.randint(5, 150, (length,), generator=generator).tolist()
            ids = torch.tensor([[*self.prefix, *suffix]])
            extras = {name: function(ids) for name, function in self.per_token.items()}
            prompts.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), **self.image, **extras})
        return prompts


def _ready(model: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                scale = 0.5 if "embed" in name else 1.5 / math.sqrt(parameter[0].numel())
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            elif "gate" in name and parameter.numel() == 1:
                parameter.fill_(0.7)  # Mllama's cross attention starts switched off
            elif "A_log" in name:  # drawn without a seed by Qwen3.5
                parameter.copy_((1 + 15 * torch.rand(parameter.shape, generator=generator)).log())
            elif "bias" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD
    return model


def _pixels(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


_SYSTEM = torch.randint(5, 150, (6,), generator=torch.Generator().manual_seed(5)).tolist()


def _framed(image_tokens: int) -> list[int]:
    return [*_SYSTEM, START, *[IMAGE] * image_tokens, END]


def _is_image(ids: torch.Tensor) -> torch.Tensor:
    return (ids == IMAGE).long()


def llava() -> Tiny:
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(**_VISION), text_config=hf.LlamaConfig(**_TEXT), image_token_index=IMAGE
    )
    model = _ready(hf.LlavaForConditionalGeneration(config))
    return Tiny(model, _SYSTEM + [IMAGE] * 16, {"pixel_values": _pixels(1, 3, 32, 32)})


def _any_resolution(model: torch.nn.Module) -> Tiny:
    image = {"pixel_values": _pixels(1, 5, 3, 32, 32), "image_sizes": torch.tensor([[50, 60]])}
    with torch.no_grad():
        features = model.model.get_image_features(**image)
    return Tiny(model, _SYSTEM + [IMAGE] * sum(len(f) for f in features.pooler_output), image)


def llava_next() -> Tiny:
    config = hf.LlavaNextConfig(
        vision_config=hf.CLIPVisionConfig(**_VISION),
        text_config=hf.LlamaConfig(**_TEXT),
        image_token_index=IMAGE,
        image_grid_pinpoints=_PINPOINTS,
    )
    return _any_resolution(_ready(hf.LlavaNextForConditionalGeneration(config)))


def llava_onevision() -> Tiny:
    config = hf.LlavaOnevisionConfig(
        vision_config=hf.SiglipVisionConfig(**_VISION),
        text_config=hf.Qwen2Config(**_TEXT),
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        image_grid_pinpoints=_PINPOINTS,
    )
    return _any_resolution(_ready(hf.LlavaOnevisionForConditionalGeneration(config)))


def _qwen(family: str, vision: dict, **text: object) -> Tiny:
    config = getattr(hf, f"{family}Config")(
        vision_config={
            "depth": 2,
            "num_heads": 4,
            "hidden_size": 64,
            "patch_size": 8,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            **vision,
        },
        text_config={
            **_TEXT,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
            **text,
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
    )
    model = _ready(getattr(hf, f"{family}ForConditionalGeneration")(config))
    image = {"pixel_values": _pixels(24, 3 * 2 * 8 * 8), "image_grid_thw": torch.tensor([[1, 4, 6]])}
    return Tiny(model, _framed(6), image, {"mm_token_type_ids": _is_image})


def qwen2_vl() -> Tiny:
    return _qwen("Qwen2VL", {"embed_dim": 64, "mlp_ratio": 2})


def qwen2_5_vl() -> Tiny:
    vision = {"out_hidden_size": 64, "intermediate_size": 128, "window_size": 32, "fullatt_block_indexes": [1]}
    return _qwen("Qwen2_5_VL", vision)


_QWEN3_VISION = {"out_hidden_size": 64, "intermediate_size": 128, "num_position_embeddings": 64}


def qwen3_vl() -> Tiny:
    return _qwen("Qwen3VL", {**_QWEN3_VISION, "deepstack_visual_indexes": [0, 1]}, head_dim=16)


def qwen3_5() -> Tiny:
    linear = {f"linear_{name}": value for name, value in {"num_key_heads": 4, "num_value_heads": 4}.items()}
    linear |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    return _qwen("Qwen3_5", _QWEN3_VISION, head_dim=16, layer_types=["linear_attention", "full_attention"], **linear)


def idefics2() -> Tiny:
    config = hf.Idefics2Config(
        vision_config=_VISION,
        text_config=hf.MistralConfig(**_TEXT),
        perceiver_config={
            "hidden_size": 64,
            "resampler_n_latents": 8,
            "resampler_depth": 1,
            "resampler_n_heads": 4,
            "resampler_head_dim": 16,
            "num_key_value_heads": 2,
        },
        image_token_id=IMAGE,
    )
    image = {
        "pixel_values": _pixels(1, 1, 3, 32, 32),
        "pixel_attention_mask": torch.ones(1, 1, 32, 32, dtype=torch.long),
    }
    return Tiny(_ready(hf.Idefics2ForConditionalGeneration(config)), _SYSTEM + [IMAGE] * 8, image)


def _idefics3(family: str) -> Tiny:
    config = getattr(hf, f"{family}Config")(
        vision_config=_VISION, text_config=hf.LlamaConfig(**_TEXT), scale_factor=2, image_token_id=IMAGE
    )
    model = _ready(getattr(hf, f"{family}ForConditionalGeneration")(config))
    image = {
        "pixel_values": _pixels(1, 3, 3, 32, 32),
        "pixel_attention_mask": torch.ones(1, 3, 32, 32, dtype=torch.long),
    }
    return Tiny(model, _SYSTEM + [IMAGE] * 12, image)


def idefics3() -> Tiny:
    return _idefics3("Idefics3")


def smolvlm() -> Tiny:
    return _idefics3("SmolVLM")


def internvl() -> Tiny:
    config = hf.InternVLConfig(
        vision_config={**_VISION, "image_size": [32, 32], "patch_size": [8, 8]},
        text_config=hf.Qwen2Config(**_TEXT),
        image_token_id=IMAGE,
        image_seq_length=4,
        downsample_ratio=0.5,
    )
    model = _ready(hf.InternVLForConditionalGeneration(config))
    return Tiny(model, _SYSTEM + [IMAGE] * 12, {"pixel_values": _pixels(3, 3, 32, 32)})


def gemma3(window: int = 1024) -> Tiny:
    layers = ["sliding_attention", "full_attention"] * 2
    config = hf.Gemma3Config(
        vision_config=_VISION,
        text_config={
            **_TEXT,
            "num_hidden_layers": 4,
            "head_dim": 16,
            "sliding_window": window,
            "layer_types": layers,
        },
        image_token_index=IMAGE,
        mm_tokens_per_image=16,
        boi_token_index=START,
        eoi_token_index=END,
    )
    model = _ready(hf.Gemma3ForConditionalGeneration(config))
    return Tiny(model, _framed(16), {"pixel_values": _pixels(1, 3, 32, 32)}, {"token_type_ids": _is_image})


def gemma3_narrow() -> Tiny:
    return gemma3(window=20)


def paligemma() -> Tiny:
    config = hf.PaliGemmaConfig(
        vision_config={**_VISION, "projection_dim": 64},
        text_config={**_TEXT, "model_type": "gemma", "num_key_value_heads": 1, "head_dim": 16},
        projection_dim=64,
        hidden_size=64,
        image_token_index=IMAGE,
    )
    model = _ready(hf.PaliGemmaForConditionalGeneration(config))
    return Tiny(
        model, [IMAGE] * 16 + [1], {"pixel_values": _pixels(1, 3, 32, 32)}, {"token_type_ids": torch.zeros_like}
    )


def mllama() -> Tiny:
    config = hf.MllamaConfig(
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_global_layers": 1,
            "attention_heads": 4,
            "image_size": 32,
            "patch_size": 8,
            "max_num_tiles": 4,
            "vision_output_dim": 128,
            "intermediate_layers_indices": [0],
            "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1], [2, 2], [1, 3], [1, 4], [3, 1], [4, 1]],
        },
        text_config={
            **_TEXT,
            "num_hidden_layers": 4,
            "cross_attention_layers": [1, 3],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        image_token_index=IMAGE,
    )

    def tiles(ids: torch.Tensor) -> torch.Tensor:  # from the image on, the first two of four tiles
        seen = _is_image(ids).cumsum(-1).clamp(max=1)
        return seen[:, :, None, None] * torch.tensor([1, 1, 0, 0])

    image = {
        "pixel_values": _pixels(1, 1, 4, 3, 32, 32),
        "aspect_ratio_ids": torch.tensor([[2]]),
        "aspect_ratio_mask": torch.tensor([[[1, 1, 0, 0]]]),
    }
    model = _ready(hf.MllamaForConditionalGeneration(config))
    return Tiny(model, [*_SYSTEM, IMAGE], image, {"cross_attention_mask": tiles})


def instructblip() -> Tiny:
    """Its image features depend on the question, which a Q-Former reads too."""
    config = hf.InstructBlipConfig(
        vision_config=_VISION,
        qformer_config={
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "encoder_hidden_size": 64,
            "cross_attention_frequency": 1,
        },
        text_config={**_TEXT, "model_type": "llama"},
        num_query_tokens=8,
        image_token_index=IMAGE,
    )
    model = _ready(hf.InstructBlipForConditionalGeneration(config))

    def question(ids: torch.Tensor) -> torch.Tensor:
        return ids[:, 9:] % 100

    per_token = {"qformer_input_ids": question, "qformer_attention_mask": lambda ids: torch.ones_like(question(ids))}
    return Tiny(model, [IMAGE] * 8 + [1], {"pixel_values": _pixels(1, 3, 32, 32)}, per_token)
