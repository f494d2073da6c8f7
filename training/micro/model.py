"""The micro-LLaVA: CLIP tower, projector and Llama in the real architecture, with a million and a half weights."""

from __future__ import annotations

from typing import Any

from lmms_eval_templates.demo.scenes import CELL, POSITIONS, SIZE
from lmms_eval_templates.demo.tiny_llava import make_processor

from .data import scene_words, template_words

_WIDTH, _LAYERS, _HEAD = 128, 4, 32
_VISION_WIDTH, _VISION_LAYERS = 128, 3


def build(seed: int) -> tuple[Any, Any]:
    """A model with random weights and its processor.

    Each cell of the grid is one image patch. The words are those of the scenes and of the templates.
    """
    import torch
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    processor = make_processor(sorted({*scene_words(), *template_words()}), SIZE, CELL)
    tokenizer = processor.tokenizer
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=_VISION_WIDTH,
            intermediate_size=3 * _VISION_WIDTH,
            num_hidden_layers=_VISION_LAYERS,
            num_attention_heads=_VISION_WIDTH // _HEAD,
            image_size=SIZE,
            patch_size=CELL,
            projection_dim=_VISION_WIDTH,
        ),
        text_config=LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=_WIDTH,
            intermediate_size=8 * _WIDTH // 3 // _HEAD * _HEAD,
            num_hidden_layers=_LAYERS,
            num_attention_heads=_WIDTH // _HEAD,
            max_position_embeddings=512,
            # The usual 0.02 is meant for wide layers; at this width attention would start flat and stay so for long.
            initializer_range=_WIDTH**-0.5,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        ),
        image_token_index=processor.image_token_id,
        image_seq_length=len(POSITIONS),
        tie_word_embeddings=True,
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
    )
    torch.manual_seed(seed)
    return LlavaForConditionalGeneration(config), processor
