"""The signature that stands beside every score: what must be equal for two scores to be comparable."""

from __future__ import annotations

from dataclasses import dataclass, fields
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


def installed_versions() -> dict[str, str]:
    """The two versions that a signature holds."""
    return {"version": version("lmms-eval-templates"), "lmms_eval": version("lmms-eval")}
