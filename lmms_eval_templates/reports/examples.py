"""The item on which a model's answers differ most, with its prompts, answers and, where it is at hand, its image."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from ..binding import FIELDS_KEY
from ..fields import FieldsAdapter
from ..matching import LETTERS
from ..metrics import RECORD_METRIC, Cell, item_consistency
from ..plugin import tasks_path
from .logs import Header, read_samples
from .runs import Run
from .summary import Summary

if TYPE_CHECKING:
    from PIL import Image

_PIXELS = 512  # the longer side of an image in the page


@dataclass(frozen=True)
class Answer:
    """What one template brought about; `choice` is a letter or "none"."""

    template: int
    prompt: str
    response: str
    choice: str
    correct: bool


@dataclass(frozen=True)
class Example:
    """An item and all answers to it.

    Attributes:
        run: the run of the model with the most templates, in the paper's order of benchmarks.
        item: the item's id.
        right: letter of the right choice.
        counts: (choice, how many templates led to it), most frequent first.
        answers: in the order of the templates.
        image: PNG, or None.
        image_note: why there is no image, or "".
    """

    run: Run
    item: str
    right: str
    counts: list[tuple[str, int]]
    answers: list[Answer]
    image: bytes | None
    image_note: str


def largest_disagreements(summary: Summary) -> list[Example]:
    """For each model the item whose answers agree least, among its runs with the most templates."""
    examples = []
    for runs in summary.runs.values():
        most = max(run.matrix.predictions.shape[1] for run in runs.values())
        candidates = [run for run in runs.values() if run.matrix.predictions.shape[1] == most]
        shares = [item_consistency(run.matrix.predictions) for run in candidates]
        run, share = min(zip(candidates, shares, strict=True), key=lambda pair: pair[1].min())
        examples.append(_example(run, run.matrix.items[int(np.argmin(share))]))
    return examples


def _example(run: Run, item: str) -> Example:
    answers, right = [], ""
    for sample in read_samples(run.header):
        cell = Cell.from_record(sample[RECORD_METRIC])
        if cell.item != item:
            continue
        right = LETTERS[cell.answer]
        choice = "none" if cell.prediction is None else LETTERS[cell.prediction]
        response = sample["filtered_resps"]
        answers.append(
            Answer(cell.template, str(sample["input"]), str(response), choice, cell.prediction == cell.answer)
        )
    answers.sort(key=lambda answer: answer.template)
    counts = sorted(Counter(answer.choice for answer in answers).items(), key=lambda pair: (-pair[1], pair[0]))
    image, note = _load_image(run.header, item)
    return Example(run, item, right, counts, answers, image, note)


def _load_image(header: Header, item: str) -> tuple[bytes | None, str]:
    """Logs hold no images; the task's dataset does, where it is on this machine."""
    try:
        picture = _find_image(header, item)
    except Exception as error:  # the dataset is absent, or lmms-eval or its library cannot read it: no harm done
        return None, f"The image is not shown: its dataset is not at hand ({type(error).__name__})."
    picture.thumbnail((_PIXELS, _PIXELS))
    png = io.BytesIO()
    picture.convert("RGB").save(png, "PNG")
    return png.getvalue(), ""


def _find_image(header: Header, item: str) -> Image.Image:
    import datasets

    from ..variation import join_splits, read_items

    task = _task_yaml(header.task)
    adapter = FieldsAdapter.from_mapping(task[FIELDS_KEY], header.task)
    config = header.config
    loaded = datasets.load_dataset(
        config["dataset_path"], config.get("dataset_name"), **(config.get("dataset_kwargs") or {})
    )
    if task.get("splits") == "all" and header.signature.subset != "paper":
        dataset = join_splits(loaded)
    else:
        dataset = loaded[config["test_split"]]
    (row,) = [known.row for known in read_items(dataset, adapter, header.task) if known.id == item]
    value = dataset[row][adapter.image]
    return value[0] if isinstance(value, list) else value


def _task_yaml(task: str) -> dict[str, Any]:
    """A task of ours with what it includes."""
    (path,) = tasks_path().rglob(f"{task}.yaml")
    config = yaml.safe_load(path.read_text("utf-8"))
    base = yaml.safe_load((path.parent / config["include"]).read_text("utf-8")) if "include" in config else {}
    return {**base, **config}
