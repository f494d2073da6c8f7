"""What a fine-tuning run is told: a YAML file, read and checked in one place."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from lmms_eval_templates.sets import TemplateError

# Neither the vision tower nor the projector; "all-linear" or bare layer names would take them too.
LANGUAGE_MODEL = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
_ALLOWED = {"dtype": ("bf16", "fp32"), "missing_images": ("error", "skip"), "device": ("auto", "cpu")}


@dataclass(frozen=True)
class Config:
    """Settings of a fine-tuning run; the defaults are the paper's (section 4.1), and LLaVA's where it is silent.

    Attributes:
        model: folder or hub name of the model to start from.
        data: LLaVA JSON, JSON Lines or `messages`, as `augment` writes them.
        image_folder: what image names in the data are relative to.
        output: folder for checkpoints and, in `adapter/`, the result.
        global_batch_size: records an optimizer step, whatever the number of devices.
        batch_size_per_device: records at once on a device; the rest of a step is accumulated.
        learning_rate: peak of the schedule.
        lr_scheduler: a name that the Trainer knows.
        warmup_ratio: share of the steps in which the learning rate rises.
        weight_decay: of AdamW.
        epochs: passes over the data.
        max_length: tokens a record, image tokens included; longer text is cut at its end.
        lora_rank: LoRA r.
        lora_alpha: LoRA alpha.
        lora_dropout: LoRA dropout.
        lora_targets: regular expression over module names.
        dtype: "bf16" or "fp32".
        gradient_checkpointing: less memory for about a third more arithmetic.
        deepspeed: "zero3", "zero2", a DeepSpeed JSON file, or none.
        missing_images: "error", or "skip" records whose image file is missing.
        save_steps: optimizer steps between checkpoints.
        logging_steps: optimizer steps between log lines.
        dataloader_workers: processes that read images, a device.
        seed: of the LoRA weights, the order of the data and the dropout.
        device: "auto", or "cpu" also where there is a GPU.
    """

    model: str
    data: str
    image_folder: str
    output: str
    global_batch_size: int = 128
    batch_size_per_device: int = 8
    learning_rate: float = 2e-5
    lr_scheduler: str = "cosine"
    warmup_ratio: float = 0.03
    weight_decay: float = 0.0
    epochs: float = 1.0
    max_length: int = 2048
    lora_rank: int = 128
    lora_alpha: int = 256
    lora_dropout: float = 0.05
    lora_targets: str = LANGUAGE_MODEL
    dtype: str = "bf16"
    gradient_checkpointing: bool = True
    deepspeed: str | None = "zero3"
    missing_images: str = "error"
    save_steps: int = 500
    logging_steps: int = 10
    dataloader_workers: int = 4
    seed: int = 0
    device: str = "auto"

    def accumulation(self, devices: int) -> int:
        """Micro-batches an optimizer step.

        Raises:
            TemplateError: the global batch cannot be split evenly over the devices.
        """
        steps, rest = divmod(self.global_batch_size, self.batch_size_per_device * devices)
        if rest or not steps:
            fitting = [b for b in range(1, self.global_batch_size + 1) if self.global_batch_size % (b * devices) == 0]
            raise TemplateError(
                f"global_batch_size {self.global_batch_size} is no multiple of batch_size_per_device "
                f"{self.batch_size_per_device} x {devices} devices; "
                + (f"batch_size_per_device can be {', '.join(map(str, fitting))}" if fitting else "use fewer devices")
            )
        return steps

    @property
    def deepspeed_file(self) -> str | None:
        """Path of the DeepSpeed configuration.

        Raises:
            TemplateError: there is no such file.
        """
        if self.deepspeed is None:
            return None
        folder = Path(str(resources.files("lmms_eval_templates.training"))) / "deepspeed"
        for path in (folder / f"{self.deepspeed}.json", Path(self.deepspeed)):
            if path.is_file():
                return str(path)
        shipped = ", ".join(sorted(path.stem for path in folder.glob("*.json")))
        raise TemplateError(f"deepspeed: no file {self.deepspeed}; shipped are {shipped}; null is without DeepSpeed")


def load_config(path: str | Path, changes: Sequence[str] = ()) -> Config:
    """Reads a YAML file.

    Args:
        path: the file.
        changes: `key=value` texts that replace what the file says.

    Raises:
        TemplateError: unknown or missing keys and values that are not allowed, all of them at once.
    """
    try:
        settings = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TemplateError(f"cannot read {path}: {error}") from error
    if not isinstance(settings, dict):
        raise TemplateError(f"{path}: must be lines `key: value`")
    faults = []
    for change in changes:
        key, sign, value = change.partition("=")
        if sign:
            settings[key] = yaml.safe_load(value)
        else:
            faults.append(f"{change!r} on the command line: must be key=value")
    fields = {field.name: field for field in dataclasses.fields(Config)}
    for key in settings:
        if key not in fields:
            nearest = difflib.get_close_matches(str(key), fields, n=1, cutoff=0)[0]
            faults.append(f"unknown key {key!r}; the nearest is {nearest!r}, all are {', '.join(fields)}")
    faults += [
        f"{name} is missing"
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and name not in settings
    ]
    kinds = get_type_hints(Config)
    values = {}
    for key in fields.keys() & settings.keys():
        values[key], fault = _checked(key, settings[key], kinds[key])
        faults += [fault] if fault else []
    if faults:
        raise TemplateError("\n".join(f"{path}: {fault}" for fault in sorted(faults)))
    return Config(**values)


def _checked(key: str, value: Any, kind: Any) -> tuple[Any, str | None]:
    """The value as the setting's type, and what is wrong with it."""
    if kind is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            value = float(value)  # YAML takes 2e-5 for text
        except ValueError:
            return value, f"{key}: {value!r} must be a number"
    if value is None and key == "deepspeed":
        return None, None
    wanted = str if key == "deepspeed" else kind
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        return value, f"{key}: {value!r} must be {'text' if wanted is str else wanted.__name__}"
    if key in _ALLOWED and value not in _ALLOWED[key]:
        return value, f"{key}: {value!r} must be {' or '.join(_ALLOWED[key])}"
    if isinstance(value, bool):
        return value, None
    smallest = 0 if key in ("seed", "dataloader_workers") or wanted is float else 1
    if isinstance(value, (int, float)) and value < smallest:
        return value, f"{key}: {value!r} must be {smallest} or more"
    return value, None
