"""Gathers what lmms-eval measured into one small file, from which the page is written."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lmms_eval_templates.sets import PUBLISHED_SETS, TemplateError

METRICS = ("tm_avg", "tm_max_min", "tm_null_max_min", "tm_unmatched")


def read_scores(logs: Path) -> dict[str, Any]:
    """Metrics and signature of each template set, from the newest results file below `logs`.

    Raises:
        TemplateError: lmms-eval wrote no results there, or not those of the demo's tasks.
    """
    files = sorted(logs.rglob("*_results.json"))
    if not files:
        raise TemplateError(f"lmms-eval wrote no results to {logs}; its output says why")
    content = json.loads(files[-1].read_text("utf-8"))
    scores = {}
    for setting in PUBLISHED_SETS:
        task = f"demo_tm_{setting}"
        if task not in content["results"]:
            raise TemplateError(f"{files[-1]} holds no results of {task}")
        values = content["results"][task]
        scores[setting] = {
            **{name: values[f"{name},none"] for name in METRICS},
            "signature": content["configs"][task]["metadata"]["signature"],
        }
    return scores


def write_results(target: Path, arms: Sequence[dict[str, Any]], recipe: dict[str, Any]) -> None:
    """Writes `results.json`.

    Args:
        target: the file.
        arms: of each model its number of templates, ratio, seed, scores, and the hash of its data.
        recipe: command, sizes, device and seconds; machine and packages are added.
    """
    import torch

    machine = f"{os.cpu_count()} CPU cores ({platform.machine()})"
    if recipe["device"] == "cuda":
        machine += f", {torch.cuda.get_device_name()}"
    packages = {name: version(name) for name in ("lmms-eval-templates", "lmms-eval", "torch", "transformers", "peft")}
    content = {"recipe": {**recipe, "machine": machine, "packages": packages}, "models": list(arms)}
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    os.replace(partial, target)


def digest(path: Path) -> str:
    """First 12 digits of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
