"""LoRA fine-tuning of a multimodal model on (augmented) instruction data, paper section 4.1.

    accelerate launch --num_processes 8 -m lmms_eval_templates.training.finetune llava_1.5_7b.yaml

Run the same command again to go on after an interruption.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib.util
import json
import math
import os
import socket
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from lmms_eval_templates.rng import stable_hash
from lmms_eval_templates.sets import TemplateError

from .checkpoints import MarkComplete, StopOnSignal, newest_checkpoint, wait_for_all
from .collator import Collator
from .config import Config, load_config
from .dataset import Records
from .lengths import leave_out_unanswered

# Two, because the newest may be half-written when the machine dies.
_KEPT_CHECKPOINTS = 2


def _join_ranks(config: Config) -> int:
    """Starts communication where the Trainer would choose the wrong kind; returns the number of ranks."""
    if config.deepspeed is not None:
        if "RANK" not in os.environ:  # plain `python -m`: DeepSpeed wants a group of one
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        if config.device == "cpu" and not distributed.is_initialized():
            import deepspeed

            deepspeed.init_distributed(dist_backend="gloo")
    return int(os.environ.get("WORLD_SIZE", "1"))


def _loggers() -> list[str]:
    """Where the Trainer logs besides the console: what is installed and, for wandb, set up."""
    loggers = ["tensorboard"] if importlib.util.find_spec("tensorboard") else []
    if importlib.util.find_spec("wandb") and (os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE")):
        loggers.append("wandb")
    return loggers


def training_arguments(config: Config, num_records: int, ranks: int) -> Any:
    """The Trainer's arguments for a run on `num_records` records.

    Raises:
        TemplateError: the Trainer refuses a setting.
    """
    from transformers import TrainingArguments

    steps = math.ceil(math.ceil(num_records / config.global_batch_size) * config.epochs)
    settings = dict(
        output_dir=config.output,
        per_device_train_batch_size=config.batch_size_per_device,
        gradient_accumulation_steps=config.accumulation(ranks),
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler,
        warmup_steps=math.ceil(config.warmup_ratio * steps),
        weight_decay=config.weight_decay,
        num_train_epochs=config.epochs,
        optim="adamw_torch",
        bf16=config.dtype == "bf16",
        **_checkpointing(config),
        deepspeed=config.deepspeed_file,
        use_cpu=config.device == "cpu",
        ddp_find_unused_parameters=False,
        save_steps=config.save_steps,
        save_total_limit=_KEPT_CHECKPOINTS,
        logging_steps=config.logging_steps,
        report_to=_loggers(),
        seed=config.seed,
        data_seed=config.seed,
        dataloader_num_workers=config.dataloader_workers,
        dataloader_pin_memory=config.device != "cpu",
        remove_unused_columns=False,
    )
    try:
        return TrainingArguments(**settings)
    except ValueError as error:
        raise TemplateError(f"the Trainer refuses these settings: {error}") from error


def _checkpointing(config: Config) -> dict[str, Any]:
    """Re-entrant checkpointing would lose the gradient: nothing below the first LoRA layer asks for one."""
    from transformers import TrainingArguments

    if not config.gradient_checkpointing:
        return {}
    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    name = next(n for n in ("activation_checkpointing", "gradient_checkpointing") if n in known)
    return {name: True, f"{name}_kwargs": {"use_reentrant": False}}


def lora_model(config: Config, zero3: bool) -> Any:
    """The model with LoRA weights that depend on the seed and their names alone.

    peft draws them from the global generator, which ZeRO-3 reads in another order than a plain run.

    Raises:
        TemplateError: the model cannot be loaded, or `lora_targets` fits none of its layers.
    """
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForImageTextToText

    dtype = torch.bfloat16 if config.dtype == "bf16" else torch.float32
    try:
        base = AutoModelForImageTextToText.from_pretrained(config.model, dtype=dtype)
    except (OSError, ValueError) as error:
        raise TemplateError(f"model: cannot load {config.model!r}: {error}") from error
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=config.lora_targets,
    )
    try:
        model = get_peft_model(base, lora)
    except ValueError as error:
        raise TemplateError(f"lora_targets: {error}") from error
    for name, parameter in model.named_parameters():
        if "lora_A" in name:
            with _gathered(parameter, zero3):
                _draw(parameter.data, stable_hash("lora", config.seed, name))
    return model


def _gathered(parameter: torch.nn.Parameter, zero3: bool) -> Any:
    if not zero3:
        return torch.no_grad()
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter], modifier_rank=0)


def _draw(weight: torch.Tensor, seed: int) -> None:
    """Fills a LoRA A with peft's own distribution, uniform of variance 1 / (3 x inputs)."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    bound = 1 / math.sqrt(weight.shape[-1])
    weight.copy_((2 * torch.rand(weight.shape, generator=generator) - 1) * bound)


