"""From a dataset to items x templates: which items are asked about, and a dataset with one row a prompt."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .fields import SPLIT_COLUMN, FieldsAdapter, Item, unique_ids
from .matching import LETTERS
from .rng import stable_hash
from .sets import TemplateError, TemplateSet

IMAGE = "image"


def read_items(dataset: datasets.Dataset, adapter: FieldsAdapter, task: str) -> list[Item]:
    """The rows that the adapter keeps and that have exactly one image, as items.

    Raises:
        TemplateError: a column is missing, or a row cannot be asked.
    """
    missing = [c for c in [*adapter.text_columns, adapter.image] if c not in dataset.column_names]
    if missing:
        raise TemplateError(
            f"task {task}: the dataset has no column {', '.join(missing)}; it has {', '.join(dataset.column_names)}"
        )
    if len(dataset) == 0:
        raise TemplateError(f"task {task}: the dataset is empty")
    table = _arrow(dataset)
    images = table.column(adapter.image)
    if not (_is_image(images.type) or _is_list_of_images(images.type)):
        raise TemplateError(
            f"task {task}: column {adapter.image!r} holds {images.type}, no images or lists of images; cast it to "
            "datasets.Image() before saving"
        )
    num_images = _count_images(images)
    columns = {name: _values(table.column(name)) for name in adapter.text_columns}
    items = []
    for number in range(len(dataset)):
        row = {name: values[number] for name, values in columns.items()}
        if num_images[number] == 1 and adapter.keeps(row):
            items.append(adapter.item(row, number, task))
    if not items:
        raise TemplateError(
            f"task {task}: of {len(dataset)} rows {sum(n == 1 for n in num_images)} have exactly one image in column "
            f"{adapter.image!r}, and none of these passes the keep rule {dict(adapter.keep)}"
        )
    return unique_ids(items, task, lambda row: hashlib.sha256(repr(images[row].as_py()).encode()).hexdigest())


def _values(column: pa.ChunkedArray) -> list:
    """Python values; of images only whether they are there, so that none is read."""
    if _is_image(column.type) or _is_list_of_images(column.type):
        return [n or None for n in _count_images(column)]
    return column.to_pylist()


def _count_images(column: pa.ChunkedArray) -> list[int]:
    if _is_list_of_images(column.type):
        return pc.fill_null(pc.list_value_length(column), 0).to_pylist()
    return [int(there) for there in pc.is_valid(column).to_pylist()]


def stratified_sample(items: Sequence[Item], n: int, seed: int) -> list[Item]:
    """`n` items in proportion to their categories (largest remainder), in an order fixed by seed and id alone.

    With `n` 0, or no fewer than there are, all of them. The order of the rows does not matter, and any beginning of the
    result is itself a fair sample, so that `--limit` does not cut categories.
    """
    ranked = sorted(items, key=lambda item: (stable_hash("item", seed, item.id), item.id))
    if n == 0 or n >= len(items):
        return ranked
    strata: dict[str, list[Item]] = defaultdict(list)
    for item in ranked:
        strata[item.category].append(item)
    quotas = {c: divmod(n * len(members), len(items)) for c, members in strata.items()}
    left = n - sum(whole for whole, _ in quotas.values())
    rounded_up = sorted(quotas, key=lambda c: (-quotas[c][1], c))[:left]
    chosen = {
        item.id
        for category, members in strata.items()
        for item in members[: quotas[category][0] + (category in rounded_up)]
    }
    return [item for item in ranked if item.id in chosen]


def items_hash(items: Sequence[Item]) -> str:
    """SHA-256 over what is asked: ids, questions, choices and answers, in any order."""
    content = sorted([item.id, item.question, list(item.choices), item.answer] for item in items)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def render_choices(choices: Sequence[str]) -> str:
    """ "(A) cat (B) dog", as the paper shows them."""
    return " ".join(f"({letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=False))


def expand(
    dataset: datasets.Dataset,
    adapter: FieldsAdapter,
    items: Sequence[Item],
    templates: TemplateSet,
    world_size: int = 1,
) -> datasets.Dataset:
    """A dataset with a row for each item and template, item-major, so that prompts on one image are neighbours.

    No image is copied: for each template the table gets one more view of the image column beside a constant template
    number, and an index mapping puts the rows in order.

    Args:
        world_size: lmms-eval deals rows to ranks in turn. The order makes each rank's share a contiguous stretch of the
            item-major list.

    Returns:
        Columns image, item_id, category, question, choices, answer (index), template (index).
    """
    images, first_image = _image_rows(_arrow(dataset).column(adapter.image))
    rows = np.array([first_image[item.row] for item in items])
    num_rows, num_templates = len(images), len(templates)

    def spread(values: list, kind: pa.DataType) -> pa.Array:
        """One value an item, laid out along the image rows; other rows are null."""
        position = np.full(num_rows, -1)
        position[rows] = np.arange(len(items))
        return pa.array(values, kind).take(pa.array(position, mask=position < 0))

    shared = {
        IMAGE: images,
        "item_id": spread([item.id for item in items], pa.string()),
        "category": spread([item.category for item in items], pa.string()),
        "question": spread([item.question for item in items], pa.string()),
        "choices": spread([list(item.choices) for item in items], pa.list_(pa.string())),
        "answer": spread([item.answer for item in items], pa.int64()),
    }
    views = [
        pa.table({**shared, "template": pa.array(np.full(num_rows, t, dtype=np.int64))}) for t in range(num_templates)
    ]
    features = datasets.Features(
        {
            IMAGE: datasets.Image(),
            "item_id": datasets.Value("string"),
            "category": datasets.Value("string"),
            "question": datasets.Value("string"),
            "choices": [datasets.Value("string")],
            "answer": datasets.Value("int64"),
            "template": datasets.Value("int64"),
        }
    )
    # Without a fingerprint `datasets` would hash all images, once a template.
    fingerprint = hashlib.sha256(f"{dataset._fingerprint} {templates.hash} {items_hash(items)}".encode()).hexdigest()[
        :16
    ]
    expanded = datasets.Dataset(
        pa.concat_tables(views), info=datasets.DatasetInfo(features=features), fingerprint=fingerprint
    )
    item_major = (rows[:, None] + num_rows * np.arange(num_templates)[None, :]).ravel()
    order = np.empty_like(item_major)
    shares = [len(range(rank, len(order), world_size)) for rank in range(world_size)]
    for rank, share in enumerate(np.split(item_major, np.cumsum(shares)[:-1])):
        order[rank::world_size] = share
    return expanded.select(order)


def join_splits(splits: datasets.DatasetDict) -> datasets.Dataset:
    """All splits as one dataset, with the split's name in a column of its own."""
    named = [
        split.add_column(SPLIT_COLUMN, [name] * len(split))  # no index mapping yet, so nothing is copied
        for name, split in sorted(splits.items())
    ]
    return datasets.concatenate_datasets(named)


def _arrow(dataset: datasets.Dataset) -> pa.Table:
    if dataset._indices is not None:
        dataset = dataset.flatten_indices()
    return dataset.data.table


def _is_image(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and {"bytes", "path"} <= {f.name for f in kind}


def _is_list_of_images(kind: pa.DataType) -> bool:
    return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_image(kind.value_type)


def _image_rows(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Sequence[int]]:
    """Images one a row, and for each dataset row the position of its first image there; nothing is copied."""
    if not _is_list_of_images(column.type):
        return column, range(len(column))
    flat = pa.chunked_array([chunk.flatten() for chunk in column.chunks], column.type.value_type)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    return flat, np.cumsum(lengths) - lengths
