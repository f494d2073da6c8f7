"""A LLaVA of some ten thousand weights, built on the spot: the real architecture with random weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..sets import PUBLISHED_SETS, template_set
from .scenes import COLORS, POSITIONS, SHAPES, SIZE, scenes

_SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<image>")
_PATCH = 8
WORD = r"\([A-Z]\)|\w+|[^\w\s]"
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | upper }}: "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>\n{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %} {% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def words() -> list[str]:
    """Every word and sign in the demo's questions, choices and templates, sorted."""
    texts = [t for name in PUBLISHED_SETS for t in template_set(name).templates]
    texts += [text for scene in scenes() for text in (scene.question, *scene.choices)]
    texts += [*COLORS, *SHAPES, *POSITIONS, "USER: ASSISTANT: (A) (B) (C) (D)"]
    return sorted({word for text in texts for word in re.findall(WORD, text)})


def make_processor(vocabulary: Sequence[str], image_size: int, patch_size: int) -> Any:
    """A LLaVA processor that knows a list of words, one token each.

    Args:
        vocabulary: words and signs; "(A)" is one.
        image_size: side in pixels to which images are scaled.
        patch_size: side in pixels of what makes one image token.

    Returns:
        A `LlavaProcessor`; `len(processor.tokenizer)` is the size of the vocabulary, special tokens included.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import CLIPImageProcessor, LlavaProcessor, PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*_SPECIAL, *vocabulary])}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(WORD), "isolated")]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.chat_template = _CHAT_TEMPLATE
    size = {"height": image_size, "width": image_size}
    return LlavaProcessor(
        CLIPImageProcessor(size=size, crop_size=size, do_center_crop=False),
        tokenizer,
        patch_size=patch_size,
        vision_feature_select_strategy="default",
        chat_template=_CHAT_TEMPLATE,
        num_additional_image_tokens=1,
    )


def build(folder: str | Path, seed: int = 0, image_size: int = SIZE) -> Path:
    """Writes model, tokenizer and processor to `folder`, in the form that `from_pretrained` reads.

    Args:
        image_size: side in pixels to which images are scaled; the model sees one token for 8 x 8 of them.
    """
    import torch
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    processor = make_processor(words(), image_size, _PATCH)
    tokenizer = processor.tokenizer
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=image_size,
            patch_size=_PATCH,
            projection_dim=32,
        ),
        text_config=LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=1024,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        ),
        image_token_index=processor.image_token_id,
        image_seq_length=(image_size // _PATCH) ** 2,
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
    )
    torch.manual_seed(seed)
    model = LlavaForConditionalGeneration(config)
    # The default scale is so small that hardly any image or wording would change a token.
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    folder = Path(folder)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