def _check_settings(config: Config, records: Records, begun: bool, first: bool) -> None:
    """Refuses to continue a run that was begun with other settings or data; notes those of a new one.

    How a global batch is split over devices and memory may change.
    """
    free = (
        "batch_size_per_device",
        "save_steps",
        "logging_steps",
        "dataloader_workers",
        "output",
        "gradient_checkpointing",
    )
    settings = {k: v for k, v in dataclasses.asdict(config).items() if k not in free}
    settings |= {"records": len(records), "data_sha256": _digest(config.data)}
    path = Path(config.output) / "run.json"
    if begun:
        before = json.loads(path.read_text("utf-8"))
        changed = [f"{k}: {before.get(k)!r} -> {v!r}" for k, v in settings.items() if before.get(k) != v]
        if changed:
            raise TemplateError(
                f"{config.output} holds a run with other settings:\n  " + "\n  ".join(changed) + "\n"
                "name another output folder, or delete this one"
            )
    elif first:
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(settings, indent=1) + "\n", "utf-8")
        os.replace(partial, path)


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def finetune(config: Config) -> Path | None:
    """Trains, or goes on training.

    Returns:
        The adapter's folder, or None where a signal stopped the run.

    Raises:
        TemplateError: settings, data or model cannot be used; nothing has been trained then.
    """
    from transformers import Trainer, set_seed
    from transformers.integrations import is_deepspeed_zero3_enabled

    ranks = _join_ranks(config)
    first = int(os.environ.get("RANK", "0")) == 0
    config.accumulation(ranks)
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    records = Records(
        config.data, config.image_folder, config.missing_images, output / "missing_images.txt", progress=first
    )
    processor = _processor(config)
    leave_out_unanswered(records, Collator(processor, config.max_length), progress=first)
    if first and records.left_out:
        (output / "left_out.txt").write_text("\n".join(records.left_out) + "\n", "utf-8")
        print(f"{len(records.left_out):,} records are left out, listed in {output / 'left_out.txt'}")
    checkpoint = newest_checkpoint(output, remove=first)
    _check_settings(config, records, checkpoint is not None, first)
    arguments = training_arguments(config, len(records), ranks)
    if arguments.n_gpu > 1:  # the Trainer would split each batch over them and the global batch would be another
        raise TemplateError(f"{arguments.n_gpu} GPUs in one process; start with accelerate launch or torchrun")
    set_seed(config.seed)
    zero3 = is_deepspeed_zero3_enabled()
    model = lora_model(config, zero3)
    stop = StopOnSignal()
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=records,
        data_collator=Collator(processor, config.max_length, image_in_every_batch=zero3),
        callbacks=[MarkComplete(), stop],
    )
    if config.deepspeed is not None and not trainer.is_deepspeed_enabled:
        raise TemplateError("DeepSpeed did not start; add --use_deepspeed to accelerate launch, or use torchrun")
    if first:
        trained = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters() if p.requires_grad)
        print(f"{len(records):,} records, {trained:,} LoRA weights, {ranks} devices")
    if first and checkpoint:
        print(f"going on from {checkpoint}")
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except TemplateError as error:  # a worker that reads data puts its traceback in front
        raise TemplateError(str(error).rpartition("TemplateError: ")[2].strip()) from error
    if stop.stopped:
        return None
    return _save(trainer, processor, output)


def _processor(config: Config) -> Any:
    from transformers import AutoProcessor

    try:
        return AutoProcessor.from_pretrained(config.model)
    except (OSError, ValueError) as error:
        raise TemplateError(f"model: cannot load {config.model!r}: {error}") from error


def _save(trainer: Any, processor: Any, output: Path) -> Path:
    partial, adapter = output / "adapter.partial", output / "adapter"
    trainer.save_model(str(partial))
    wait_for_all()
    if trainer.is_world_process_zero():
        processor.save_pretrained(partial)
        if adapter.exists():
            for path in partial.iterdir():
                os.replace(path, adapter / path.name)
            partial.rmdir()
        else:
            os.replace(partial, adapter)
    wait_for_all()
    return adapter


def main(arguments: list[str] | None = None) -> int:
    """The command; a shipped configuration can be given by its file name alone."""
    parser = argparse.ArgumentParser(
        prog="python -m lmms_eval_templates.training.finetune",
        description="LoRA fine-tuning of a multimodal model. Run the same command again to go on where it stopped.",
        epilog="example: accelerate launch --num_processes 8 -m lmms_eval_templates.training.finetune my_run.yaml",
    )
    parser.add_argument("config", help="a YAML file, or the name of a shipped one")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings that replace those of the file")
    parser.add_argument(
        "--missing-images", choices=("error", "skip"), help="what to do about records without image file"
    )
    parsed = parser.parse_intermixed_args(arguments)
    changes = list(parsed.changes)
    if parsed.missing_images:
        changes.append(f"missing_images={parsed.missing_images}")
    shipped = Path(str(resources.files("lmms_eval_templates.training"))) / "configs" / parsed.config
    try:
        path = parsed.config if Path(parsed.config).exists() or not shipped.exists() else shipped
        adapter = finetune(load_config(path, changes))
    except TemplateError as error:
        print(f"finetune: error on rank {os.environ.get('RANK', '0')}: {error}", file=sys.stderr)
        return 2
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"adapter: {adapter}" if adapter else "stopped; run the same command again to go on")
    return 0 if adapter else 130


if __name__ == "__main__":
    sys.exit(main())
