import random
import time
from collections import Counter

import datasets
import numpy as np
import pytest
from benchmark_data import picture

from lmms_eval_templates import TemplateError, TemplateSet, template_set
from lmms_eval_templates.fields import FieldsAdapter, Item
from lmms_eval_templates.variation import expand, items_hash, read_items, render_choices, stratified_sample

ADAPTER = FieldsAdapter(id="id", question="q", choices="c", answer="a", image="image", category="kind")
FEATURES = datasets.Features(
    {name: datasets.Value("string") for name in ("id", "q", "a", "kind")}
    | {"c": [datasets.Value("string")], "image": datasets.Image()}
)


def dataset(n, **kwargs):
    rows = [
        {
            "id": f"i{i}",
            "q": f"q{i}?",
            "c": ["x", "y"],
            "a": "AB"[i % 2],
            "kind": "ab"[i % 3 == 0],
            "image": picture(i, **kwargs),
        }
        for i in range(n)
    ]
    return datasets.Dataset.from_list(rows, features=FEATURES)


def items(sizes):
    return [
        Item(f"{name}{i}", name, f"{name}{i}?", ("x", "y"), 0, row)
        for row, (name, i) in enumerate((name, i) for name, size in sizes.items() for i in range(size))
    ]


def test_largest_remainder_worked_by_hand():
    # 10 of 47: shares 10 * 23 / 47 = 4.89, 10 * 16 / 47 = 3.40, 10 * 8 / 47 = 1.70; whole parts 4, 3, 1; the two
    # remaining seats go to the remainders .89 and .70.
    chosen = stratified_sample(items({"a": 23, "b": 16, "c": 8}), 10, seed=0)
    assert Counter(item.category for item in chosen) == {"a": 5, "b": 3, "c": 2}


def test_sample_depends_on_seed_and_ids_not_on_row_order():
    population = items({"a": 30, "b": 20})
    shuffled = population[:]
    random.Random(1).shuffle(shuffled)
    chosen = [item.id for item in stratified_sample(population, 12, 0)]
    assert chosen == [item.id for item in stratified_sample(shuffled, 12, 0)]
    assert chosen != [item.id for item in stratified_sample(population, 12, 1)]
    assert len(stratified_sample(population, 0, 0)) == 50 == len(stratified_sample(population, 99, 0))


def test_beginnings_of_a_sample_are_fair():
    """`--limit` takes a beginning: it must not hold one category only."""
    beginning = stratified_sample(items({"a": 500, "b": 500}), 400, 0)[:100]
    assert 30 < Counter(item.category for item in beginning)["a"] < 70


def test_expansion_is_item_major_and_keeps_each_item_s_image():
    data = dataset(6)
    chosen = stratified_sample(read_items(data, ADAPTER, "t"), 4, 0)
    expanded = expand(data, ADAPTER, chosen, template_set("simple"))
    assert expanded["item_id"][:] == [item.id for item in chosen for _ in range(3)]
    assert expanded["template"][:] == [0, 1, 2] * 4
    for row in expanded:
        number = int(row["item_id"][1:])
        assert row["image"].getpixel((0, 0)) == (number, 100, 200)
        assert (row["question"], row["choices"], row["answer"]) == (f"q{number}?", ["x", "y"], number % 2)


@pytest.mark.parametrize("world_size", [2, 3])
def test_each_rank_gets_a_contiguous_stretch(world_size):
    data = dataset(5)
    chosen = read_items(data, ADAPTER, "t")
    plain = expand(data, ADAPTER, chosen, template_set("simple"))
    dealt = expand(data, ADAPTER, chosen, template_set("simple"), world_size)
    shares = [
        [(r["item_id"], r["template"]) for r in dealt.select(range(k, 15, world_size))] for k in range(world_size)
    ]
    assert [row for share in shares for row in share] == [(r["item_id"], r["template"]) for r in plain]


def test_lists_of_images_and_a_shuffled_dataset():
    features = datasets.Features({**FEATURES, "image": [datasets.Image()]})
    rows = [
        {
            "id": f"i{i}",
            "q": "q?",
            "c": ["x", "y"],
            "a": "A",
            "kind": "k",
            "image": [picture(10 * i + k) for k in range(1 + i % 2)],
        }
        for i in range(6)
    ]
    adapter = FieldsAdapter("id", "q", "c", "a", "image")
    data = datasets.Dataset.from_list(rows, features=features).select([5, 4, 2, 0])
    kept = read_items(data, adapter, "t")
    assert [item.id for item in kept] == ["i4", "i2", "i0"]
    expanded = expand(data, adapter, kept, template_set("simple"))
    assert [row["image"].getpixel((0, 0))[0] for row in expanded] == [40] * 3 + [20] * 3 + [0] * 3


def test_rows_without_an_image_are_not_asked():
    data = dataset(3)
    rows = [{**row, "image": None if row["id"] == "i1" else picture(0)} for row in data.remove_columns("image")]
    data = datasets.Dataset.from_list(rows, features=FEATURES)
    assert [item.id for item in read_items(data, ADAPTER, "t")] == ["i0", "i2"]


def test_bad_data_is_refused():
    data = dataset(2)
    with pytest.raises(TemplateError, match="no column kind; it has"):
        read_items(data.remove_columns("kind"), ADAPTER, "t")
    with pytest.raises(TemplateError, match="none of these passes the keep rule"):
        read_items(data, FieldsAdapter("id", "q", "c", "a", "image", keep={"kind": "z"}), "t")
    with pytest.raises(TemplateError, match="is empty"):
        read_items(data.select([]), ADAPTER, "t")
    bare = data.remove_columns("image")
    with pytest.raises(TemplateError, match="column 'image' holds string, no images"):
        read_items(bare.add_column("image", ["a.png", "b.png"]), ADAPTER, "t")
    none = datasets.Dataset.from_list([{**row, "image": None} for row in bare], features=FEATURES)
    with pytest.raises(TemplateError, match="of 2 rows 0 have exactly one image in column 'image'"):
        read_items(none, ADAPTER, "t")


def test_expansion_copies_no_image():
    """100 views of 40 MB of images: far less than one copy, and under a second."""
    noise = np.random.default_rng(0).bytes(400_000)
    rows = [
        {"id": f"i{i}", "q": "q?", "c": ["x", "y"], "a": "A", "kind": "k", "image": {"bytes": noise, "path": None}}
        for i in range(100)
    ]
    data = datasets.Dataset.from_list(rows, features=FEATURES)
    chosen = read_items(data, ADAPTER, "t")
    began = time.perf_counter()
    expanded = expand(data, ADAPTER, chosen, TemplateSet("many", tuple(str(t) for t in range(100))))
    assert time.perf_counter() - began < 1
    assert len(expanded) == 10_000
    # Every view points into the buffers of the dataset.
    original = {b.address for c in data.data.table["image"].chunks for b in c.field("bytes").buffers() if b}
    views = {b.address for c in expanded.data.table["image"].chunks for b in c.field("bytes").buffers() if b}
    assert views == original


def test_hash_of_items_ignores_order_and_sees_content():
    population = items({"a": 3})
    assert items_hash(population) == items_hash(population[::-1])
    changed = [Item(*[*vars(population[0]).values()][:2], "other?", ("x", "y"), 0, 0), *population[1:]]
    assert items_hash(changed) != items_hash(population)


def test_choices_are_shown_as_in_the_paper():
    # Figure 1 of the paper and its published prompts.
    assert render_choices(["cat", "dog", "bird"]) == "(A) cat (B) dog (C) bird"
