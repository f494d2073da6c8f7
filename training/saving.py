"""Writes a model with its processor, whole or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from lmms_eval_templates.sets import TemplateError


def save_model(model: Any, processor: Any, folder: Path) -> None:
    """Writes both to `folder`, which does not exist yet.

    Raises:
        TemplateError: it cannot be written; nothing remains.
    """
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        model.save_pretrained(partial)
        processor.save_pretrained(partial)
        os.replace(partial, folder)
    except (OSError, SafetensorError) as error:
        raise TemplateError(f"cannot write {folder}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
