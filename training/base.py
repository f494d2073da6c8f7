r"""Builds the paper's starting point, LLaVA-1.5-Base in Hugging Face form, from its three parts.

    python -m lmms_eval_templates.training.base --language-model vicuna-7b-v1.5 \
        --vision-tower clip-vit-large-patch14-336 --projector mm_projector.bin --output llava-1.5-7b-base
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from lmms_eval_templates.sets import TemplateError

from .records import IMAGE_MARK
from .saving import save_model

# liuhaotian/llava-v1.5-mlp2x-336px-pretrain-*: two linear layers with a GELU between them.
PROJECTOR_NAMES = {"0": "linear_1", "2": "linear_2"}
_VOCABULARY_MULTIPLE = 64
# How LLaVA-1.5 converses (Vicuna v1), images before text, as the converted models of llava-hf have it.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] != 'system' %}{{ message['role'] | upper }}: {% endif %}"
    "{% if message['content'] is string %}{{ message['content'] }} {% else %}"
    "{% for part in message['content'] if part['type'] == 'image' %}<image>\n{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }} {% endfor %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def read_projector(path: str | Path, vision_size: int, text_size: int) -> dict[str, torch.Tensor]:
    """LLaVA's stage-1 file with the names that Hugging Face gives its weights.

    Args:
        path: `mm_projector.bin`, with `model.mm_projector.0.weight` [text_size, vision_size], `...2.weight`
            [text_size, text_size] and their biases.

    Raises:
        TemplateError: names are missing or unknown, or shapes do not fit the two models; all faults at once.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds
        raise TemplateError(f"cannot read the projector {path}: {error}") from error
    expected = {
        "0.weight": (text_size, vision_size),
        "0.bias": (text_size,),
        "2.weight": (text_size, text_size),
        "2.bias": (text_size,),
    }
    faults, weights = [], {}
    found = {str(name).rpartition("mm_projector.")[2]: tensor for name, tensor in content.items()}
    faults += [f"no mm_projector.{name}" for name in expected if name not in found]
    for name, tensor in found.items():
        if name not in expected:
            faults.append(f"unknown weight {name!r}; known are {', '.join(expected)}")
        elif tuple(tensor.shape) != expected[name]:
            faults.append(f"mm_projector.{name} has shape {list(tensor.shape)}, must have {list(expected[name])}")
        else:
            layer, kind = name.split(".")
            weights[f"{PROJECTOR_NAMES[layer]}.{kind}"] = tensor
    if faults:
        raise TemplateError("\n".join(f"{path}: {fault}" for fault in faults))
    return weights


def build_base(
    language_model: str, vision_tower: str, projector: str, output: str | Path, dtype: str = "bfloat16"
) -> Path:
    """Writes model and processor to a new folder.

    The vocabulary gets `<image>` and `<pad>` and is filled up to a multiple of 64; the new embeddings are the mean of
    the old ones and never used: an image's features replace the first, and padding is masked.

    Args:
        language_model: Vicuna, a folder or hub name of a LlamaForCausalLM.
        vision_tower: CLIP, a folder or hub name.
        projector: see `read_projector`.
        output: a folder that does not exist yet.
        dtype: of the saved weights.

    Raises:
        TemplateError: a part cannot be loaded, they do not fit together, or `output` exists or cannot be written.
    """
    from transformers import AutoModelForCausalLM, CLIPVisionModel, GenerationConfig, LlavaForConditionalGeneration

    output = Path(output)
    if output.exists():
        raise TemplateError(f"{output} exists; name a new folder")
    kind = getattr(torch, dtype)
    text = _loaded("language model", language_model, AutoModelForCausalLM, dtype=kind)
    vision = _loaded("vision tower", vision_tower, CLIPVisionModel, dtype=kind)
    weights = read_projector(projector, vision.config.hidden_size, text.config.hidden_size)
    processor = _processor(language_model, vision_tower, vision.config)
    _grow_vocabulary(text, processor.tokenizer)
    with torch.device("meta"):
        model = LlavaForConditionalGeneration(_llava_config(text.config, vision.config, processor))
    _assign(model.model.language_model, text.model.state_dict(), "language model")
    _assign(model.lm_head, text.lm_head.state_dict(), "language model's head")
    _assign(model.model.vision_tower, vision.state_dict(), "vision tower")
    _assign(model.model.multi_modal_projector, {n: t.to(kind) for n, t in weights.items()}, "projector")
    # Vicuna's own asks for a temperature without sampling, which cannot be saved.
    model.generation_config = GenerationConfig(
        bos_token_id=text.config.bos_token_id,
        eos_token_id=text.config.eos_token_id,
        pad_token_id=text.config.pad_token_id,
    )
    save_model(model, processor, output)
    return output


def _processor(language_model: str, vision_tower: str, vision_config: Any) -> Any:
    from transformers import AutoTokenizer, CLIPImageProcessor, LlavaProcessor

    tokenizer = _loaded("tokenizer", language_model, AutoTokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_MARK], "pad_token": "<pad>"})
    return LlavaProcessor(
        _loaded("image processor", vision_tower, CLIPImageProcessor),
        tokenizer,
        patch_size=vision_config.patch_size,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )


def _grow_vocabulary(text: Any, tokenizer: Any) -> None:
    known = text.get_input_embeddings().weight.shape[0]
    text.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=_VOCABULARY_MULTIPLE, mean_resizing=False)
    for layer in (text.get_input_embeddings(), text.get_output_embeddings()):
        weight = layer.weight.data
        weight[known:] = weight[:known].float().mean(dim=0).to(weight.dtype)
    text.config.pad_token_id = tokenizer.pad_token_id


def _llava_config(text_config: Any, vision_config: Any, processor: Any) -> Any:
    from transformers import LlavaConfig

    return LlavaConfig(
        text_config=text_config,
        vision_config=vision_config,
        image_token_index=processor.image_token_id,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        image_seq_length=(vision_config.image_size // vision_config.patch_size) ** 2,
    )


def _loaded(what: str, name: str, kind: Any, **options: Any) -> Any:
    try:
        return kind.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        raise TemplateError(f"cannot load the {what} {name!r}: {error}") from error


def _assign(module: torch.nn.Module, weights: dict[str, torch.Tensor], what: str) -> None:
    try:
        module.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise TemplateError(f"the {what} does not fit: {error}") from error


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m lmms_eval_templates.training.base",
        description="Build LLaVA-1.5-Base from Vicuna, CLIP and LLaVA's stage-1 projector.",
        epilog="example: python -m lmms_eval_templates.training.base --language-model lmsys/vicuna-7b-v1.5 "
        "--vision-tower openai/clip-vit-large-patch14-336 --projector mm_projector.bin --output llava-1.5-7b-base",
    )
    for name in ("language-model", "vision-tower", "projector", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parsed = parser.parse_args(arguments)
    try:
        folder = build_base(parsed.language_model, parsed.vision_tower, parsed.projector, parsed.output, parsed.dtype)
    except TemplateError as error:
        print(f"base: error: {error}", file=sys.stderr)
        return 2
    print(f"base model: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
