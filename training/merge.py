"""Merges a LoRA adapter into its base: a folder that lmms-eval and `from_pretrained` load, processor included.

python -m lmms_eval_templates.training.merge runs/7b/adapter merged/7b
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lmms_eval_templates.sets import TemplateError

from .saving import save_model


def merge(adapter: str | Path, target: str | Path, base: str | None = None) -> Path:
    """Writes model and processor to `target`; a run that is broken off leaves nothing there.

    Args:
        adapter: folder with `adapter_config.json`, as `finetune` writes it.
        target: a folder that does not exist yet.
        base: model that the adapter was trained on; the one named in the adapter if None.

    Raises:
        TemplateError: the adapter or its base cannot be loaded, they do not fit, or `target` exists.
    """
    from peft import PeftConfig, PeftModel
    from transformers import AutoModelForImageTextToText, AutoProcessor

    adapter, target = Path(adapter), Path(target)
    if not (adapter / "adapter_config.json").is_file():
        inside = adapter / "adapter"
        hint = f"; did you mean {inside}?" if inside.is_dir() else ""
        raise TemplateError(f"{adapter} holds no adapter_config.json{hint}")
    if target.exists():
        raise TemplateError(f"{target} exists; name a new folder")
    base = base or PeftConfig.from_pretrained(str(adapter)).base_model_name_or_path
    if not base:
        raise TemplateError(f"{adapter} does not name its base model; give it with --base")
    try:
        model = AutoModelForImageTextToText.from_pretrained(base, dtype="auto")
    except (OSError, ValueError) as error:
        raise TemplateError(f"cannot load the base model {base!r}: {error}\ngive its place with --base") from error
    try:
        loaded = PeftModel.from_pretrained(model, adapter)
        keys = loaded.load_adapter(str(adapter), "default")  # a second time, for what it returns
        for what, names in (("lacks", keys.missing_keys), ("has beyond the model's", keys.unexpected_keys)):
            if names:
                raise RuntimeError(f"it {what} {len(names):,} weights, e.g. {names[0]}")
        merged = loaded.merge_and_unload(safe_merge=True)
    except (RuntimeError, ValueError) as error:
        raise TemplateError(f"{adapter} does not fit {base}: {error}") from error
    source = adapter if (adapter / "processor_config.json").is_file() else base
    try:
        processor = AutoProcessor.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise TemplateError(f"cannot load the processor of {source}: {error}") from error
    save_model(merged, processor, target)
    return target


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m lmms_eval_templates.training.merge",
        description="Merge a LoRA adapter into its base model.",
        epilog="example: python -m lmms_eval_templates.training.merge runs/7b/adapter merged/7b",
    )
    parser.add_argument("adapter", help="folder of the adapter")
    parser.add_argument("output", help="new folder for the merged model and its processor")
    parser.add_argument("--base", help="model the adapter was trained on, if it has moved")
    parsed = parser.parse_args(arguments)
    try:
        folder = merge(parsed.adapter, parsed.output, parsed.base)
    except TemplateError as error:
        print(f"merge: error: {error}", file=sys.stderr)
        return 2
    print(f"merged model: {folder}\nevaluate: lmms-eval --model llava_hf --model_args pretrained={folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
