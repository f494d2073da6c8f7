"""The signature that stands beside every score: what must be equal for two scores to be comparable."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, fields
from functools import cache
from importlib.metadata import version


@dataclass(frozen=True)
class Signature:
    """What a score depends on besides the model.

    Attributes:
        templates: name of the template set.
        templates_hash: first 12 digits of its SHA-256.
        space_hash: first 12 digits of the SHA-256 of the template space.
        items: number of items asked about.
        items_hash: first 12 digits of a SHA-256 over their ids.
        subset: "sampled" or "paper".
        seed: of the item sample and the permutation test.
        match: "robust" or "strict".
        embedder: sentence-transformers model, or "none".
        version: of this package.
        lmms_eval: version of the host.
    """

    templates: str
    templates_hash: str
    space_hash: str
    items: int
    items_hash: str
    subset: str
    seed: int
    match: str
    embedder: str
    version: str
    lmms_eval: str

    def __str__(self) -> str:
        return "|".join(f"{field.name}:{getattr(self, field.name)}" for field in fields(self))

    @classmethod
    def parse(cls, text: str) -> Signature:
        """The inverse of `str`.

        Raises:
            ValueError: the text is no signature.
        """
        pattern = r"\|".join(f"{field.name}:(?P<{field.name}>.*)" for field in fields(cls))
        match = re.fullmatch(pattern, text, re.DOTALL)
        if not match:
            raise ValueError(f"no signature: {text!r}")
        values = match.groupdict()
        return cls(**{**values, "items": int(values["items"]), "seed": int(values["seed"])})  # type: ignore[arg-type]


def installed_versions() -> dict[str, str]:
    """The two versions that a signature holds."""
    return {"version": version("lmms-eval-templates"), "lmms_eval": version("lmms-eval")}


@cache
def run_environment() -> dict[str, str]:
    """What a run ran on, for its logs: python, torch, transformers and hardware ("2 x NVIDIA H200", "8 CPU cores")."""
    packages = {name: version(name) for name in ("torch", "transformers")}
    return {"python": platform.python_version(), **packages, "hardware": _accelerators() or _processors()}


def _accelerators() -> str:
    """Names of the NVIDIA devices. Asking torch would start CUDA, after which vLLM cannot fork its workers."""
    if not shutil.which("nvidia-smi"):
        return ""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):  # a driver without devices
        return ""
    names = Counter(answer.stdout.split("\n"))
    return ", ".join(f"{count} x {name.strip()}" for name, count in sorted(names.items()) if name.strip())


def _processors() -> str:
    return f"{os.cpu_count()} CPU cores ({platform.machine()})"
