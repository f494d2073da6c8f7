"""Loads a checkpoint and its processor, with one clear error for each thing that can be wrong about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError


def refuse(message: str) -> NoReturn:
    """lmms-eval logs exceptions and exits with 0; this ends the run, before any data is loaded."""
    raise SystemExit(f"tm_hf: error: {message}")


def choose_device(name: str | None, local_rank: int, world_size: int) -> torch.device:
    """The device a user named, or this rank's GPU, or the CPU."""
    if name is None:
        name = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        refuse(f"device={name}: no such device; give cpu, cuda, cuda:0 or the like")
    if device.type == "meta":
        refuse(f"device={name}: it holds no weights; give cpu, cuda, cuda:0 or the like")
    if device.type == "cuda":
        if device.index is None and world_size > 1:
            device = torch.device("cuda", local_rank)
        if not torch.cuda.is_available():
            refuse(f"device={name}: torch {torch.__version__} finds no GPU here; give device=cpu")
        if (device.index or 0) >= torch.cuda.device_count():
            refuse(f"device={device}: there are {torch.cuda.device_count()} GPUs here, counted from 0")
    elif device.type == "mps" and not torch.backends.mps.is_available():
        refuse(f"device={name}: torch {torch.__version__} finds no such device here; give device=cpu")
    return device


def choose_dtype(name: str) -> str | torch.dtype:
    if name not in ("auto", "float32", "bfloat16", "float16"):
        refuse(f"dtype={name}: must be auto, float32, bfloat16 or float16")
    return name if name == "auto" else getattr(torch, name)


def check_checkpoint(pretrained: str, revision: str, trust_remote_code: bool) -> None:
    """Reads the checkpoint's config alone: is it there, and is it an image-text-to-text model?"""
    import transformers
    from transformers import AutoConfig, AutoModelForImageTextToText

    try:
        config = AutoConfig.from_pretrained(pretrained, revision=revision, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        refuse(f"pretrained={pretrained}: {_first_line(error)}")
    remote = "AutoModelForImageTextToText" in (getattr(config, "auto_map", None) or {})
    if type(config) not in AutoModelForImageTextToText._model_mapping and not (remote and trust_remote_code):
        refuse(
            f"pretrained={pretrained}: a {config.model_type!r} model is no image-text-to-text model of transformers "
            f"{transformers.__version__}; if it comes with code of its own, use lmms-eval's class for it"
        )


def load_processor(pretrained: str, revision: str, trust_remote_code: bool, max_pixels: int | None) -> Any:
    """
    Args:
        max_pixels: the largest image, in pixels, of processors that scale images to their size.
    """
    from transformers import AutoProcessor

    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        processor = AutoProcessor.from_pretrained(pretrained, **options)
        if getattr(processor, "tokenizer", None) is None or getattr(processor, "image_processor", None) is None:
            refuse(f"pretrained={pretrained}: its {type(processor).__name__} is no processor of images and text")
        if max_pixels is not None:
            settings = getattr(getattr(processor.image_processor, "valid_kwargs", None), "__annotations__", {})
            if "max_pixels" not in settings:
                refuse(f"max_pixels={max_pixels}: {type(processor.image_processor).__name__} has no such setting")
            processor = AutoProcessor.from_pretrained(pretrained, max_pixels=max_pixels, **options)
    except (OSError, ValueError, ImportError) as error:
        refuse(f"pretrained={pretrained}: no processor could be loaded: {_first_line(error)}")
    return processor


def load_model(
    pretrained: str,
    revision: str,
    trust_remote_code: bool,
    dtype: str | torch.dtype,
    device: torch.device,
    device_map: str | None,
    attn_implementation: str | None,
    peft: Path | None,
) -> Any:
    """The model in evaluation mode on its device, an adapter merged into it."""
    from transformers import AutoModelForImageTextToText

    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code, "dtype": dtype}
    if attn_implementation:
        options["attn_implementation"] = attn_implementation
    try:
        model: Any = AutoModelForImageTextToText.from_pretrained(pretrained, device_map=device_map, **options)
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        refuse(f"pretrained={pretrained}: {_first_line(error)}")
    if peft is not None:
        model = _with_adapter(model, peft)
    if device_map is None:
        model.to(device)
    return model.eval()


def check_adapter(peft: str, pretrained: str) -> Path:
    """The adapter's folder, if it is one and says that it was trained on this base."""
    folder = Path(peft)
    description = folder / "adapter_config.json"
    if not description.is_file():
        refuse(f"peft={peft}: no adapter there (no adapter_config.json)")
    try:
        base = json.loads(description.read_text("utf-8")).get("base_model_name_or_path")
    except (ValueError, AttributeError):
        refuse(f"peft={peft}: {description} is not the JSON of an adapter")
    if base and Path(base).name != Path(pretrained).name:
        refuse(
            f"peft={peft}: this adapter was trained on {base}, not on {pretrained}; if these are the same under two "
            f"names, correct base_model_name_or_path in {description}"
        )
    return folder


def _with_adapter(model: Any, folder: Path) -> Any:
    try:
        from peft import PeftModel
    except ImportError:
        refuse(f"peft={folder}: adapters need the peft package: pip install 'lmms-eval-templates[train]'")
    import warnings

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            adapted = PeftModel.from_pretrained(model, str(folder))
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        refuse(f"peft={folder}: this adapter does not fit the model: {_first_line(error)}")
    if missing := [str(w.message) for w in caught if "missing adapter keys" in str(w.message)]:
        refuse(f"peft={folder}: this adapter does not fit the model: {missing[0].splitlines()[0]}")
    return adapted.merge_and_unload()


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
