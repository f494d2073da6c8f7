"""Training data: a small mix with images, single conversations, and both augmented."""

from __future__ import annotations

import json
from pathlib import Path

from lmms_eval_templates.training.augment import augment
from lmms_eval_templates.training.dataset import Records
from lmms_eval_templates.training.manifest import manifest_path
from lmms_eval_templates.training.plan import Options
from PIL import Image

from lmms_eval_templates import QUESTION
from lmms_eval_templates.demo.scenes import scenes

LEARNT = {"from": "gpt", "value": "Cup"}


def write_mix(folder: Path, n: int = 16) -> list[dict]:
    """Writes mix.json and images/ to `folder`; every fourth record is text-only. Returns the records."""
    (folder / "images" / "drawn").mkdir(parents=True)
    records = []
    for i, scene in enumerate(scenes(n)):
        record: dict = {"id": i}
        mark = ""
        if i % 4 != 3:
            record["image"], mark = f"drawn/{i}.png", "<image>\n"
            Image.fromarray(scene.pixels).save(folder / "images" / record["image"])
        record["conversations"] = [
            {"from": "human", "value": mark + scene.question},
            {"from": "gpt", "value": scene.choices[scene.answer]},
            {"from": "human", "value": "Where is the red circle?"},
            {"from": "gpt", "value": "top left"},
        ]
        records.append(record)
    (folder / "mix.json").write_text(json.dumps(records))
    return records


def conversation(*texts, **fields):
    turns = [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(texts)]
    return {**fields, "conversations": turns}


def run(tmp_path, records, name="mix.json", **options):
    """Augments records; returns the new ones and the manifest."""
    source, target = tmp_path / name, tmp_path / f"new_{name}"
    lines = name.endswith(".jsonl")
    if isinstance(records, bytes):
        source.write_bytes(records)
    else:
        source.write_text("\n".join(map(json.dumps, records)) if lines else json.dumps(records, indent=1))
    manifest = augment(source, target, Options(**{"num_templates": 1, **options}), progress=False)
    text = target.read_text("utf-8")
    new = [json.loads(line) for line in text.split("\n") if line] if lines else json.loads(text)
    assert json.loads(manifest_path(target).read_text()) == manifest
    return new, manifest


def first_turn(record):
    return record["conversations"][0]["value"]


def around(question, index=0, seed=0, n=1):
    """The question in the template that seed and number stand for, from the template space itself."""
    template = QUESTION.sample(n, seed)[index]
    assert template.endswith("{question}")
    return template[: -len("{question}")] + question


def read(folder, missing="error"):
    return Records(str(folder / "mix.json"), str(folder / "images"), missing, folder / "missing.txt", progress=False)
