"""The manifest beside an augmented file: what was drawn, what was changed, and the in-domain set for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from lmms_eval_templates.space import VQA

from .plan import POOLS, Options, Plan, Pool

# The paper's in-domain set: 100 templates that the tuned model met in training (section 4.1, Evaluation).
_EVALUATED = 100


@dataclass(frozen=True)
class AugmentSignature:
    """What two augmented files must share to be the same.

    Attributes:
        input: first 12 digits of the SHA-256 of the input file.
        templates: how many distinct ones were drawn.
        space_hash: first 12 digits of the SHA-256 of the template space.
        seed, turns, text_only, all_instructions, on_error: see `Options`.
        version: of this package.
    """

    input: str
    templates: int
    space_hash: str
    seed: int
    turns: str
    text_only: str
    all_instructions: bool
    on_error: str
    version: str

    def __str__(self) -> str:
        return "|".join(f"{f.name}:{getattr(self, f.name)}" for f in fields(self))


def manifest_path(target: str | Path) -> Path:
    """`mix.json` -> `mix.manifest.json`, `mix.jsonl` -> `mix.jsonl.manifest.json`."""
    target = Path(target)
    return target.with_name((target.stem if target.suffix == ".json" else target.name) + ".manifest.json")


def make_manifest(plan: Plan, pools: Sequence[Pool], options: Options) -> dict[str, Any]:
    """The manifest.

    `num_templates` are the distinct question templates of both pools together, `ratio` those to the records. Its
    `templates` are whole templates, question and choices, that `TM_TEMPLATES` can read: the first 100 drawn.
    """
    main = pools[0] if len(pools[0].question) else pools[1]
    num_templates = len({index for pool in pools for index in pool.question.tolist()})
    digest = plan.digest.hexdigest()
    signature = AugmentSignature(
        input=digest[:12],
        templates=num_templates,
        space_hash=VQA.hash[:12],
        seed=options.seed,
        turns=options.turns,
        text_only=options.text_only,
        all_instructions=options.all_instructions,
        on_error=options.on_error,
        version=version("lmms-eval-templates"),
    )
    settings = asdict(options)
    for name in ("num_templates", "ratio"):
        settings.pop(name)
    return {
        "signature": str(signature),
        "input_sha256": digest,
        **settings,
        "num_templates": num_templates,
        "ratio": num_templates / plan.records,
        "space_hash": VQA.hash,
        "records": plan.records,
        "changed_records": plan.changed_records,
        "changed_turns": sum(len(pool.dealt) for pool in pools),
        "pools": {
            name: {"templates": len(pool.question), "changed_turns": len(pool.dealt)}
            for name, pool in zip(POOLS, pools, strict=True)
        },
        "kinds": dict(sorted(plan.kinds.items())),
        "bad_records": plan.bad,
        "templates": [question + "\n" + choice for question, choice in main.texts[:_EVALUATED]],
        "used": {name: _usage(pool) for name, pool in zip(POOLS, pools, strict=True)},
    }


def _usage(pool: Pool) -> list[dict[str, Any]]:
    counts = np.bincount(pool.dealt, minlength=len(pool.question)).tolist()
    return [
        {"index": index, "template": question, "count": count, "choice_index": choice_index, "choice_template": choice}
        for index, choice_index, (question, choice), count in zip(
            pool.question.tolist(), pool.choice.tolist(), pool.texts, counts, strict=True
        )
    ]
