"""A small mix with images: drawn scenes with known answers, two turns each, and text-only records."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from lmms_eval_templates.demo.scenes import scenes


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
